"""A peer's server: found on this machine, started on a free port, stopped again."""

import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: These servers answer within a tenth of that.
START_S_MAX = 20.0


class PeerMissing(Exception):
    """The server is not installed here, so its lines are skipped."""


def find_program(name: str) -> str:
    """The program's path, also where only root looks for programs. Raises `PeerMissing`."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise PeerMissing(f"{name} is not installed (Debian package {name})")
    return found


def unpack(packed: Path, folder: Path) -> None:
    """The files of a tar, in a folder. Python before 3.11.4 knows no filter."""
    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(packed) as archive:
        archive.extractall(folder, **safely)  # type: ignore[arg-type]


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: Sequence[str], *, port: int, log_path: Path) -> Iterator[None]:
    """Runs a server until the block ends; the block begins when its port answers."""
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for_port(process, port, log_path)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=START_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(
    process: "subprocess.Popen[bytes]",
    port: int,
    log_path: Path,
    *,
    seconds_max: float = START_S_MAX,
) -> None:
    """Returns when somebody listens. Raises `PeerMissing` with the end of what the server said."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise PeerMissing(f"{process.args!r}: {log_path.read_text()[-500:]}") from error
            time.sleep(0.02)
        else:
            return
