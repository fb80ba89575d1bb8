"""A cluster of real processes: etcd, three storage nodes, a carrier and one that stands by."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import RunningNode
from tests.etcd_server import free_ports, running_cluster
from tests.process.checker import Workload, check

PARTITIONS = 3


class Cluster:
    """Numbers 1 to 3 are storage nodes, 11 and 12 carriers."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.storage = {
            number: self._node(folder, endpoint, number, "storage") for number in (1, 2, 3)
        }
        ports = free_ports(2)
        self.carriers = {
            number: self._node(folder, endpoint, number, "carrier", kafka_port=str(port))
            for number, port in zip((11, 12), ports, strict=True)
        }
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    @staticmethod
    def _node(folder: Path, endpoint: str, number: int, role: str, **settings: str) -> RunningNode:
        return RunningNode(
            folder / f"node-{number}",
            {
                "node_node_id": str(number),
                "node_name": f"{role}-{number}",
                "node_roles": role,
                "coordination_kind": "etcd",
                "coordination_endpoints": endpoint,
                "log_ensemble": "3",
                "log_write_quorum": "3",
                "log_ack_quorum": "2",
                "log_ledger_bytes_max": "1MiB",
                "http_enabled": "false",
                **settings,
            },
        )

    def start(self) -> None:
        for node in self.storage.values():
            node.launch()
        for node in self.storage.values():
            node.wait_ready()
        self.carriers[11].start()
        self.carriers[12].launch()

    def end(self) -> None:
        for node in [*self.carriers.values(), *self.storage.values()]:
            node.kill()

    def log(self) -> str:
        return "".join(n.log() for n in [*self.carriers.values(), *self.storage.values()])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path / "etcd", size=1) as etcd:
        made = Cluster(tmp_path, etcd.endpoints[0])
        try:
            made.start()
            yield made
        finally:
            made.end()


def test_any_one_process_dies_and_nothing_is_lost(cluster: Cluster) -> None:
    """L1, L2, L4, L9, L10, K6, B1, R2: storage nodes and the carrier die in turn, under load."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(30)
    workload = Workload(cluster.bootstrap, "t", partitions=PARTITIONS)
    workload.start()
    for number in (1, 2, 3):
        workload.wait_for(workload.acknowledged_count + rng.randint(500, 3000))
        cluster.storage[number].kill()
        workload.wait_for(workload.acknowledged_count + 2000)
        cluster.storage[number].start()
    cluster.carriers[11].kill()
    cluster.carriers[12].wait_ready()
    workload.wait_for(workload.acknowledged_count + 2000)
    cluster.storage[2].pause()
    workload.wait_for(workload.acknowledged_count + 2000)
    cluster.storage[2].resume()
    cluster.carriers[11].launch()
    cluster.carriers[12].stop()
    cluster.carriers[11].wait_ready()
    workload.wait_for(workload.acknowledged_count + 2000)
    workload.finish()
    assert workload.errors == []
    read = sum(check(workload, cluster.bootstrap, "t", p) for p in range(PARTITIONS))
    assert read == workload.acknowledged_count == sum(workload.sent.values())
    assert "met a defect" not in cluster.log()
    assert "Traceback" not in cluster.log()


def test_a_carrier_that_was_paused_can_not_write_any_more(cluster: Cluster) -> None:
    """L9: it wakes up after its successor took over; what it tries is refused, and it ends."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", 1)])["t"].result(30)
    workload = Workload(cluster.bootstrap, "t", partitions=1)
    workload.start()
    workload.wait_for(2000)
    cluster.carriers[11].pause()
    cluster.carriers[12].wait_ready()
    workload.wait_for(workload.acknowledged_count + 1000, seconds_max=120)
    cluster.carriers[11].resume()
    assert cluster.carriers[11].wait() != 0
    workload.wait_for(workload.acknowledged_count + 1000)
    workload.finish()
    assert workload.errors == []
    assert check(workload, cluster.bootstrap, "t", 0) == workload.acknowledged_count
