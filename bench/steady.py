"""`make soak`: hours of the same load on one node, and a picture of what it holds meanwhile.

    python -m bench.steady [--minutes 60] [--every 30] [--rate 0] [--folder FOLDER]

A producer, a consumer in a group that commits, a timeline with its consumer, and retention that
lets old ledgers go. The rate is half of what went in and came out at the same time, as fast as the
same clients could, in the first seconds, unless one is given. Memory, file handles, threads, disk
and the p99 of end-to-end latency are looked at again and again, and printed as lines of bars. Exit
code 1 if one of them grew from the second quarter of the run, when caches are full, to the last, or
if the consumer missed a message.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import queue
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

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
    "DOVETAIL_LOG_RETENTION_BYTES": "512MiB",
    "DOVETAIL_LOG_RETENTION_CHECK_MS": "5s",
}
_BYTES = 100
#: As fast as it goes for so long, of which the first part warms up.
_PROBE_S, _WARM_S = 15.0, 5.0
#: The queue of the sender: what is more than this is behind, and waits.
_WAITING_MAX = 200_000
_PER_TICK_S = 0.01
_TIMELINE_RATE = 20
_STAMP = struct.Struct(">q")
_PROCESSES = multiprocessing.get_context("spawn")
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


class _Read(NamedTuple):
    """What one call of the consumer gave."""

    arrived: int
    missed: int
    late_ms: Sequence[float]


class Load:
    """A process that sends, one that reads, and a timeline, until they are told to end."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._ending = _PROCESSES.Event()
        self._news: multiprocessing.Queue[_Read] = _PROCESSES.Queue()
        self._failed: multiprocessing.Queue[str] = _PROCESSES.Queue()
        self.arrived = 0
        self.missed = 0
        self._late_ms: list[float] = []
        arguments = (self._ending, self._failed, bootstrap, topic)
        self._running = [
            _PROCESSES.Process(target=_guarded, args=(_send, *arguments, rate)),
            _PROCESSES.Process(target=_guarded, args=(_read, *arguments, self._news)),
            _PROCESSES.Process(target=_guarded, args=(_timeline, *arguments)),
        ]

    def __enter__(self) -> "Load":
        for process in self._running:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        while any(process.is_alive() for process in self._running):
            self._hear(0.1)  # A process ends when what it has said has been taken.
        self._hear(0.1)

    def failures(self) -> list[str]:
        """What ended one of them."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._failed.get(timeout=0.1))
        return found

    def wait(self, seconds: float) -> list[float]:
        """Milliseconds from produce to consume of messages that arrived within these seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._hear(left)
        taken, self._late_ms = self._late_ms, []
        return taken

    def _hear(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            news = self._news.get(timeout=seconds)
            self.arrived += news.arrived
            self.missed += news.missed
            self._late_ms += news.late_ms


def _guarded(
    work: Callable[..., None], ending: Event, failed: "multiprocessing.Queue[str]", *given: object
) -> None:
    try:
        work(ending, *given)
    except Exception as error:
        failed.put(f"{work.__name__[1:]}: {error!r}")


def _send(ending: Event, bootstrap: str, topic: str, rate: int) -> None:
    """So many messages a second, or with 0 as many as are taken."""
    settings = {"acks": "all", "linger.ms": 5, "queue.buffering.max.messages": _WAITING_MAX}
    sender = Producer({"bootstrap.servers": bootstrap, **settings})
    rest, due = b"x" * (_BYTES - _STAMP.size), time.perf_counter()
    count = max(1, int(rate * _PER_TICK_S)) if rate else _WAITING_MAX // 10
    while not ending.is_set():
        message = _STAMP.pack(time.perf_counter_ns()) + rest
        taken = sender.produce_batch(topic, [{"value": message}] * count)
        sender.poll(0)
        while taken < count and not ending.is_set():  # It is behind; the latency says so.
            sender.poll(0.01)
            taken += sender.produce_batch(topic, [{"value": message}] * (count - taken))
        due += _PER_TICK_S if rate else 0.0
        time.sleep(max(0.0, due - time.perf_counter()))
    sender.flush(client.STALL_S_MAX)


def _read(ending: Event, bootstrap: str, topic: str, news: "multiprocessing.Queue[_Read]") -> None:
    settings = {"group.id": topic, "auto.offset.reset": "earliest", **client.READING}
    reader = Consumer({"bootstrap.servers": bootstrap, **settings})
    reader.subscribe([topic])
    expected = 0
    while not ending.is_set():
        found = reader.consume(5000, timeout=0.2)
        if not found:
            continue
        now_ns = time.perf_counter_ns()
        stamps = [_STAMP.unpack_from(one.value() or bytes(8))[0] for one in found[::200]]
        missed = (found[-1].offset() or 0) + 1 - expected - len(found)
        expected += missed + len(found)
        news.put(_Read(len(found), missed, [(now_ns - stamp) / 1e6 for stamp in stamps]))
    reader.close()


def _timeline(ending: Event, bootstrap: str, topic: str) -> None:
    asyncio.run(_schedule(ending, bootstrap, topic))


async def _schedule(ending: Event, bootstrap: str, topic: str) -> None:
    async with dovetail.connect(bootstrap) as node:
        line = node.timeline(topic)
        await line.create()

        @node.consumer(topic)
        async def handle(message: Message) -> None:
            pass

        running = asyncio.ensure_future(node.run())
        while not ending.is_set():
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


def _rate(bootstrap: str) -> int:
    """Half of what goes in and comes out at the same time."""
    with Load(bootstrap, client.create_topic(bootstrap, "probe"), rate=0) as load:
        load.wait(_WARM_S)
        before, since = load.arrived, time.monotonic()
        load.wait(_PROBE_S - _WARM_S)
        return int((load.arrived - before) / (time.monotonic() - since) / 2)


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
        rate = given.rate or _rate(node.bootstrap)
        print(f"{rate:,} messages/s of {_BYTES} B, for {given.minutes:g} minutes", flush=True)
        failures: list[str] = []
        with Load(node.bootstrap, topic, rate) as load:
            deadline = time.monotonic() + 60 * given.minutes
            while time.monotonic() < deadline and not failures:
                late_ms = load.wait(given.every)
                looks.append(_look(node, Path(parent) / "node", late_ms))
                failures = load.failures()
    if load.missed:
        failures.append(f"the consumer missed {load.missed:,} messages")
    print(f"{load.arrived:,} messages arrived")
    return _judge(looks, failures)


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
