"""Transactional producers of librdkafka and readers of what is committed (K8).

Green on Apache Kafka too (COMPAT_BOOTSTRAP), but for the ones that kill the node.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests import warm_python
from tests.compat.drivers.base import wait_for
from tests.compat.reading import read_messages
from tests.compat.server import Node, TopicMaker
from tests.compat.test_java_client import classes, run  # noqa: F401 - a fixture

from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import LATEST, KafkaClient
from dovetail.spark.decoder import to_arrow
from dovetail.spark.fetching import fetch

WAIT_S = 60.0


def transactional(bootstrap: str, name: str, *, timeout_ms: int = 60_000) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S)
    return producer


def committed(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    """All that a reader of what is committed sees, up to the last stable offset."""
    return read(bootstrap, topic, partitions, "read_committed")


def read(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[bytes]:
    found = read_messages(bootstrap, topic, partitions, isolation, wait_s=WAIT_S)
    return sorted(message.value() or b"" for message in found)


def send(producer: Producer, topic: str, values: Iterable[bytes], partitions: int) -> None:
    """Sends, and waits until the broker has it."""
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(WAIT_S) == 0


def test_committed_records_are_seen_together_and_aborted_ones_never(
    bootstrap: str, topic_maker: TopicMaker
) -> None:
    """K8, F88: over three partitions; a reader of everything sees the aborted ones too."""
    topic = topic_maker(partitions=3)
    producer = transactional(bootstrap, topic)
    for number in range(4):
        producer.begin_transaction()
        send(producer, topic, [f"{number}/{part}".encode() for part in range(3)], 3)
        if number % 2:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)

    wanted = sorted(f"{number}/{part}".encode() for number in (0, 2) for part in range(3))
    wait_for("the markers", lambda: committed(bootstrap, topic, 3) == wanted)
    assert len(read(bootstrap, topic, 3, "read_uncommitted")) == 12


def test_an_open_transaction_holds_up_readers_of_what_is_committed(
    bootstrap: str, topic_maker: TopicMaker
) -> None:
    """K8: the last stable offset, by Fetch and by ListOffsets."""
    topic = topic_maker(partitions=1)
    producer = transactional(bootstrap, topic)
    producer.begin_transaction()
    send(producer, topic, [b"open"], 1)
    plain = Producer({"bootstrap.servers": bootstrap})
    send(plain, topic, [b"plain"], 1)

    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, 0)

    def end(isolation: IsolationLevel) -> int:
        asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=isolation)
        return int(asked[place].result(WAIT_S).offset)

    assert committed(bootstrap, topic, 1) == []
    assert (end(IsolationLevel.READ_COMMITTED), end(IsolationLevel.READ_UNCOMMITTED)) == (0, 2)

    producer.commit_transaction(WAIT_S)
    wait_for("the marker", lambda: committed(bootstrap, topic, 1) == [b"open", b"plain"])
    assert end(IsolationLevel.READ_COMMITTED) == 3


def test_a_second_producer_of_the_same_name_fences_the_first(
    bootstrap: str, topic_maker: TopicMaker
) -> None:
    """K8: its open transaction is aborted, and it can commit nothing any more."""
    topic = topic_maker(partitions=1)
    zombie = transactional(bootstrap, topic)
    zombie.begin_transaction()
    send(zombie, topic, [b"zombie"], 1)

    successor = transactional(bootstrap, topic)
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(WAIT_S)
    assert raised.value.args[0].fatal()

    successor.begin_transaction()
    send(successor, topic, [b"successor"], 1)
    successor.commit_transaction(WAIT_S)
    wait_for("the marker", lambda: committed(bootstrap, topic, 1) == [b"successor"])


def test_a_transaction_that_takes_too_long_is_aborted(
    bootstrap: str, topic_maker: TopicMaker
) -> None:
    """K8: readers go on when its own time-out is over, not for ever behind it."""
    topic = topic_maker(partitions=1)
    producer = transactional(bootstrap, topic, timeout_ms=1_000)
    producer.begin_transaction()
    send(producer, topic, [b"slow"], 1)
    plain = Producer({"bootstrap.servers": bootstrap})
    send(plain, topic, [b"plain"], 1)

    wait_for("the abort", lambda: committed(bootstrap, topic, 1) == [b"plain"])
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)


def position(bootstrap: str, group: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    found = admin.list_consumer_group_offsets([asked], require_stable=False)[group].result(WAIT_S)
    return int(found.topic_partitions[0].offset)


def test_positions_count_with_the_transaction_or_not_at_all(
    bootstrap: str, topic_maker: TopicMaker
) -> None:
    """K8: a position that was sent is not seen before the commit, and never after an abort."""
    source, target = topic_maker(partitions=1), topic_maker(partitions=1)
    plain = Producer({"bootstrap.servers": bootstrap})
    send(plain, source, [b"1", b"2"], 1)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": source})
    consumer.assign([TopicPartition(source, 0, 0)])
    producer = transactional(bootstrap, source)

    def transform(upto: int) -> None:
        producer.begin_transaction()
        send(producer, target, [f"below {upto}".encode()], 1)
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, upto)], consumer.consumer_group_metadata(), WAIT_S
        )

    transform(2)
    assert position(bootstrap, source, source) < 0
    producer.abort_transaction(WAIT_S)
    assert position(bootstrap, source, source) < 0

    transform(1)
    producer.commit_transaction(WAIT_S)
    wait_for("the position", lambda: position(bootstrap, source, source) == 1)
    assert committed(bootstrap, target, 1) == [b"below 1"]
    consumer.close()


def test_our_own_reader_leaves_out_what_is_not_committed(
    bootstrap: str, topic_maker: TopicMaker
) -> None:
    """F3b: Spark's source and teams read by this; also aborts and commits in one fetch."""
    topic = topic_maker(partitions=1)
    producer, other = transactional(bootstrap, topic), transactional(bootstrap, f"{topic}-2")
    for number in range(3):
        producer.begin_transaction()
        send(producer, topic, [f"{number}".encode()], 1)
        other.begin_transaction()
        send(other, topic, [b"aborted"], 1)
        producer.commit_transaction(WAIT_S)
        other.abort_transaction(WAIT_S)
    wait_for("the markers", lambda: committed(bootstrap, topic, 1) == [b"0", b"1", b"2"])
    producer.begin_transaction()
    send(producer, topic, [b"open"], 1)

    client, place = KafkaClient(Brokers(bootstrap)), (topic, 0)
    try:
        for only, more in ((True, []), (False, [b"aborted"] * 3 + [b"open"])):
            end = client.offsets({place: LATEST}, committed=only)[place]
            found = [
                value
                for fetched in fetch(client, place, 0, end, committed=only)
                for value in to_arrow(fetched.batches, place).column("value").to_pylist()
            ]
            assert sorted(found) == sorted([b"0", b"1", b"2", *more])
    finally:
        client.close()
    producer.abort_transaction(WAIT_S)


def test_what_is_open_and_what_is_decided_survive_kill_9(
    node: Node, topic_maker: TopicMaker, node_only: None
) -> None:
    """K8: the node dies after a commit was answered, and with a transaction open."""
    topic = topic_maker(partitions=3)
    producer = transactional(node.bootstrap, topic)
    producer.begin_transaction()
    send(producer, topic, [b"a0", b"a1", b"a2"], 3)
    producer.commit_transaction(WAIT_S)
    node.kill()
    node.start()
    wait_for("the commit", lambda: committed(node.bootstrap, topic, 3) == [b"a0", b"a1", b"a2"])

    producer.begin_transaction()
    send(producer, topic, [b"b0", b"b1", b"b2"], 3)
    node.kill()
    node.start()
    assert committed(node.bootstrap, topic, 3) == [b"a0", b"a1", b"a2"]
    producer.commit_transaction(WAIT_S)
    wait_for("both", lambda: len(committed(node.bootstrap, topic, 3)) == 6)


def test_an_operator_finds_a_transaction_and_aborts_it(
    bootstrap: str, topic_maker: TopicMaker
) -> None:
    """K8: from the command line; the producer is fenced, and readers go on."""
    topic = topic_maker(partitions=1)
    producer = transactional(bootstrap, topic)
    producer.begin_transaction()
    send(producer, topic, [b"hangs"], 1)

    def dovetail(*words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "dovetail", "transaction", *words]
        done = warm_python.run(
            [*command, "--bootstrap", bootstrap], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    listed = {one["id"]: one for one in json.loads(dovetail("list", "--json"))}
    assert (listed[topic]["state"], listed[topic]["partitions"]) == ("Ongoing", [f"{topic}-0"])
    assert "Ongoing" in dovetail("list")
    dovetail("abort", topic)
    wait_for("the abort", lambda: end_of_what_is_stable(bootstrap, topic) == 2)
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)
    assert "is not known" in dovetail("abort", f"{topic}-other", code=3)


def end_of_what_is_stable(bootstrap: str, topic: str) -> int:
    client = KafkaClient(Brokers(bootstrap))
    try:
        return client.offsets({(topic, 0): LATEST}, committed=True)[topic, 0]
    finally:
        client.close()


@pytest.mark.timeout(240)
def test_the_java_producer_in_transactions(
    bootstrap: str,
    classes: Path,  # noqa: F811 - the fixture
    topic_maker: TopicMaker,
) -> None:
    """K8, F88: KIP-890's protocol, fencing, positions, lists, and the abort of one that hangs."""
    run(classes, "TransactionScenario", bootstrap, topic_maker(partitions=2))
