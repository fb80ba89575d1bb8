"""MirrorMaker 2 between a real Kafka and a node, in both directions."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat import jvm
from tests.compat.drivers.base import wait_for
from tests.compat.test_transactions import committed
from tests.kafka_server import KafkaServer, running_kafka

WAIT_S = 120.0
RECORDS = 300


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    with running_kafka(tmp_path / "kafka") as made:
        yield made


def fill(bootstrap: str, topic: str, group: str) -> list[bytes]:
    """A topic with records, half of which a group has read."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create() -> bool:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)], request_timeout=5)[topic].result(10)
        except KafkaException as error:
            return "exists" in str(error)
        return True

    wait_for(f"topic {topic}", create, WAIT_S)
    values = [f"{topic}/{number}".encode() for number in range(RECORDS)]
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0

    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    reader.commit(offsets=[TopicPartition(topic, 0, RECORDS // 2)], asynchronous=False)
    reader.close()
    return sorted(values)


def mirrored(bootstrap: str, topic: str) -> list[bytes]:
    """What is in a topic; nothing while it is not there."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if topic not in admin.list_topics(timeout=30).topics:
        return []
    return committed(bootstrap, topic, 1)


def position(bootstrap: str, topic: str, group: str) -> int:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    found = reader.committed([TopicPartition(topic, 0)], 30)[0].offset
    reader.close()
    return int(found)


def settings(kafka: str, node: str) -> dict[str, str]:
    made = {
        "clusters": "kafka, node",
        "kafka.bootstrap.servers": kafka,
        "node.bootstrap.servers": node,
        "kafka->node.enabled": "true",
        "kafka->node.topics": "orders",
        "node->kafka.enabled": "true",
        "node->kafka.topics": "answers",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
        "offset.lag.max": "0",
        "plugin.discovery": "service_load",
    }
    for name in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"):
        made[f"{name}.replication.factor"] = "1"
    for name in ("offset.storage", "status.storage", "config.storage"):
        made[f"{name}.replication.factor"] = "1"
    return made | {"replication.factor": "1"}


@pytest.mark.timeout(jvm.BUILD_SECONDS_MAX + 5 * WAIT_S)
def test_topics_and_positions_go_both_ways(
    node_only: None, bootstrap: str, kafka: KafkaServer, strangers: Path, tmp_path: Path
) -> None:
    """K7, K14, L17: what is in Kafka comes here and the other way, with the positions of groups."""
    orders = fill(kafka.bootstrap, "orders", "readers")
    answers = fill(bootstrap, "answers", "listeners")
    file = tmp_path / "mirror.properties"
    given = settings(kafka.bootstrap, bootstrap)
    file.write_text("".join(f"{name} = {value}\n" for name, value in given.items()))
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    mirror = jvm.JavaProgram(strangers, tmp_path / "mirror.log", main, str(file))
    try:
        for server, topic, wanted in (
            (bootstrap, "kafka.orders", orders),
            (kafka.bootstrap, "node.answers", answers),
        ):
            wait_for(
                topic,
                lambda server=server, topic=topic, wanted=wanted: mirrored(server, topic) == wanted,  # type: ignore[misc]
                WAIT_S,
            )
        for server, topic, group in (
            (bootstrap, "kafka.orders", "readers"),
            (kafka.bootstrap, "node.answers", "listeners"),
        ):
            wait_for(
                group,
                lambda server=server, topic=topic, group=group: (  # type: ignore[misc]
                    0 < position(server, topic, group) <= RECORDS // 2
                ),
                WAIT_S,
            )
    except TimeoutError as error:
        raise AssertionError(f"{error}; {mirror.said()}; {kafka.said()}") from error
    finally:
        mirror.kill()
