"""Programs of Apache Kafka that run in a Java of their own: applications and workers."""

import os
import shutil
import signal
import socket
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from dovetail.spark.runtime import cache_folder

#: Time for Maven to fetch the libraries, once.
BUILD_SECONDS_MAX = 300
_END_SECONDS_MAX = 30


def need(*programs: str) -> None:
    """Skips the test where one of the programs is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"this test needs the program {program}")


def build(project: Path) -> Path:
    """The libraries of a project and its compiled classes, in a folder that is kept; skips without
    Maven."""
    need("java", "javac", "mvn")
    state = b"".join(path.read_bytes() for path in sorted(project.iterdir()) if path.is_file())
    kept = cache_folder(os.environ) / f"compat-{project.name}-{zlib.crc32(state):08x}"
    if kept.is_dir():
        return kept

    folder = kept.with_name(f"{kept.name}.{os.getpid()}")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    fetch = ["mvn", "-q", "-B", "-f", str(project / "pom.xml"), *goal]
    sources = map(str, sorted(project.glob("*.java")))
    compile_ = ["javac", "-nowarn", "-cp", f"{folder}/*", "-d", str(folder), *sources]
    for words in (fetch, compile_):
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
        )
        if words is fetch and done.returncode != 0:
            pytest.skip(f"Maven could not fetch what {project.name} needs: {done.stdout[-500:]}")
        assert done.returncode == 0, done.stderr
    try:
        folder.rename(kept)
    except OSError:
        # Another process was faster.
        shutil.rmtree(folder)
    return kept


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class JavaProgram:
    """A running program; what it says goes to a file."""

    def __init__(self, classes: Path, log: Path, main: str, *given: str) -> None:
        self._log = log
        # One compiler and little memory: these run for seconds, beside a node and each other.
        java = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        with log.open("w") as written:
            self._process = subprocess.Popen(
                [*java, "-cp", f"{classes}/*:{classes}", main, *given],
                stdout=written,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        """The end of what it said."""
        return self._log.read_text()[-4000:]

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Asks it to end, and waits until it has."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(_END_SECONDS_MAX)


def run(classes: Path, main: str, *given: str, seconds_max: float) -> str:
    """Runs a program to its end; returns what it printed."""
    words: Sequence[str] = ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}/*:{classes}"]
    done = subprocess.run(
        [*words, main, *given], capture_output=True, text=True, timeout=seconds_max, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout
