"""A share group: four consumers on one partition, which accept what they have polled.

Records of 100 bytes lie in batches of 500. Each consumer is a process with librdkafka's share
consumer; what it polled is accepted by its next poll, in one acknowledgement for a batch. The clock
runs from the first record that anybody has to the last acknowledgement that is stored.

The peer is a real Kafka that syncs, on the same disk. The rule is met by three times its rate or by
an absolute one.
"""

import multiprocessing
import time
from multiprocessing.sharedctypes import Synchronized

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from bench import client
from bench.node import Node
from bench.peers import kafka
from bench.peers.server import PeerMissing
from bench.run import Run
from bench.table import Line

_CONSUMERS = 4
_BYTES = 100
_CASE = "f share groups"
#: What is required: the one or the other.
_RATE_MIN = 150_000
_TIMES_PEER = 3.0


def measure(run: Run) -> list[Line]:
    messages = run.sized(1_000_000, quick=100_000)
    rate, peer, why = 0.0, 0.0, ""
    for at in range(run.rounds):
        with Node(run.folder / f"share-{at}") as node:
            run.step("Dovetail, share group")
            rate = max(rate, _rate(node.bootstrap, messages))
        try:
            run.step("Kafka, share group")
            with kafka.running(run.folder / f"share-kafka-{at}") as server:
                peer = max(peer, _rate(server.bootstrap, messages))
        except PeerMissing as error:
            why = str(error)

    name, unit = f"{_CONSUMERS} consumers of a partition, accepted", "records/s"
    ratio_min = _TIMES_PEER if peer and rate >= _TIMES_PEER * peer else None
    return [
        Line(
            _CASE,
            name,
            rate,
            unit,
            f"Kafka {kafka.VERSION}, synced",
            peer or None,
            ratio_min=ratio_min,
            note=why,
        ),
        Line(_CASE, name, rate, unit, "limit", _RATE_MIN, ratio_min=None if ratio_min else 1.0),
    ]


def _rate(bootstrap: str, messages: int) -> float:
    topic = client.create_topic(bootstrap, "shared")
    _begin_at_the_start(bootstrap, topic)
    client.produce(bootstrap, topic, messages=messages, message_bytes=_BYTES, batch_messages=500)

    spawn = multiprocessing.get_context("spawn")
    left = spawn.Value("q", messages)
    times = spawn.Queue()
    consumers = [
        spawn.Process(target=_consume, args=(bootstrap, topic, left, times))
        for _ in range(_CONSUMERS)
    ]
    for consumer in consumers:
        consumer.start()
    spans = [times.get(timeout=4 * client.STALL_S_MAX) for _ in consumers]
    for consumer in consumers:
        consumer.join(client.STALL_S_MAX)
    used = [span for span in spans if span is not None]
    return messages / (max(end for _, end in used) - min(start for start, _ in used))


def _begin_at_the_start(bootstrap: str, group: str) -> None:
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(client.STALL_S_MAX)


def _consume(
    bootstrap: str, topic: str, left: "Synchronized[int]", times: "multiprocessing.Queue[object]"
) -> None:
    """One consumer, until all of them have everything; tells when it had its first and last."""
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0})
    consumer.subscribe([topic])
    started = ended = 0.0
    while left.value > 0:
        count = len(consumer.poll(0.2))
        if count:
            ended = time.monotonic()
            started = started or ended
            with left.get_lock():
                left.value -= count
    consumer.commit_sync()
    if started:
        ended = time.monotonic()
    consumer.close()
    times.put((started, ended) if started else None)
