"""A broker of three dies: how long a partition is out of reach, ours beside Kafka's.

Kafka: three KRaft nodes, each broker and controller, three copies, `min.insync.replicas=2`, synced
before it is acknowledged, as ours. Dovetail: one etcd, three storage nodes, three brokers. The
producer and what counts as an outage are those of `failover.py`. Both with their default times: a
session of 9 s at Kafka, a lease at ours; so the medians say what an operator gets, not which code
is faster.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import client
from bench.cases.failover import WELL, Probe
from bench.cases.kafka_one import HEAP_MB
from bench.local_cluster import LocalCluster
from bench.peers import kafka
from bench.peers.server import PeerMissing
from bench.run import Run
from bench.table import Line

_KILLS = 10
_COPIES = "3"
_SETTINGS = {
    **kafka.SYNCED,
    "default.replication.factor": _COPIES,
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": _COPIES,
    "transaction.state.log.replication.factor": _COPIES,
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": _COPIES,
    "share.coordinator.state.topic.min.isr": "2",
}


class KafkaCluster:
    """Three nodes."""

    def __init__(self, folder: Path) -> None:
        self.nodes = {
            seat.node_id: kafka.KafkaServer(
                folder / str(seat.node_id), _SETTINGS, seat=seat, heap_mb=HEAP_MB // 2
            )
            for seat in kafka.seats(3)
        }
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes.values())

    def leader(self, topic: str) -> int:
        """Who leads partition 0, as clients are told."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        known = admin.list_topics(topic, timeout=client.STALL_S_MAX).topics[topic]
        return int(known.partitions[0].leader)

    def await_whole(self, topic: str) -> None:
        """Returns when all copies of partition 0 are in sync."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + 2 * client.STALL_S_MAX
        while True:
            known = admin.list_topics(topic, timeout=client.STALL_S_MAX).topics[topic]
            if len(known.partitions[0].isrs) == len(self.nodes):
                return
            if time.monotonic() > deadline:
                raise client.NotDelivered("a copy of Kafka's does not come into sync")
            time.sleep(0.1)


@contextmanager
def _three(folder: Path) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(folder)
    try:
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            node.await_port()
        yield cluster
    finally:
        for node in cluster.nodes.values():
            node.kill()


def measure(run: Run) -> list[Line]:
    kills = run.sized(_KILLS, quick=2)
    with LocalCluster(run.folder / "ours") as cluster:
        topic = client.create_topic(cluster.bootstrap, "failover")

        def hurt() -> Callable[[], None]:
            cluster.kill(cluster.owner(topic, 0))
            return cluster.start

        ours = _outages(run, "Dovetail", cluster.bootstrap, topic, kills, hurt)
    missing, theirs = "", list[float]()
    try:
        theirs = _of_kafka(run, kills)
    except PeerMissing as error:
        missing = str(error)

    def line(what: str, of: Callable[[list[float]], float]) -> Line:
        peer = of(theirs) if theirs else None
        return Line("m failover", what, of(ours), "s", "Kafka, 3 nodes", peer, note=missing)

    return [
        line(f"outage after kill -9 of the leader, median of {kills}", _median),
        line("the same, longest", max),
    ]


def _median(found: list[float]) -> float:
    return sorted(found)[len(found) // 2]


def _of_kafka(run: Run, kills: int) -> list[float]:
    with _three(run.folder / "kafka") as cluster:
        topic = "failover"
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(client.STALL_S_MAX)
        cluster.await_whole(topic)

        def hurt() -> Callable[[], None]:
            node = cluster.nodes[cluster.leader(topic)]
            node.kill()

            def heal() -> None:
                node.start()
                cluster.await_whole(topic)

            return heal

        return _outages(run, "Kafka", cluster.bootstrap, topic, kills, hurt)


def _outages(
    run: Run,
    name: str,
    bootstrap: str,
    topic: str,
    kills: int,
    hurt: Callable[[], Callable[[], None]],
) -> list[float]:
    found = []
    with Probe(bootstrap, topic) as probe:
        for at in range(kills):
            probe.await_acknowledged(WELL)
            run.step(f"{name}: kill -9 of the leader, {at + 1} of {kills}")
            begun = time.perf_counter()
            heal = hurt()
            probe.await_acknowledged(WELL)
            found.append(probe.longest_silence(since=begun))
            run.note(f"  {name}, kill -9: {found[-1]:.2f} s")
            heal()
    return found
