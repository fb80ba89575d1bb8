"""Consumer groups across the death of the node that coordinates them."""

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import NodeFactory

RECORDS = 200


def consumer_of(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def take(consumer: Consumer, count: int) -> list[int]:
    """The next records' numbers; commits them."""
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=0.5):
            if message.error() is None:
                found.append(int(message.value()))
    consumer.commit(asynchronous=False)
    return found


def test_a_group_goes_on_after_the_node_was_killed(node_factory: NodeFactory) -> None:
    """K7, L13: a member keeps its place without a rebalance; positions are those acknowledged."""
    node = node_factory()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", 1)])["t"].result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for number in range(RECORDS):
        producer.produce("t", str(number))
    assert producer.flush(30) == 0

    assignments: list[int] = []
    consumer = consumer_of(node.bootstrap)
    consumer.subscribe(["t"], on_assign=lambda _, parts: assignments.append(len(parts)))
    seen = take(consumer, 50)
    for _ in range(3):
        node.kill()
        node.start()
        seen += take(consumer, 50)
    assert seen == list(range(RECORDS))
    assert assignments == [1], "the group was rebalanced"
    consumer.close()

    node.kill()
    node.start()
    reader = consumer_of(node.bootstrap)
    committed = reader.committed([TopicPartition("t", 0)], timeout=30)
    assert committed[0].offset == RECORDS
    reader.close()
