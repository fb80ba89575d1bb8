"""A real schema registry: Apicurio, from Maven Central, with its own storage in memory; kept."""

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.kafka import java
from bench.peers.maven import FETCH_S_MAX
from bench.peers.server import PeerMissing, find_program, free_port, unpack, wait_for_port
from dovetail.spark.runtime import cache_folder

#: The last one that runs on Java 17.
VERSION = "3.0.9"
#: Confluent's HTTP API, as Apicurio serves it.
API = "/apis/ccompat/v7"
START_S_MAX = 300.0

#: A tar with the program and its libraries.
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"


def program() -> Path:
    """The jar that runs. Raises `PeerMissing`."""
    folder = cache_folder(os.environ) / f"apicurio-{VERSION}"
    if not folder.is_dir():
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        goal = ["dependency:copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={made}"]
        done = subprocess.run(
            [find_program("mvn"), "-q", "-B", *goal],
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_S_MAX,
        )
        packed = next(made.glob("*.tar.gz"), None) if made.is_dir() else None
        if done.returncode != 0 or packed is None:
            raise PeerMissing(f"Maven could not fetch Apicurio: {done.stdout[-500:]}")
        unpack(packed, made)
        packed.unlink()
        try:
            made.rename(folder)
        except OSError:
            # Another process was faster.
            shutil.rmtree(made)
    return next(folder.glob("*-runner.jar"))


@contextmanager
def registry(folder: Path) -> Iterator[str]:
    """The address of a registry for the time of the block. Raises `PeerMissing`."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [java(), "-Xmx400m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
    log_path = folder / "registry.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen([*command, "-jar", str(program())], stdout=log, stderr=log)
    try:
        wait_for_port(process, port, log_path, seconds_max=START_S_MAX)
        url = f"http://127.0.0.1:{port}{API}"
        _wait_for_answer(f"{url}/subjects")
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for_answer(url: str) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (OSError, urllib.error.URLError) as error:
            if time.monotonic() > deadline:
                raise PeerMissing(f"the registry does not answer: {error}") from error
            time.sleep(0.1)
