"""What only a whole node shows: long polls, lost files, clients that leave in the middle."""

import asyncio
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import NodeFactory

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.frames import encode_request
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.node import Node
from dovetail.settings import load_settings
from dovetail.settings.given import Flag
from dovetail.storage.repair import scrubber


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
            "fetch.wait.max.ms": 200_000,
            "socket.timeout.ms": 250_000,
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
        assert len(consumer.consume(1, timeout=100)) == 1
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


async def test_a_removed_segment_is_noticed_though_nothing_is_scrubbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L10, R8: with `storage.scrub_bytes_per_second = 0` it was found missing at the next start."""
    monkeypatch.setattr(scrubber, "PAUSE_S", 0.05)
    given = {"node.data_dir": tmp_path, "kafka.port": 0, "http.enabled": False}
    given["storage.scrub_bytes_per_second"] = "0"
    flags = [Flag(name, value, name) for name, value in given.items()]
    settings = load_settings(flags=flags, environment={}, folder=tmp_path)
    async with Node(settings) as node:
        producer = Producer({"bootstrap.servers": node.endpoints.kafka, "log_level": 0})
        producer.produce("t", b"precious")
        assert await asyncio.to_thread(producer.flush, 30) == 0
        (segment,) = tmp_path.glob("ledgers/*.segment")
        segment.unlink()
        async with asyncio.timeout(60):
            while not any(
                b"precious" in p.read_bytes() for p in tmp_path.glob("ledgers/*.segment")
            ):
                await asyncio.sleep(0.02)


def test_a_damaged_journal_of_groups_is_told_and_others_are_served(
    node_factory: NodeFactory,
) -> None:
    """F1, F38: in `/readyz`, with its reason; its groups are refused until it can be read again."""
    node = node_factory()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", 1)])["t"].result(30)
    groups = [f"group-{number}" for number in range(8)]
    for group in groups:
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
        place = TopicPartition("t", 0, 7, metadata=f"journal-{group}")
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()
    node.stop()
    (segment,) = node.data_dir.glob("ledgers/*.segment")
    whole = segment.read_bytes()
    at = whole.find(b"journal-group-0")
    segment.write_bytes(whole[:at] + b"?" + whole[at + 1 :])

    node.start()
    answer = httpx.get(f"{node.http_url}/readyz", timeout=30)
    assert answer.status_code == 503
    assert any(r.startswith("groups of journal") for r in answer.json()["reasons"])
    found = {group: _position(node.bootstrap, group) for group in groups}
    assert found["group-0"] is None
    assert set(found.values()) == {None, 7}
    node.stop()

    segment.write_bytes(whole)
    for note in node.data_dir.glob("ledgers/*.index"):
        note.unlink()
    node.start()
    assert httpx.get(f"{node.http_url}/readyz", timeout=30).status_code == 200
    assert _position(node.bootstrap, "group-0") == 7


def _position(bootstrap: str, group: str) -> int | None:
    """What a group has committed; None if its coordinator does not say."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition("t", 0)], timeout=3)
    except KafkaException:
        return None
    finally:
        consumer.close()
    return None if found.error is not None else int(found.offset)


def test_a_process_tells_what_its_threads_do(node_factory: NodeFactory) -> None:
    """R5: on SIGUSR1, on standard error, and it goes on."""
    node = node_factory()
    os.kill(node.pid, signal.SIGUSR1)
    deadline_s = time.monotonic() + 60
    while "most recent call first" not in node.log():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert AdminClient({"bootstrap.servers": node.bootstrap}).list_topics(timeout=30).brokers


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
