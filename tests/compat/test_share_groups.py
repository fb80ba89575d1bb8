"""Share groups (KIP-932) with librdkafka's share consumer."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from tests.compat.server import Node
from tests.conftest import running_node

WAIT_S = 60


class Reached(Protocol):
    """A node, or a cluster of them."""

    @property
    def bootstrap(self) -> str: ...


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose groups beat often, and whose locks are short."""
    settings = {
        "groups_share_heartbeat_interval_ms": "200ms",
        "groups_share_session_timeout_ms": "3s",
        "groups_share_lock_ms": "2s",
        "groups_share_deliveries_max": "3",
    }
    with running_node(tmp_path_factory.mktemp("quick"), settings) as node:
        yield node


@pytest.fixture
def topic(quick: Node, new_name: Callable[[], str]) -> str:
    return make_topic(quick, new_name(), {})


def make_topic(node: Reached, name: str, settings: dict[str, str]) -> str:
    """A topic, and a share group of its name that begins at the start."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
    settings = {"share.auto.offset.reset": "earliest", **settings}
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    return name


def member(node: Reached, topic: str, **more: str) -> ShareConsumer:
    made = ShareConsumer({"bootstrap.servers": node.bootstrap, "group.id": topic, **more})
    made.subscribe([topic])
    return made


def explicit(node: Reached, topic: str) -> ShareConsumer:
    return member(node, topic, **{"share.acknowledgement.mode": "explicit"})


def produce(node: Reached, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, key=b"k", headers={"h": b"x"})
    assert producer.flush(WAIT_S) == 0


def poll(consumer: ShareConsumer, timeout: float = 0.2) -> list[Message]:
    found = []
    for message in consumer.poll(timeout):
        assert message.error() is None, message.error()
        found.append(message)
    return found


def read(consumer: ShareConsumer, count: int) -> list[Message]:
    """At least so many messages."""
    end, found = time.monotonic() + WAIT_S, []
    while len(found) < count:
        assert time.monotonic() < end, [message.value() for message in found]
        found += poll(consumer)
    return found


def test_members_share_one_partition(quick: Node, topic: str) -> None:
    """K10: two members of one partition have each record once, all of them together."""
    one, two = member(quick, topic), member(quick, topic)
    for consumer in (one, two):
        poll(consumer)
    wanted = [b"%d" % number for number in range(400)]
    for at in range(0, 400, 20):
        produce(quick, topic, *wanted[at : at + 20])
    seen: Counter[bytes] = Counter()
    by = {one: 0, two: 0}
    end = time.monotonic() + WAIT_S
    while len(seen) < 400:
        assert time.monotonic() < end, len(seen)
        for consumer in (one, two):
            found = poll(consumer)
            by[consumer] += len(found)
            seen.update(message.value() for message in found)
    assert set(seen.values()) == {1}
    for consumer in (one, two):  # What was polled last is accepted by the next poll or commit.
        assert all(error is None for error in consumer.commit_sync().values())
        consumer.close()

    again = member(quick, topic)
    produce(quick, topic, b"last")
    assert [message.value() for message in read(again, 1)] == [b"last"]
    again.close()


def test_release_reject_and_the_limit_of_deliveries(
    quick: Node, new_name: Callable[[], str]
) -> None:
    """K10: released comes again until the limit; rejected and given up become dead letters."""
    letters = f"dlq.{new_name()}"
    topic = make_topic(
        quick,
        new_name(),
        {
            "errors.deadletterqueue.topic.name": letters,
            "errors.deadletterqueue.copy.record.enable": "true",
        },
    )
    produce(quick, topic, b"good", b"bad", b"again")
    consumer = explicit(quick, topic)
    counts: Counter[bytes] = Counter()
    kinds = {
        b"good": AcknowledgeType.ACCEPT,
        b"bad": AcknowledgeType.REJECT,
        b"again": AcknowledgeType.RELEASE,
    }
    while counts[b"again"] < 3:
        for message in read(consumer, 1):
            counts[message.value() or b""] += 1
            consumer.acknowledge(message, kinds[message.value() or b""])
        assert all(error is None for error in consumer.commit_sync().values())
    assert counts == {b"good": 1, b"bad": 1, b"again": 3}
    assert poll(consumer, 0.5) == []
    consumer.close()

    reader = Consumer(
        {
            "bootstrap.servers": quick.bootstrap,
            "group.id": new_name(),
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 200,
        }
    )
    reader.subscribe([letters])
    found = {}
    end = time.monotonic() + WAIT_S
    while len(found) < 2:
        assert time.monotonic() < end, found
        message = reader.poll(0.2)
        if message is not None and message.error() is None:
            found[message.value()] = dict(message.headers() or [])
    reader.close()
    assert set(found) == {b"bad", b"again"}
    assert found[b"bad"]["__dlq.errors.offset"] == b"1"
    assert found[b"bad"]["h"] == b"x"
    assert found[b"again"]["__dlq.errors.delivery.count"] == b"3"
    assert found[b"again"]["__dlq.errors.group"] == topic.encode()


def test_a_lock_ends_and_an_owner_dies(quick: Node, topic: str) -> None:
    """K10, L1: what was not acknowledged is delivered again; what was is not, also after kill -9 of
    owner and coordinator."""
    produce(quick, topic, b"1", b"2")
    first = explicit(quick, topic)
    found = read(first, 2)
    first.acknowledge(found[0], AcknowledgeType.ACCEPT)
    assert all(error is None for error in first.commit_sync().values())

    second = explicit(quick, topic)
    [again] = read(second, 1)
    assert again.value() == b"2"

    quick.kill()
    quick.start()
    produce(quick, topic, b"3")
    third = member(quick, topic)
    assert sorted(message.value() or b"" for message in read(third, 2)) == [b"2", b"3"]
    for consumer in (first, second, third):
        consumer.close()


def test_what_is_not_committed_is_not_delivered(quick: Node, new_name: Callable[[], str]) -> None:
    """K10, K8: `share.isolation.level=read_committed`: aborted records and markers are passed over,
    and open transactions waited for."""
    topic = make_topic(quick, new_name(), {"share.isolation.level": "read_committed"})
    producer = Producer({"bootstrap.servers": quick.bootstrap, "transactional.id": new_name()})
    producer.init_transactions(WAIT_S)
    for commit, values in ((False, [b"a", b"b"]), (True, [b"c", b"d"]), (False, [b"e"])):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(WAIT_S) == 0
        if commit:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(WAIT_S) == 0

    consumer = member(quick, topic)
    assert sorted(message.value() or b"" for message in read(consumer, 2)) == [b"c", b"d"]
    assert poll(consumer, 0.5) == []
    producer.commit_transaction(WAIT_S)
    assert [message.value() for message in read(consumer, 1)] == [b"open"]
    consumer.commit_sync()
    consumer.close()
