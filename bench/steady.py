"""`make soak`: hours of the same load on one node, and a picture of what it holds meanwhile.

    python -m bench.steady [--minutes 60] [--every 30] [--rate 0] [--folder FOLDER]

A producer, a consumer in a group that commits, a timeline with its consumer, and retention that
lets old ledgers go. The rate is half of what the node took in the first seconds, unless one is
given. Memory, file handles, threads, disk and the p99 of end-to-end latency are looked at again and
again, and printed as lines of bars. Exit code 1 if one of them grew from the second quarter of the
run, when caches are full, to the last.
"""

import argparse
import asyncio
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Consumer, Producer

import dovetail
from bench import client
from bench.node import Node
from bench.run import percentile
from dovetail.timeline.client import Message

#: Small ledgers and a small limit, so that retention has had its turn long before the middle.
SETTINGS = {
    "DOVETAIL_LOG_LEDGER_BYTES_MAX": "16MiB",
    "DOVETAIL_LOG_RETENTION_BYTES": "64MiB",
    "DOVETAIL_LOG_RETENTION_CHECK_MS": "5s",
}
_BYTES = 100
_PROBE = 200_000
_PER_TICK_S = 0.01
_TIMELINE_RATE = 20
_STAMP = struct.Struct(">q")
_BARS = "▁▂▃▄▅▆▇█"

#: By how much the last quarter may be above the second, and how much more is no matter at all.
_GROWTH_MAX = {
    "memory_mb": (1.2, 16.0),
    "files": (1.2, 16.0),
    "threads": (1.0, 4.0),
    "disk_mb": (1.3, 64.0),
    "p99_ms": (3.0, 20.0),
}


@dataclass(frozen=True, slots=True)
class Look:
    """What the node holds at one moment, and how late messages were before it."""

    memory_mb: float
    files: float
    threads: float
    disk_mb: float
    p99_ms: float


class Load:
    """Threads that send and read until they are told to end."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._bootstrap, self._topic, self._rate = bootstrap, topic, rate
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._late_ms: list[float] = []
        self.failures: list[str] = []
        works: tuple[Callable[[], None], ...] = (self._send, self._read, self._timeline)
        self._threads = [threading.Thread(target=self._guarded, args=(w,)) for w in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def take_late_ms(self) -> list[float]:
        """Milliseconds of the messages that arrived since the last call."""
        with self._lock:
            taken, self._late_ms = self._late_ms, []
        return taken

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.failures.append(repr(error))

    def _send(self) -> None:
        sender = Producer({"bootstrap.servers": self._bootstrap, "acks": "all", "linger.ms": 5})
        rest, due = b"x" * (_BYTES - _STAMP.size), time.perf_counter()
        while not self._ending.is_set():
            for _ in range(max(1, int(self._rate * _PER_TICK_S))):
                try:
                    sender.produce(self._topic, _STAMP.pack(time.perf_counter_ns()) + rest)
                except BufferError:  # It is behind; the latency says so.
                    sender.poll(0.1)
            sender.poll(0)
            due += _PER_TICK_S
            time.sleep(max(0.0, due - time.perf_counter()))
        sender.flush(client.STALL_S_MAX)

    def _read(self) -> None:
        reader = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "steady",
                "auto.offset.reset": "earliest",
            }
        )
        reader.subscribe([self._topic])
        while not self._ending.is_set():
            found = reader.consume(5000, timeout=0.2)
            now_ns = time.perf_counter_ns()
            stamps = [_STAMP.unpack_from(one.value() or bytes(8))[0] for one in found[::50]]
            with self._lock:
                self._late_ms += [(now_ns - stamp) / 1e6 for stamp in stamps]
        reader.close()

    def _timeline(self) -> None:
        asyncio.run(self._schedule())

    async def _schedule(self) -> None:
        async with dovetail.connect(self._bootstrap) as node:
            line = node.timeline("steady")
            await line.create()

            @node.consumer("steady")
            async def handle(message: Message) -> None:
                pass

            running = asyncio.ensure_future(node.run())
            while not self._ending.is_set():
                await line.schedule(b"x" * _BYTES, delay="500ms")
                await asyncio.sleep(1 / _TIMELINE_RATE)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _look(node: Node, folder: Path, late_ms: Sequence[float]) -> Look:
    process = psutil.Process(node.pid)
    disk = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
    return Look(
        node.memory_mb(),
        process.num_fds(),
        process.num_threads(),
        disk / 1e6,
        percentile(late_ms, 99) if len(late_ms) > 1 else 0.0,
    )


def picture(values: Sequence[float]) -> str:
    """A bar for each value, from nothing to the greatest."""
    most = max(values) or 1.0
    return "".join(_BARS[min(7, int(8 * value / most))] for value in values)


def grew(name: str, values: Sequence[float]) -> bool:
    """Whether the last quarter is above what the second one allows."""
    quarter = max(1, len(values) // 4)
    before = statistics.median(values[quarter : 2 * quarter] or values[:quarter])
    times, more = _GROWTH_MAX[name]
    return statistics.median(values[-quarter:]) > before * times + more


def _rate(bootstrap: str, topic: str) -> int:
    """Half of what the node takes."""
    span = client.produce(bootstrap, topic, messages=_PROBE, message_bytes=_BYTES, by_batch=True)
    return int(_PROBE / span.seconds / 2)


def main() -> int:
    """Loads, looks, prints; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench.steady", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two looks")
    parser.add_argument("--rate", type=int, default=0, help="messages a second")
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    looks: list[Look] = []
    with (
        tempfile.TemporaryDirectory(prefix="dovetail-steady-", dir=given.folder) as parent,
        Node(Path(parent) / "node", SETTINGS) as node,
    ):
        topic = client.create_topic(node.bootstrap, "steady")
        rate = given.rate or _rate(node.bootstrap, topic)
        load = Load(node.bootstrap, topic, rate)
        load.start()
        print(f"{rate:,} messages/s of {_BYTES} B, for {given.minutes:g} minutes", flush=True)
        deadline = time.monotonic() + 60 * given.minutes
        while time.monotonic() < deadline and not load.failures:
            time.sleep(given.every)
            looks.append(_look(node, Path(parent) / "node", load.take_late_ms()))
        load.end()
    return _judge(looks, load.failures)


def _judge(looks: Sequence[Look], failures: Sequence[str]) -> int:
    grown = []
    for field in fields(Look):
        values = [float(getattr(look, field.name)) for look in looks]
        if not values:
            continue
        grows = grew(field.name, values)
        grown += [field.name] if grows else []
        print(
            f"{field.name:10} {picture(values)} {min(values):,.4g} to {max(values):,.4g}, "
            f"last {values[-1]:,.4g}{'  GROWS' if grows else ''}"
        )
    for failure in failures:
        print(f"failed: {failure}")
    return 1 if grown or failures or not looks else 0


if __name__ == "__main__":
    sys.exit(main())
