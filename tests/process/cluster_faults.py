"""Faults of every kind on a cluster of processes, under the load of a checker.

A fault does its harm and returns how to heal it. Each leaves enough of a cluster that acknowledged
records stay readable and writes go on: three brokers, three storage nodes, three members of etcd.
"""

import random
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster_processes import ClusterProcesses, wait_until
from tests.network_links import CLIENT
from tests.process.checker import Workload

PARTITIONS = 6

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
