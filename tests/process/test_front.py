"""What only a whole node shows: long polls, lost files, clients that leave in the middle."""

import socket
import struct
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import NodeFactory

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.frames import encode_request
from dovetail.kafka.codec.headers import RequestHeader


def test_a_long_poll_gathers_until_it_has_enough(node_factory: NodeFactory) -> None:
    """L7: many small batches add up to the bytes that were asked for, well before the deadline."""
    node = node_factory()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", 1)])["t"].result(30)
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "g",
            "fetch.min.bytes": 50_000,
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 70_000,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0, "log_level": 0})
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            producer.produce("t", bytes(1000))
            producer.flush(5)

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        began = time.monotonic()
        assert len(consumer.consume(1, timeout=40)) == 1
        assert time.monotonic() - began < 30
    finally:
        stop.set()
        feeding.join()
        consumer.close()


def test_ledgers_are_not_swept_away_when_coordination_was_lost(node_factory: NodeFactory) -> None:
    """L6: a node whose coordination file is gone refuses to start, and says what to do."""
    node = node_factory()
    producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    producer.produce("t", b"precious")
    assert producer.flush(30) == 0
    node.stop()
    for path in node.data_dir.glob("coordination.sqlite*"):
        path.unlink()
    with pytest.raises(AssertionError, match="Restore it from a copy"):
        node.start()
    segments = list(node.data_dir.glob("ledgers/*.segment"))
    assert any(b"precious" in segment.read_bytes() for segment in segments)


def test_clients_that_leave_in_the_middle_of_a_change(node_factory: NodeFactory) -> None:
    """L3, B18: what they began is finished, and the topic can be used and deleted as before."""
    node = node_factory()
    host, _, port = node.bootstrap.rpartition(":")
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    for number in range(10):
        name = f"t{number}"
        request = m.CreateTopicsRequest(
            topics=(
                m.CreateTopicsRequestTopic(
                    name=name, num_partitions=3, replication_factor=1, assignments=(), configs=()
                ),
            )
        )
        header = RequestHeader(ApiKey.CREATE_TOPICS, 5, number, "leaver")
        with socket.create_connection((host, int(port))) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(b"".join(encode_request(header, request)))
        producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
        producer.produce(name, b"x")
        assert producer.flush(30) == 0
        admin.delete_topics([name])[name].result(30)
    assert "met a defect" not in node.log()
