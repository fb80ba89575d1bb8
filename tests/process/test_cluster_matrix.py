"""Faults of every kind on a whole cluster, one after another and mixed, under load and a checker.

Three brokers, three storage nodes, three members of etcd, each in a network of its own; one such
cluster serves all tests, and each has a topic of its own. The short run has every fault once;
`make soak` draws as many as it is told, some at the same time.
"""

import os
import random
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses, running_cluster, wait_until
from tests.network_links import CLIENT
from tests.process.checker import Workload, check_all

PARTITIONS = 6

#: Faults drawn at random, beside the short run that has each once.
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "0"))

#: Records that must be acknowledged before and after each fault.
PROGRESS = 600

Fault = Callable[["Trial"], Callable[[], None]]


class Trial:
    """A cluster under load, and what can be done to it."""

    def __init__(self, cluster: ClusterProcesses, topic: str, rng: random.Random) -> None:
        self.cluster = cluster
        self.topic = topic
        self.rng = rng
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        self.admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
        self.workload = Workload(cluster.bootstrap, topic, partitions=PARTITIONS)
        self.workload.start()

    def progress(self) -> None:
        """Every partition goes on."""
        before = self.counts()
        goal = PROGRESS // PARTITIONS
        wait_until(
            "every partition goes on",
            lambda: all(now >= before[p] + goal for p, now in self.counts().items()),
            told=lambda: f"from {before} to {self.counts()}, led by {self.leaders()}",
        )

    def counts(self) -> dict[int, int]:
        """Records acknowledged, by partition."""
        return {p: len(found) for p, found in self.workload.acknowledged.items()}

    def leaders(self) -> dict[int, int]:
        """Who leads each partition, as some broker says."""
        found: dict[int, int] = {}

        def look() -> bool:
            try:
                partitions = (
                    self.admin.list_topics(self.topic, timeout=5).topics[self.topic].partitions
                )
            except KafkaException:
                return False
            found.update({number: one.leader for number, one in partitions.items()})
            return all(leader >= 0 for leader in found.values())

        wait_until("every partition has a leader", look)
        return found

    def broker(self) -> str:
        """A broker that leads something."""
        number = self.rng.choice(sorted(self.leaders().values()))
        return next(n for n in self.cluster.brokers if self.cluster.number(n) == number)

    def storage(self) -> str:
        return self.rng.choice(self.cluster.storage)

    def lost_by(self, broker: str) -> None:
        """Waits until others lead what this broker led."""
        number = self.cluster.number(broker)
        wait_until(f"{broker} leads nothing", lambda: number not in self.leaders().values())


def kill_a_broker(trial: Trial) -> Callable[[], None]:
    return kill(trial, trial.broker())


def kill_a_storage_node(trial: Trial) -> Callable[[], None]:
    return kill(trial, trial.storage())


def kill_the_leader_of_etcd(trial: Trial) -> Callable[[], None]:
    return kill(trial, trial.cluster.etcd_leader())


def kill(trial: Trial, victim: str) -> Callable[[], None]:
    trial.cluster.kill(victim)
    return lambda: trial.cluster.restart(victim)


def pause_a_broker(trial: Trial) -> Callable[[], None]:
    """It wakes up long after its successors took over."""
    victim = trial.broker()
    trial.cluster.pause(victim)
    trial.lost_by(victim)
    return lambda: trial.cluster.resume(victim)


def pause_a_storage_node(trial: Trial) -> Callable[[], None]:
    victim = trial.storage()
    trial.cluster.pause(victim)
    return lambda: trial.cluster.resume(victim)


def isolate_a_broker(trial: Trial) -> Callable[[], None]:
    """Clients still reach it, and it reaches nobody."""
    victim = trial.broker()
    trial.cluster.network.isolate(victim, but=[CLIENT])
    trial.lost_by(victim)
    return trial.cluster.network.heal


def cut_a_broker_from_etcd(trial: Trial) -> Callable[[], None]:
    """It reaches all storage nodes and its clients, and its lease ends: only terms hold it back."""
    return cut_a_broker_from(trial, list(trial.cluster.etcd))


def cut_a_broker_from_storage(trial: Trial) -> Callable[[], None]:
    """It keeps its lease and can store nothing: it must hand on what it has."""
    return cut_a_broker_from(trial, trial.cluster.storage)


def cut_a_broker_from(trial: Trial, others: list[str]) -> Callable[[], None]:
    victim = trial.broker()
    for other in others:
        trial.cluster.network.cut(victim, other)
    trial.lost_by(victim)
    return trial.cluster.network.heal


def cut_answers_of_a_storage_node(trial: Trial) -> Callable[[], None]:
    """One way: what it is sent it stores, and nobody hears of it."""
    victim = trial.storage()
    for broker in trial.cluster.brokers:
        trial.cluster.network.cut(victim, broker, one_way=True)
    return trial.cluster.network.heal


def isolate_a_storage_node(trial: Trial) -> Callable[[], None]:
    trial.cluster.network.isolate(trial.storage())
    return trial.cluster.network.heal


def isolate_the_leader_of_etcd(trial: Trial) -> Callable[[], None]:
    trial.cluster.network.isolate(trial.cluster.etcd_leader())
    return trial.cluster.network.heal


def restart_a_broker_cleanly(trial: Trial) -> Callable[[], None]:
    return restart_cleanly(trial, trial.broker())


def restart_a_storage_node_cleanly(trial: Trial) -> Callable[[], None]:
    return restart_cleanly(trial, trial.storage())


def restart_cleanly(trial: Trial, victim: str) -> Callable[[], None]:
    assert trial.cluster.stop(victim) == 0
    return lambda: trial.cluster.restart(victim)


FAULTS: tuple[Fault, ...] = (
    kill_a_broker,
    pause_a_broker,
    kill_a_storage_node,
    isolate_a_broker,
    kill_the_leader_of_etcd,
    cut_a_broker_from_etcd,
    pause_a_storage_node,
    cut_a_broker_from_storage,
    cut_answers_of_a_storage_node,
    restart_a_broker_cleanly,
    isolate_a_storage_node,
    isolate_the_leader_of_etcd,
    restart_a_storage_node_cleanly,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), etcd_members=3) as made:
        yield made


@pytest.fixture
def trial(shared: ClusterProcesses, request: pytest.FixtureRequest) -> Trial:
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed={seed}")
    shared.mend()
    return Trial(shared, request.node.name, random.Random(seed))


def judge(trial: Trial) -> None:
    """Nothing is lost, changed, doubled or out of order, and no process met a defect."""
    trial.workload.finish()
    assert trial.workload.errors == []
    read = check_all(trial.workload, trial.cluster.bootstrap)
    assert read == trial.workload.acknowledged_count
    log = trial.cluster.log()
    assert "met a defect" not in log
    assert "Traceback" not in log


def test_every_fault_once(trial: Trial) -> None:
    """L1, L4, L9, L10, K4, K6, R2: each kind of fault, healed before the next."""
    for fault in FAULTS:
        print(fault.__name__)
        trial.progress()
        heal = fault(trial)
        trial.progress()
        heal()
    trial.progress()
    judge(trial)


def test_a_broker_and_a_storage_node_at_once(trial: Trial) -> None:
    """L9, L10, R2: recovery with a node missing, and groups that survive their coordinator (K7)."""
    consumer = Consumer(
        {
            "bootstrap.servers": trial.cluster.bootstrap,
            "group.id": "survivor",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 20_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([trial.topic])
    seen: dict[tuple[int, int], bytes] = {}

    def consume(goal: int) -> None:
        def look() -> bool:
            for message in consumer.consume(2000, timeout=0.2):
                if message.error() is None:
                    seen[message.partition(), message.offset()] = message.value()
            return len(seen) >= goal

        wait_until("the group goes on", look)
        wait_until("its positions are stored", lambda: _committed(consumer))

    trial.progress()
    consume(500)
    heals = [kill_a_broker(trial), kill_a_storage_node(trial)]
    consume(len(seen) + 500)
    trial.progress()
    for heal in heals:
        heal()
    for broker in trial.cluster.brokers:  # Whoever coordinates the group is among them.
        trial.progress()
        assert trial.cluster.stop(broker) == 0
        consume(len(seen) + 500)
        trial.cluster.restart(broker)
    trial.progress()
    consumer.close()
    judge(trial)
    for partition in range(PARTITIONS):
        offsets = sorted(offset for p, offset in seen if p == partition)
        assert offsets == list(range(len(offsets))), "the group skipped a record"


def _committed(consumer: Consumer) -> bool:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:
        return False
    return True


def test_etcd_is_away_for_longer_than_a_lease(trial: Trial) -> None:
    """D2, L1: owners go on as long as their lease allows, then refuse; all comes back by itself."""
    trial.progress()
    before = trial.leaders()
    for member in trial.cluster.etcd:
        trial.cluster.pause(member)
    trial.progress()  # The leases are still good.
    for broker in trial.cluster.brokers:
        wait_until(
            f"{broker} says that it has no lease",
            lambda broker=broker: any("no lease" in r for r in trial.cluster.ready(broker)[1]),
        )
    for member in trial.cluster.etcd:
        trial.cluster.resume(member)
    trial.progress()
    for broker in trial.cluster.brokers:
        trial.cluster.await_ready(broker)
    assert set(trial.leaders()) == set(before)
    judge(trial)


@pytest.mark.skipif(not ROUNDS, reason="a long run: make soak")
@pytest.mark.timeout(0)
def test_many_faults(trial: Trial) -> None:
    """R2: faults at random, a third of them with a second one before the first is healed."""
    for number in range(ROUNDS):
        trial.progress()
        first = trial.rng.choice(FAULTS)
        print(number, first.__name__, flush=True)
        heals = [first(trial)]
        if trial.rng.random() < 1 / 3 and first in (kill_a_broker, pause_a_broker):
            second = trial.rng.choice((kill_a_storage_node, pause_a_storage_node))
            print(number, "+", second.__name__, flush=True)
            heals.append(second(trial))
        trial.progress()
        for heal in heals:
            heal()
    trial.progress()
    judge(trial)
