"""beanstalkd with its binlog, through greenstalk: one job a call, as its client has it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import greenstalk  # type: ignore[import-untyped]

from bench.peers.server import find_program, free_port, running


@contextmanager
def server(folder: Path, *, sync_ms: int) -> Iterator[tuple[str, int]]:
    """A fresh server that syncs every so often, 0: each job; its address. Raises `PeerMissing`."""
    program = find_program("beanstalkd")
    folder.mkdir(parents=True)
    port = free_port()
    command = [program, "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), f"-f{sync_ms}"]
    with running(command, port=port, log_path=folder / "server.log"):
        yield ("127.0.0.1", port)


def measure(address: tuple[str, int], *, messages: int, body: bytes) -> tuple[float, float]:
    """Jobs a second put, and reserved and deleted."""
    with greenstalk.Client(address, encoding=None) as client:
        started = time.perf_counter()
        for _ in range(messages):
            client.put(body)
        put = messages / (time.perf_counter() - started)
        started = time.perf_counter()
        for _ in range(messages):
            client.delete(client.reserve())
        return put, messages / (time.perf_counter() - started)
