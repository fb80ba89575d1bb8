"""Transactions: what they cost beside plain produce, and beside a Kafka that syncs.

*In bulk*: messages of 100 bytes to one partition, a commit every 100 ms, against the same client
without transactions. *One*: a message to each of two partitions and a group's position, from
`begin` to the end of `commit`, one after another. Every round measures both servers anew, each on a
fresh folder of the same disk; the best of each counts.
"""

import time
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import client
from bench.node import Node
from bench.peers import kafka
from bench.peers.server import PeerMissing
from bench.run import Run, percentile
from bench.table import Line

_CASE = "g transactions"
_BYTES = 100
_BATCH = 1000
_COMMIT_S = 0.1
_WARM = 30
#: What is required.
_PART_OF_IDEMPOTENT = 0.8
_TIMES_PEER_RATE = 1.0
_TIMES_PEER_P50 = 1.5
_PEER = f"Kafka {kafka.VERSION}, synced"


class _Best:
    """The best of the rounds of one server."""

    def __init__(self) -> None:
        self.idempotent = self.transactional = 0.0
        self.p50_ms: float | None = None

    def note(self, run: Run, bootstrap: str) -> None:
        """Measures once more."""
        messages = run.sized(2_000_000, quick=100_000)
        topic = client.create_topic(bootstrap, "plain")
        # Java compiles what runs often, and connections are made.
        warm = run.sized(200_000, quick=1_000)
        client.produce(bootstrap, topic, messages=warm, message_bytes=_BYTES, idempotent=True)
        span = client.produce(
            bootstrap,
            topic,
            messages=messages,
            message_bytes=_BYTES,
            idempotent=True,
            by_batch=True,
        )
        self.idempotent = max(self.idempotent, messages / span.seconds)
        self.transactional = max(self.transactional, _in_bulk(bootstrap, messages))
        found = percentile(_one_by_one(bootstrap, run.sized(500, quick=50)), 50)
        self.p50_ms = found if self.p50_ms is None else min(self.p50_ms, found)


def measure(run: Run) -> list[Line]:
    ours, peer, why = _Best(), _Best(), ""
    for at in range(run.rounds):
        with Node(run.folder / f"transactions-{at}") as node:
            run.step("Dovetail, transactions")
            ours.note(run, node.bootstrap)
        try:
            run.step(f"{_PEER}, transactions")
            with kafka.running(run.folder / f"transactions-kafka-{at}") as server:
                peer.note(run, server.bootstrap)
        except PeerMissing as error:
            why = str(error)

    bulk, unit = "produce, a transaction of 100 ms", "messages/s"
    return [
        Line(
            _CASE,
            bulk,
            ours.transactional,
            unit,
            "the same without transactions, idempotent",
            ours.idempotent,
            ratio_min=_PART_OF_IDEMPOTENT,
        ),
        Line(
            _CASE,
            bulk,
            ours.transactional,
            unit,
            _PEER,
            peer.transactional or None,
            ratio_min=_TIMES_PEER_RATE,
            note=why,
        ),
        Line(_CASE, "produce, idempotent", ours.idempotent, unit, _PEER, peer.idempotent or None),
        Line(
            _CASE,
            "one transaction: 2 partitions and a position, p50",
            ours.p50_ms,
            "ms",
            _PEER,
            peer.p50_ms,
            ratio_max=_TIMES_PEER_P50,
            note=why,
        ),
    ]


def _producer(bootstrap: str, **settings: object) -> Producer:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    given = {"bootstrap.servers": bootstrap, "acks": "all", "transactional.id": name, **settings}
    made = Producer({**given, "delivery.report.only.error": True})
    made.init_transactions(client.STALL_S_MAX)
    return made


def _in_bulk(bootstrap: str, messages: int) -> float:
    """Messages a second, all committed."""
    topic = client.create_topic(bootstrap, "bulk")
    sender = _producer(bootstrap, **client.THROUGHPUT)
    failures: list[str] = []

    def on_failure(error: object, _: object) -> None:
        failures.append(str(error))

    batch = [{"value": b"x" * _BYTES} for _ in range(_BATCH)]
    taken = 0
    started = time.perf_counter()
    while taken < messages:
        sender.begin_transaction()
        until = time.perf_counter() + _COMMIT_S
        while taken < messages and time.perf_counter() < until:
            wanted = batch[: messages - taken]
            count = sender.produce_batch(topic, wanted, on_delivery=on_failure)
            taken += count
            sender.poll(0.01 if count < len(wanted) else 0)
        sender.commit_transaction(client.STALL_S_MAX)
    ended = time.perf_counter()
    if failures:
        raise client.NotDelivered(f"refused: {failures[:3]}")
    return messages / (ended - started)


def _one_by_one(bootstrap: str, transactions: int) -> list[float]:
    """Milliseconds of each, after some to warm up."""
    topic = client.create_topic(bootstrap, "single", partitions=2)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    reader.assign([TopicPartition(topic, 0, 0)])
    sender = _producer(bootstrap, **{"linger.ms": 0})
    found = []
    for at in range(_WARM + transactions):
        began = time.perf_counter()
        sender.begin_transaction()
        for partition in (0, 1):
            sender.produce(topic, b"x" * _BYTES, partition=partition)
        position = [TopicPartition(topic, 0, at)]
        group = reader.consumer_group_metadata()
        sender.send_offsets_to_transaction(position, group, client.STALL_S_MAX)
        sender.commit_transaction(client.STALL_S_MAX)
        found.append((time.perf_counter() - began) * 1000)
    reader.close()
    return found[_WARM:]
