"""Racks that go, and copies that move, on a cluster of real processes under load.

Three racks: the first has one storage node and one broker, the second one of each, the third two
storage nodes.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.cluster_processes import ClusterProcesses, running_cluster, wait_until
from tests.compat.raw import RawClient
from tests.process.checker import Workload
from tests.process.test_cluster import begin, judge

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode

PARTITIONS = 4
RACKS = {
    "storage-1": "north",
    "broker-1": "north",
    "storage-2": "south",
    "broker-2": "south",
    "storage-3": "west",
    "storage-4": "west",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    folder = tmp_path_factory.mktemp("racks")
    with running_cluster(folder, brokers=2, storage=4, racks=RACKS) as made:
        yield made


@pytest.fixture
def cluster(shared: ClusterProcesses) -> ClusterProcesses:
    shared.mend()
    return shared


def replicas(cluster: ClusterProcesses, topic: str) -> list[set[int]]:
    """The storage nodes of each partition's newest ledger."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [set(found[number].replicas) for number in sorted(found)]


def goes_on(workload: Workload) -> None:
    """Every partition takes records."""
    before = {number: len(found) for number, found in workload.acknowledged.items()}
    wait_until(
        "every partition goes on",
        lambda: all(len(f) >= before[n] + 50 for n, f in workload.acknowledged.items()),
    )


def test_a_rack_goes_and_comes_back(cluster: ClusterProcesses) -> None:
    """L16, L9, L10: every partition lies in three racks; one dies with all that is in it, and
    partitions go on in the two others. A consumer of any rack reads everything."""
    workload = begin(cluster, "spread", partitions=PARTITIONS)
    goes_on(workload)
    racks = {cluster.number(name): rack for name, rack in RACKS.items()}
    for nodes in replicas(cluster, "spread"):
        assert {racks[node] for node in nodes} == {"north", "south", "west"}

    for name in ("storage-1", "broker-1"):
        cluster.kill(name)
    goes_on(workload)
    wait_until("all lie elsewhere", lambda: 1 not in set().union(*replicas(cluster, "spread")))

    for name in ("storage-1", "broker-1"):
        cluster.restart(name)
    goes_on(workload)
    assert reads(cluster, "spread", rack="north") >= 50
    assert reads(cluster, "spread", rack="nowhere") >= 50
    judge(workload, cluster)


def reads(cluster: ClusterProcesses, topic: str, *, rack: str) -> int:
    """Records that a consumer of a rack gets of a partition before it has to wait."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": rack, "client.rack": rack}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(50, timeout=30)
    consumer.close()
    return sum(message.error() is None for message in found)


def test_copies_move_under_load_though_processes_die(cluster: ClusterProcesses) -> None:
    """K13, L10: the old ledgers of every partition move to the nodes that are named, while an owner
    and one of these nodes die. Then the node that they left dies for good, and one more."""
    workload = begin(cluster, "moved", partitions=PARTITIONS)
    goes_on(workload)
    first, target = {1, 2, 3}, {2, 3, 4}
    reassign(cluster, "moved", sorted(first))
    wait_until("they lie there", lambda: replicas(cluster, "moved") == [first] * PARTITIONS)
    goes_on(workload)

    reassign(cluster, "moved", sorted(target))
    cluster.kill("broker-1")
    cluster.kill("storage-4")
    goes_on(workload)
    cluster.restart("storage-4")
    cluster.restart("broker-1")
    reassign(cluster, "moved", sorted(target))
    wait_until("they have moved", lambda: not moving(cluster))
    assert replicas(cluster, "moved") == [target] * PARTITIONS

    goes_on(workload)
    for name in ("storage-1", "storage-3"):
        cluster.kill(name)
    goes_on(workload)
    judge(workload, cluster)


def reassign(cluster: ClusterProcesses, topic: str, nodes: list[int]) -> None:
    """Each partition shall lie on these nodes."""
    partitions = tuple(
        m.AlterPartitionReassignmentsRequestPartition(partition_index=n, replicas=tuple(nodes))
        for n in range(PARTITIONS)
    )
    named = m.AlterPartitionReassignmentsRequestTopic(name=topic, partitions=partitions)
    with RawClient(cluster.bootstrap.split(",")[1]) as client:
        answer = client.ask(m.AlterPartitionReassignmentsRequest(topics=(named,)))
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    for one in answer.responses[0].partitions:
        assert one.error_code == ErrorCode.NONE, one.error_message


def moving(cluster: ClusterProcesses) -> bool:
    """Whether anything lies elsewhere than it was asked for."""
    with RawClient(cluster.bootstrap.split(",")[1]) as client:
        answer = client.ask(m.ListPartitionReassignmentsRequest(topics=None))
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return bool(answer.topics)
