"""Reads all of a topic, to the ends that a reader of an isolation level sees."""

import time
import uuid

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


def read_messages(
    bootstrap: str, topic: str, partitions: int, isolation: str, *, wait_s: float
) -> list[Message]:
    """Those of each partition in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Message] = []
    ended: set[int] = set()
    deadline = time.monotonic() + wait_s
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"{len(found)} messages and then nothing"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            found.append(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition() or 0)
    consumer.close()
    return found
