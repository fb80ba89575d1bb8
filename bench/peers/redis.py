"""Redis Streams with `appendfsync always`: every command is synced before it is answered.

Batches of 100, which is where its Python client stops getting faster: XADD pipelined by 100; a
group reads 100 and acknowledges them in the round trip that reads the next 100.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from bench.client import Span
from bench.peers.server import find_program, free_port, running

BATCH = 100
_STREAM, _GROUP, _MEMBER = "bench", "readers", "one"


@contextmanager
def server(folder: Path) -> Iterator[redis.Redis]:
    """A client of a fresh server that syncs every command. Raises `PeerMissing`."""
    options = ["--appendonly", "yes", "--appendfsync", "always"]
    with _running(folder, options) as url, redis.Redis.from_url(url) as client:
        yield client


@contextmanager
def queue_server(folder: Path) -> Iterator[str]:
    """The URL of a fresh server in memory, as task queues use it. Raises `PeerMissing`."""
    with _running(folder, ["--appendonly", "no"]) as url, redis.Redis.from_url(url) as client:
        client.ping()
        yield url


@contextmanager
def _running(folder: Path, options: list[str]) -> Iterator[str]:
    program = find_program("redis-server")
    folder.mkdir(parents=True)
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    command += [*options, "--save", ""]
    with running(command, port=port, log_path=folder / "server.log"):
        yield f"redis://127.0.0.1:{port}/0"


def produce(client: redis.Redis, *, messages: int, message_bytes: int) -> Span:
    """From the first message to the last answer."""
    value = b"x" * message_bytes
    started = time.perf_counter()
    for _ in range(messages // BATCH):
        pipeline = client.pipeline(transaction=False)
        for _ in range(BATCH):
            pipeline.xadd(_STREAM, {b"v": value})
        pipeline.execute()
    return Span(started, time.perf_counter())


def consume(client: redis.Redis, *, messages: int) -> Span:
    """Reads and acknowledges all messages as the one member of a group."""
    client.xgroup_create(_STREAM, _GROUP, id="0", mkstream=True)
    started = time.perf_counter()
    seen = 0
    unacknowledged: list[bytes] = []
    while seen < messages or unacknowledged:
        pipeline = client.pipeline(transaction=False)
        if unacknowledged:
            pipeline.xack(_STREAM, _GROUP, *unacknowledged)
        pipeline.xreadgroup(_GROUP, _MEMBER, {_STREAM: ">"}, count=BATCH)
        found = pipeline.execute()[-1]
        unacknowledged = [entry[0] for entry in found[0][1]] if found else []
        seen += len(unacknowledged)
    return Span(started, time.perf_counter())
