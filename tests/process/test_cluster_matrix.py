"""Faults of every kind on a whole cluster, one after another and mixed, under load and a checker.

Three brokers, three storage nodes, three members of etcd, each in a network of its own; one such
cluster serves all tests, and each has a topic of its own. The short run has every fault once;
`make soak` draws as many as it is told, some at the same time.
"""

import contextlib
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from tests.cluster_processes import ClusterProcesses, running_cluster, wait_until
from tests.fuzz.hostile_client import batch, produce_request
from tests.process.checker import check_all
from tests.process.cluster_faults import (
    FAULTS,
    PARTITIONS,
    Trial,
    kill_a_broker,
    kill_a_storage_node,
    pause_a_broker,
    pause_a_storage_node,
)
from tests.process.direct_reader import fetch_request, fetched_end

from dovetail.errors import Unavailable
from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode

#: Faults drawn at random, beside the short run that has each once.
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "0"))


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
    # What is written here is not the workload's, so it is read alone.
    read = fetch_request(trial.topic, 0, 0, wait_ms=0)
    owner = next(n for n in trial.cluster.brokers if trial.cluster.number(n) == before[0])
    assert fetched_end(_asked(trial, owner, ApiKey.FETCH, read))[0] is ErrorCode.NONE
    for member in trial.cluster.etcd:
        trial.cluster.pause(member)
    trial.progress()  # The leases are still good.
    for broker in trial.cluster.brokers:
        wait_until(
            f"{broker} says that it has no lease",
            lambda broker=broker: any("no lease" in r for r in trial.cluster.ready(broker)[1]),
        )
    for broker in trial.cluster.brokers:
        assert not _serves(trial, broker)
    for member in trial.cluster.etcd:
        trial.cluster.resume(member)
    trial.progress()
    for broker in trial.cluster.brokers:
        trial.cluster.await_ready(broker)
    assert set(trial.leaders()) == set(before)
    judge(trial)


def _serves(trial: Trial, broker: str) -> bool:
    """Whether a broker lets somebody read or write any partition, and does not send them away."""
    codes: set[ErrorCode] = set()
    for partition in range(PARTITIONS):
        read = fetch_request(trial.topic, partition, 0, wait_ms=0)
        written = produce_request(trial.topic, batch(1), partition=partition)
        with contextlib.suppress(Unavailable):
            codes.add(fetched_end(_asked(trial, broker, ApiKey.FETCH, read))[0])
        with contextlib.suppress(Unavailable):
            answer = _asked(trial, broker, ApiKey.PRODUCE, written)
            codes.add(ErrorCode(answer.responses[0].partition_responses[0].error_code))
    return ErrorCode.NONE in codes


def _asked(trial: Trial, broker: str, key: ApiKey, request: Any) -> Any:
    """Raises `Unavailable` if the broker closes the connection."""
    connection = Connection(trial.cluster.address(broker), client_id="asks", timeout_s=60)
    try:
        return connection.call(key, request)
    finally:
        connection.close()


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
