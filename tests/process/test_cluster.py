"""A cluster of real processes: etcd, three storage nodes, a carrier and one that stands by."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses, running_cluster
from tests.network_links import CLIENT
from tests.process.checker import Workload, check

PARTITIONS = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path, brokers=2) as made:
        yield made


def begin(cluster: ClusterProcesses, *, partitions: int) -> Workload:
    """A topic, and a producer that writes to it until it is told to finish."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", partitions)])["t"].result(30)
    workload = Workload(cluster.bootstrap, "t", partitions=partitions)
    workload.start()
    return workload


def serving(cluster: ClusterProcesses) -> str:
    """A broker that serves clients."""
    return next(name for name in cluster.brokers if cluster.ready(name)[0])


def test_any_one_process_dies_and_nothing_is_lost(cluster: ClusterProcesses) -> None:
    """L1, L2, L4, L9, L10, K6, B1, R2: storage nodes and carriers die in turn, under load."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    workload = begin(cluster, partitions=PARTITIONS)
    for name in cluster.storage:
        workload.wait_for(workload.acknowledged_count + rng.randint(500, 3000))
        cluster.kill(name)
        workload.wait_for(workload.acknowledged_count + 2000)
        cluster.restart(name)
    first = serving(cluster)
    other = next(name for name in cluster.brokers if name != first)
    cluster.kill(first)
    cluster.await_ready(other)
    workload.wait_for(workload.acknowledged_count + 2000)
    cluster.pause("storage-2")
    workload.wait_for(workload.acknowledged_count + 2000)
    cluster.resume("storage-2")
    cluster.restart(first)
    assert cluster.stop(other) == 0
    cluster.await_ready(first)
    workload.wait_for(workload.acknowledged_count + 2000)
    workload.finish()
    assert workload.errors == []
    read = sum(check(workload, cluster.bootstrap, "t", p) for p in range(PARTITIONS))
    assert read == workload.acknowledged_count == sum(workload.sent.values())
    assert "met a defect" not in cluster.log()
    assert "Traceback" not in cluster.log()


def test_a_carrier_that_was_paused_can_not_write_any_more(cluster: ClusterProcesses) -> None:
    """L9: it wakes up after its successor took over, and finds requests of clients that waited
    for it; what it tries is refused, and it ends.
    """
    workload = begin(cluster, partitions=1)
    workload.wait_for(2000)
    first = serving(cluster)
    other = next(name for name in cluster.brokers if name != first)
    cluster.pause(first)
    cluster.await_ready(other)
    cluster.resume(first)
    assert cluster.wait_end(first) != 0
    workload.wait_for(workload.acknowledged_count + 1000)
    workload.finish()
    assert workload.errors == []
    assert check(workload, cluster.bootstrap, "t", 0) == workload.acknowledged_count


def test_a_carrier_behind_a_cut_is_replaced(cluster: ClusterProcesses) -> None:
    """L9, R2: cut off from etcd and storage while clients still reach it; nothing is lost."""
    workload = begin(cluster, partitions=1)
    workload.wait_for(1000)
    first = serving(cluster)
    other = next(name for name in cluster.brokers if name != first)
    cluster.network.isolate(first, but=(CLIENT,))
    cluster.await_ready(other)
    workload.wait_for(workload.acknowledged_count + 1000, seconds_max=120)
    cluster.network.heal()
    workload.wait_for(workload.acknowledged_count + 1000)
    workload.finish()
    assert workload.errors == []
    assert check(workload, cluster.bootstrap, "t", 0) == workload.acknowledged_count
