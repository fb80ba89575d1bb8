"""Due records on three brokers, whose owners are killed while records wait and become due.

`DUE_CLUSTER_RECORDS` sets how many are sent (default 150), `DUE_CLUSTER_KILLS` how many owners are
killed meanwhile (default 2).
"""

import os
import random
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from tests.cluster_processes import ClusterProcesses, running_timelines
from tests.database_servers import PostgresServer
from tests.process.due.test_due_node import make_topic, read

RECORDS = int(os.environ.get("DUE_CLUSTER_RECORDS", "150"))
KILLS = int(os.environ.get("DUE_CLUSTER_KILLS", "2"))
WAIT_S = 90.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def owner_of(cluster: ClusterProcesses, topic: str, killed: list[str]) -> str:
    """The broker that has the topic's partition, when it is none of those that were killed."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        found = admin.list_topics(topic, timeout=WAIT_S)
        leader = found.brokers.get(found.topics[topic].partitions[0].leader)
        if leader is not None:
            addresses = cluster.bootstrap.split(",")
            name = f"broker-{addresses.index(f'{leader.host}:{leader.port}') + 1}"
            if name not in killed:
                return name
        time.sleep(0.05)
    raise AssertionError("the partition has no owner")


def test_once_never_early_and_in_order_though_owners_are_killed(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """K11, R2: another broker goes on with what waits, and what its owner had begun; of one key
    in order of due time, if they were stored by then."""
    seed = int(os.environ.get("DUE_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed={seed}")
    rng = random.Random(seed)
    due: dict[bytes, int] = {}
    stored_ms: dict[bytes, int] = {}

    def delivered(error: KafkaException | None, message: Message) -> None:
        assert error is None, error
        stored_ms[message.value() or b""] = now_ms()

    dsn = postgres_server.create_database().dsn
    with running_timelines(tmp_path, dsn) as cluster:
        make_topic(cluster.bootstrap, "due", 1, message_timestamp_type="LogAppendTime")
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": int(WAIT_S * 1000),
            }
        )
        kills = sorted(rng.sample(range(RECORDS // 4, RECORDS), KILLS))
        killed: list[str] = []
        for number in range(RECORDS):
            value = b"%d" % number
            due[value] = now_ms() + rng.choice([0, 500, 2_000, 6_000])
            headers = {"dovetail-due": str(due[value])}
            producer.produce("due", value, key=b"k", headers=headers, on_delivery=delivered)
            producer.poll(0.01)
            if number in kills:
                killed.append(owner_of(cluster, "due", killed))
                cluster.kill(killed[-1])
        assert producer.flush(WAIT_S) == 0
        found = read(cluster.bootstrap, "due", RECORDS)

    assert len(set(killed)) == KILLS
    assert Counter(value for value, _ in found) == Counter(due.keys())
    assert not [value for value, at_ms in found if at_ms < due[value]]
    timely = [value for value, _ in found if stored_ms[value] < due[value]]
    assert timely
    for before, after in pairwise(timely):
        assert due[before] <= due[after], (before, after)
