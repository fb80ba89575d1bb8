"""One Dovetail node beside one Apache Kafka, in turns, each alone on the machine.

Kafka runs twice: as it comes, which acknowledges what is in memory, and synced, which is equal to
our default (`log.flush.interval.messages=1`). Rounds are not mixed: every server is started anew
in each, so a JVM is as warm as its own load has made it; the best round of each counts.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from bench import client
from bench.cases.latency import latencies
from bench.node import Node
from bench.peers import kafka
from bench.peers.server import PeerMissing
from bench.run import Run, percentile
from bench.table import Line

OURS, UNSYNCED, SYNCED = "Dovetail", "Kafka, unsynced", "Kafka, synced"
#: Kafka's own default for a server of this size; what a JVM is given, it takes.
HEAP_MB = 1024
_MANY = 16
_WARM = 200

_LOWER = ("ms", "s", "MB", "s/million")


class Server(Protocol):
    """What both have."""

    bootstrap: str

    def cpu_s(self) -> float: ...

    def memory_mb(self) -> float: ...


@contextmanager
def started(name: str, folder: Path) -> Iterator[tuple[Server, float]]:
    """The server, and the seconds until it answered a client. Raises `PeerMissing`."""
    if name == OURS:
        node = Node(folder)
        try:
            begun = time.perf_counter()
            node.start()
            _await_answer(node.bootstrap)
            yield node, time.perf_counter() - begun
        finally:
            node.kill()
        return
    settings = kafka.SYNCED if name == SYNCED else {}
    server = kafka.KafkaServer(folder, settings, heap_mb=HEAP_MB)
    try:
        begun = time.perf_counter()
        server.start()
        _await_answer(server.bootstrap)
        yield server, time.perf_counter() - begun
    finally:
        server.kill()


def _await_answer(bootstrap: str) -> None:
    AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(
        timeout=client.STALL_S_MAX
    )


def measure(run: Run) -> list[Line]:
    found: dict[tuple[str, str], dict[str, float]] = {}
    missing = ""
    for at in range(run.rounds):
        for name in (OURS, UNSYNCED, SYNCED):
            folder = run.folder / f"{name.replace(', ', '-')}-{at}"
            try:
                with started(name, folder) as (server, ready_s):
                    values = _values(run, name, server, ready_s)
            except PeerMissing as error:
                missing = str(error)
                continue
            for key, value in values.items():
                best = min if key[1] in _LOWER else max
                known = found.setdefault(key, {})
                known[name] = best(known.get(name, value), value)
            shown = ", ".join(
                f"{what} {value:,.3g} {unit}" for (what, unit), value in values.items()
            )
            run.note(f"  {name}, round {at + 1}: {shown}")
    return _lines(found, missing)


def _lines(found: dict[tuple[str, str], dict[str, float]], missing: str) -> list[Line]:
    """Ours against both; the rule is held against the one that is as durable."""
    lines = []
    for (what, unit), values in found.items():
        for peer in (SYNCED, UNSYNCED):
            lower = unit in _LOWER
            ruled = peer == SYNCED and what != "ready"
            lines.append(
                Line(
                    "k beside Kafka",
                    what,
                    values.get(OURS),
                    unit,
                    peer,
                    values.get(peer),
                    ratio_min=1.0 if ruled and not lower else None,
                    ratio_max=1.0 if ruled and lower else None,
                    note=missing,
                )
            )
    return lines


def _values(run: Run, name: str, server: Server, ready_s: float) -> dict[tuple[str, str], float]:
    messages = run.sized(2_000_000, quick=100_000)
    found = {("ready", "s"): ready_s}

    def rate(what: str, unit: str, amount: float, work: Callable[[], client.Span]) -> None:
        run.step(f"{name}: {what}")
        before = server.cpu_s()
        found[what, unit] = amount / work().seconds
        if unit == "msg/s":
            found[f"processor, {what}", "s/million"] = (server.cpu_s() - before) / amount * 1e6

    one = client.create_topic(server.bootstrap, "one")
    rate(
        "produce 100 B, 1 partition",
        "msg/s",
        messages,
        lambda: _produce(server, one, messages, 100),
    )
    rate(
        "consume 100 B, 1 partition",
        "msg/s",
        messages,
        lambda: client.consume(server.bootstrap, one, messages=messages),
    )
    for partitions, size in ((1, 1024), (_MANY, 100), (_MANY, 1024)):
        count = messages * 100 // size
        topic = client.create_topic(server.bootstrap, "more", partitions=partitions)
        rate(
            f"produce {size} B, {partitions} partitions",
            "MB/s",
            count * size / 1e6,
            partial(_produce, server, topic, count, size),
        )

    run.step(f"{name}: latency")
    end_to_end = latencies(server.bootstrap, run.sized(10_000, quick=2_000))[_WARM:]
    singly = one_at_a_time(server.bootstrap, run.sized(4_000, quick=600))[_WARM:]
    for percent in (50, 99):
        found[f"end to end at 1000/s, p{percent}", "ms"] = percentile(end_to_end, percent)
        found[f"one at a time, p{percent}", "ms"] = percentile(singly, percent)
    found["memory after all that", "MB"] = server.memory_mb()
    return found


def _produce(server: Server, topic: str, messages: int, size: int) -> client.Span:
    return client.produce(
        server.bootstrap,
        topic,
        messages=messages,
        message_bytes=size,
        idempotent=True,
        by_batch=True,
    )


def one_at_a_time(bootstrap: str, messages: int) -> list[float]:
    """Milliseconds from each message to its acknowledgement, before the next is sent."""
    topic = client.create_topic(bootstrap, "singly")
    sender = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    sender.list_topics(topic, timeout=client.STALL_S_MAX)
    found = []
    for _ in range(messages):
        begun = time.perf_counter()
        sender.produce(topic, b"x" * 100)
        if sender.flush(client.STALL_S_MAX):
            raise client.NotDelivered("a message without an answer")
        found.append((time.perf_counter() - begun) * 1000)
    return found
