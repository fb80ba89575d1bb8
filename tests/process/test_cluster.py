"""A cluster of real processes: etcd, three storage nodes and two brokers that share the work.

One cluster serves all tests; each has topics of its own and finds every process alive.
"""

import random
from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses, running_cluster, wait_until
from tests.compat import test_share_groups as share
from tests.compat.test_transactions import committed
from tests.network_links import CLIENT
from tests.process.checker import Workload, check_all
from tests.process.direct_reader import DirectReader, fetch_request, fetched_end
from tests.process.transformer import Transformer

from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode

PARTITIONS = 3

#: How long a lease is by default.
LEASE_MS = 3000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), brokers=2) as made:
        yield made


@pytest.fixture
def cluster(shared: ClusterProcesses) -> ClusterProcesses:
    shared.mend()
    return shared


def begin(cluster: ClusterProcesses, topic: str, *, partitions: int = 1) -> Workload:
    """A topic, and a producer that writes to it until it is told to finish."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    workload = Workload(cluster.bootstrap, topic, partitions=partitions)
    workload.start()
    return workload


def owner_and_other(cluster: ClusterProcesses, topic: str) -> tuple[str, str]:
    """The broker that leads partition 0, and the one that can take it over."""
    owner = cluster.leader(topic, 0)
    return owner, next(name for name in cluster.brokers if name != owner)


def await_takeover(cluster: ClusterProcesses, topic: str, other: str) -> None:
    """Waits until the other one says that it leads partition 0."""
    wait_until(f"{other} leads", lambda: cluster.leader(topic, 0, asked=other) == other)


def judge(workload: Workload, cluster: ClusterProcesses) -> None:
    """Ends the load: nothing is lost, changed, doubled or out of order, and nobody met a defect."""
    workload.finish()
    assert workload.errors == []
    assert check_all(workload, cluster.bootstrap) == workload.acknowledged_count
    assert "met a defect" not in cluster.log()
    assert "Traceback" not in cluster.log()


def quiet_partition(cluster: ClusterProcesses, owner: str) -> int:
    """A partition without records that this broker leads."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("quiet", 2)])["quiet"].result(30)
    return next(number for number in range(2) if cluster.leader("quiet", number) == owner)


def test_any_one_process_dies_and_nothing_is_lost(cluster: ClusterProcesses) -> None:
    """L1, L2, L4, L9, L10, K6, B1, R2: storage nodes and brokers die in turn, under load."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    workload = begin(cluster, "dying", partitions=PARTITIONS)
    for name in cluster.storage:
        workload.wait_for(workload.acknowledged_count + rng.randint(100, 600))
        cluster.kill(name)
        workload.wait_for(workload.acknowledged_count + 500)
        cluster.restart(name)
    owner, other = owner_and_other(cluster, "dying")
    cluster.kill(owner)
    await_takeover(cluster, "dying", other)
    workload.wait_for(workload.acknowledged_count + 500)
    cluster.pause("storage-2")
    workload.wait_for(workload.acknowledged_count + 500)
    cluster.resume("storage-2")
    cluster.restart(owner)
    assert cluster.stop(other) == 0
    await_takeover(cluster, "dying", owner)
    workload.wait_for(workload.acknowledged_count + 500)
    judge(workload, cluster)


def test_transactions_survive_the_death_of_brokers(cluster: ClusterProcesses) -> None:
    """K8: consumed, transformed and produced exactly once while brokers die and come back."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("from", 1), NewTopic("into", PARTITIONS)])["into"].result(30)
    source = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    wanted: list[bytes] = []
    transformer = Transformer(cluster.bootstrap, "from", "into", partitions=PARTITIONS)
    transformer.start()
    for name in [*cluster.brokers]:
        begun = len(wanted)
        wanted += [f"{number}".encode() for number in range(begun, begun + 150)]
        for value in wanted[begun:]:
            source.produce("from", value, partition=0)
        assert source.flush(30) == 0
        transformer.wait_for(begun + 30)  # the rest is on its way when the broker dies
        cluster.kill(name)
        transformer.wait_for(len(wanted))
        cluster.restart(name)
    transformer.finish()

    found = committed(cluster.bootstrap, "into", PARTITIONS)
    assert found == sorted(wanted), f"{len(found)} of {len(wanted)}; {transformer.failures}"
    assert "met a defect" not in cluster.log()


def test_share_groups_survive_the_death_of_a_broker(cluster: ClusterProcesses) -> None:
    """K10: owner, coordinator or both die: what was accepted is not delivered again, and what
    somebody had is."""
    names = [f"queue-{number}" for number in range(3)]
    for name in names:
        share.make_topic(cluster, name, {})
        share.produce(cluster, name, *[b"%d" % number for number in range(10)])
    holders = []
    for name in names:
        holder = share.explicit(cluster, name)
        for message in share.read(holder, 10):
            if (message.offset() or 0) % 2 == 0:
                holder.acknowledge(message, AcknowledgeType.ACCEPT)
        assert all(error is None for error in holder.commit_sync().values())
        holders.append(holder)

    owner, other = owner_and_other(cluster, names[0])
    cluster.kill(owner)
    for holder in holders:  # Where the owner lives on, it gives back what it has.
        holder.close()
    await_takeover(cluster, names[0], other)
    for name in names:
        taker = share.member(cluster, name)
        found = sorted(int(message.value() or b"") for message in share.read(taker, 5))
        assert found == [1, 3, 5, 7, 9]
        taker.commit_sync()
        assert share.poll(taker, 0.3) == []
        taker.close()
    assert "met a defect" not in cluster.log()
    assert "Traceback" not in cluster.log()


def test_replicas_are_the_storage_nodes(cluster: ClusterProcesses) -> None:
    """K13: those that hold a partition are shown, and which of them are away."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    brokers = set(admin.list_topics(timeout=30).brokers)
    workload = begin(cluster, "shown")
    workload.wait_for(10)

    def shown() -> tuple[set[int], set[int]]:
        found = admin.list_topics("shown", timeout=30).topics["shown"].partitions[0]
        assert found.leader in brokers
        return set(found.replicas), set(found.isrs)

    replicas, in_sync = shown()
    assert len(replicas) == 3 and in_sync == replicas
    assert not replicas & brokers
    cluster.kill("storage-2")
    wait_until("one is away", lambda: len(shown()[1]) < len(shown()[0]) or shown()[0] != replicas)
    cluster.restart("storage-2")
    judge(workload, cluster)


def test_a_broker_that_was_paused_cannot_write_any_more(cluster: ClusterProcesses) -> None:
    """L9: it wakes up after its successor took over, and finds requests of clients that waited
    for it; what it tries is refused, nothing is lost or doubled, and it tells no old end.
    """
    workload = begin(cluster, "paused")
    workload.wait_for(500)
    owner, other = owner_and_other(cluster, "paused")
    reader = DirectReader(cluster.address(owner), "paused", workload)
    reader.start()
    wait_until("the owner answers", lambda: reader.told > 10)
    cluster.pause(owner)
    await_takeover(cluster, "paused", other)
    cluster.resume(owner)
    workload.wait_for(workload.acknowledged_count + 500)
    wait_until("the old owner is back", lambda: reader.refused > 10)
    reader.finish()
    assert reader.old == []
    judge(workload, cluster)


def test_a_broker_behind_a_cut_is_replaced(cluster: ClusterProcesses) -> None:
    """L9, R2: cut off from everybody, it is replaced; when it is back, nothing is lost."""
    workload = begin(cluster, "cut")
    workload.wait_for(300)
    owner, other = owner_and_other(cluster, "cut")
    cluster.network.isolate(owner)
    await_takeover(cluster, "cut", other)
    workload.wait_for(workload.acknowledged_count + 300, seconds_max=120)
    cluster.network.heal()
    workload.wait_for(workload.acknowledged_count + 300)
    judge(workload, cluster)


def test_a_broker_that_was_replaced_tells_no_old_end(cluster: ClusterProcesses) -> None:
    """L9, R2: clients reach it all the time; it refuses while it is cut off, and when it is back.

    Also one who asked before the cut, and waits for records that another takes by now.
    """
    workload = begin(cluster, "replaced")
    workload.wait_for(300)
    owner, other = owner_and_other(cluster, "replaced")
    quiet = quiet_partition(cluster, owner)
    waiting = Connection(cluster.address(owner), client_id="waiting", timeout_s=60)
    reader = DirectReader(cluster.address(owner), "replaced", workload)
    reader.start()
    wait_until("the owner answers", lambda: reader.told > 10)
    asked = waiting.send(ApiKey.FETCH, fetch_request("quiet", quiet, 0, wait_ms=LEASE_MS + 3000))
    cluster.network.isolate(owner, but=[CLIENT])
    await_takeover(cluster, "replaced", other)
    workload.wait_for(workload.acknowledged_count + 300, seconds_max=120)
    code, _ = fetched_end(waiting.receive(asked))
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    waiting.close()
    refused = reader.refused
    cluster.network.heal()
    wait_until("the old owner is back", lambda: reader.refused > refused + 10)
    workload.wait_for(workload.acknowledged_count + 300)
    reader.finish()
    assert reader.old == []
    assert reader.sent_away > 0
    judge(workload, cluster)
