"""A real Spark cluster for tests: a standalone master and two workers, from PySpark's own jars.

Executors are children of the workers, not of a driver; what a driver has on its path they do not
have. `bare_python` is a Python for them that has Arrow and nothing else: no Dovetail, no project.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import psutil
from tests.etcd_server import free_ports
from tests.java import need_java

from dovetail.spark.runtime import find_java, write_program

HOST = "127.0.0.1"
WORKERS = 2
#: For drivers and executors that live for a test: a second compiler would not pay.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
START_S_MAX = 120.0
#: What every application of a test asks for: one executor with two slots, of little memory.
SMALL = {
    "spark.cores.max": "2",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
}


def small() -> list[str]:
    """The same as options of a command."""
    return [word for name, value in SMALL.items() for word in ("--conf", f"{name}={value}")]


class SparkCluster:
    """The daemons, each a process that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self.home = Path(pyspark.__file__).parent
        self._folder = folder
        self._port, self._web_port = free_ports(2)
        self.url = f"spark://{HOST}:{self._port}"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        #: All processes that were ever seen below a worker: some outlive it for a while.
        self._seen: set[psutil.Process] = set()

    def start(self) -> Self:
        where = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._web_port)]
        self._start("master", "org.apache.spark.deploy.master.Master", *where)
        for number in range(WORKERS):
            self.start_worker(number)
        self.wait_workers()
        return self

    def start_worker(self, number: int) -> None:
        """A worker with room for an executor of each of two drivers."""
        folder = self._folder / f"worker-{number}"
        size = ["--cores", "4", "--memory", "2g", "--work-dir", str(folder)]
        name = "org.apache.spark.deploy.worker.Worker"
        self._start(f"worker-{number}", name, "--host", HOST, "--webui-port", "0", *size, self.url)

    def _start(self, name: str, java_class: str, *arguments: str) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name != "PYTHONPATH" and not name.startswith(("SPARK_", "PYSPARK_", "DOVETAIL_"))
        }
        environment |= {
            "JAVA_HOME": str(find_java(os.environ).home),
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            # A driver that was killed leaves nothing behind for long.
            "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true",
        }
        with (self._folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                [self.home / "bin" / "spark-class", java_class, *arguments],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_workers(self) -> None:
        """Returns when all workers are registered."""
        deadline = time.monotonic() + START_S_MAX
        while self._alive() < WORKERS:
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.1)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._web_port}/json/", timeout=5) as page:
                return int(json.load(page)["aliveworkers"])
        except (OSError, ValueError):
            return 0

    def kill_worker(self, number: int) -> None:
        """kill -9 for a worker daemon; its executors notice, and are replaced elsewhere."""
        self.below()
        self._end(f"worker-{number}")

    def _end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def below(self, *words: str) -> list[psutil.Process]:
        """The living processes below workers whose command has all the words."""
        for daemon in self._daemons.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                self._seen.update(psutil.Process(daemon.pid).children(recursive=True))
        return [one for one in self._seen if all(word in _command(one) for word in words)]

    def stop(self) -> None:
        self.below()
        for name in list(self._daemons):
            self._end(name)
        for one in self._seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)

    def logs(self) -> str:
        """The ends of what the daemons wrote."""
        found = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in found)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


@contextmanager
def running_spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    """A cluster for the time of the block; without Java the test skips, in CI it fails."""
    need_java()
    cluster = SparkCluster(folder)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def bare_python(folder: Path) -> Path:
    """A Python program with Arrow alone, as a machine of a cluster may have it."""
    import numpy
    import pyarrow

    libraries = folder / "libraries"
    libraries.mkdir(parents=True, exist_ok=True)
    for module in (pyarrow, numpy):
        source = Path(str(module.__file__)).parent
        with contextlib.suppress(FileExistsError):
            (libraries / source.name).symlink_to(source)
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    text = f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{libraries}" exec "{base}" -s "$@"\n'
    program = write_program(folder / "python", text)
    done = subprocess.run(
        [program, "-c", "import pyarrow\nimport dovetail"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No module named 'dovetail'" in done.stderr, done.stderr
    return program


def driver_environment(python: Path) -> dict[str, str]:
    """For a driver whose executors have a Python of their own."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("DOVETAIL_", "SPARK_"))}
    return clean | {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": HOST,
        "SPARK_SUBMIT_OPTS": JAVA_OPTIONS,
        "JAVA_HOME": str(find_java(os.environ).home),
    }


def spark_submit() -> str:
    """The program, beside the Python of this environment."""
    found = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert found is not None, "it comes with PySpark"
    return found
