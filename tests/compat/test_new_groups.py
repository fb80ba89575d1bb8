"""Groups of the new protocol (KIP-848) with librdkafka and Java's client."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.compat.server import Node
from tests.conftest import running_node

PARTITIONS = 4
WAIT_S = 60


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose groups beat often, so that nobody waits for 5 s."""
    settings = {
        "groups_consumer_heartbeat_interval_ms": "200ms",
        "groups_consumer_session_timeout_ms": "3s",
    }
    with running_node(tmp_path_factory.mktemp("quick"), settings) as node:
        yield node


@pytest.fixture
def topic(quick: Node, new_name: Callable[[], str]) -> str:
    name = new_name()
    admin = AdminClient({"bootstrap.servers": quick.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(WAIT_S)
    return name


def member(node: Node, group: str, *topics: str, **more: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
    )
    made.subscribe(list(topics))
    return made


def numbers(consumer: Consumer) -> set[int]:
    return {one.partition for one in consumer.assignment()}


def until(what: str, reached: Callable[[], bool], *consumers: Consumer) -> list[bytes]:
    """Polls the consumers until it is so; gives what they read meanwhile."""
    end, read = time.monotonic() + WAIT_S, []
    while not reached():
        assert time.monotonic() < end, f"{what}: {[numbers(one) for one in consumers]}"
        for one in consumers:
            message = one.poll(0.05)
            if message is not None and message.error() is None:
                read.append(message.value())
    return read


def produce(node: Node, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=at % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


def test_members_share_and_take_over(quick: Node, topic: str) -> None:
    """K9, F88: two members have two partitions each; when one goes the other has all, and goes on
    from what was committed."""
    produce(quick, topic, *[b"%d" % n for n in range(8)])
    one = member(quick, topic, topic)
    read: list[bytes] = []
    while len(read) < 8:
        message = one.poll(WAIT_S)
        assert message is not None and message.error() is None
        read.append(message.value())
    assert sorted(read) == [b"%d" % n for n in range(8)]
    one.commit(asynchronous=False)

    two = member(quick, topic, topic)
    read = until("they share", lambda: len(numbers(one)) == len(numbers(two)) == 2, one, two)
    assert numbers(one) | numbers(two) == set(range(PARTITIONS))
    assert read == []

    admin = AdminClient({"bootstrap.servers": quick.bootstrap})
    found = admin.describe_consumer_groups([topic])[topic].result(WAIT_S)
    assert found.state is ConsumerGroupState.STABLE
    assert found.type is ConsumerGroupType.CONSUMER
    assert len(found.members) == 2
    one.close()
    until("the other has all", lambda: numbers(two) == set(range(PARTITIONS)), two)
    two.close()
    admin.delete_consumer_groups([topic])[topic].result(WAIT_S)


def test_a_group_outlives_the_node(quick: Node, topic: str) -> None:
    """K9, L1: kill -9 of the coordinator; the member keeps its partitions and its positions."""
    produce(quick, topic, *[b"%d" % n for n in range(PARTITIONS)])
    one = member(quick, topic, topic)
    until("it has all", lambda: numbers(one) == set(range(PARTITIONS)), one)
    positions = [TopicPartition(topic, n, 1) for n in range(PARTITIONS)]
    one.commit(offsets=positions, asynchronous=False)
    quick.kill()
    quick.start()

    def committed() -> bool:
        try:
            one.commit(offsets=positions, asynchronous=False)
        except KafkaException:
            return False
        return True

    until("it commits again", committed, one)
    assert numbers(one) == set(range(PARTITIONS))
    found = one.committed([TopicPartition(topic, 0)], timeout=WAIT_S)
    assert found[0].offset == 1
    one.close()


def test_a_pattern_and_new_topics(quick: Node, new_name: Callable[[], str]) -> None:
    """K9: a topic that is made later belongs to the pattern too."""
    admin = AdminClient({"bootstrap.servers": quick.bootstrap})
    prefix, group = new_name(), new_name()
    one = member(quick, group, f"^{prefix}-[0-9]+", **{"topic.metadata.refresh.interval.ms": "500"})
    wanted: set[str] = set()
    for name in (f"{prefix}-1", f"{prefix}-x", f"{prefix}-22"):
        admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
        wanted.update({name} - {f"{prefix}-x"})
        until(f"it reads {name}", lambda: {part.topic for part in one.assignment()} == wanted, one)
    one.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_live_group_moves_between_the_protocols(quick: Node, topic: str, strategy: str) -> None:
    """K9: members are replaced one by one, there and back; each partition has one reader, and
    positions go on."""
    classic = {
        "group.protocol": "classic",
        "partition.assignment.strategy": strategy,
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "200",
    }
    everything = set(range(PARTITIONS))

    def shared(*members: Consumer) -> bool:
        sizes = [len(numbers(one)) for one in members]
        all_read = set().union(*(numbers(one) for one in members)) == everything
        return all_read and sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1

    produce(quick, topic, *[b"%d" % n for n in range(PARTITIONS)])
    old, other = member(quick, topic, topic, **classic), member(quick, topic, topic, **classic)
    until("the classic ones share", lambda: shared(old, other), old, other)
    new = member(quick, topic, topic)
    until("three share", lambda: shared(old, other, new), old, other, new)
    old.close()
    until("two share", lambda: shared(other, new), other, new)
    other.close()
    until("the new one has all", lambda: numbers(new) == everything, new)
    new.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)

    back = member(quick, topic, topic, **classic)
    until("there and back", lambda: shared(new, back), new, back)
    found = AdminClient({"bootstrap.servers": quick.bootstrap})
    described = found.describe_consumer_groups([topic])[topic].result(WAIT_S)
    assert len(described.members) == 2
    new.close()
    until("the classic one has all", lambda: numbers(back) == everything, back)
    assert back.committed([TopicPartition(topic, 0)], timeout=WAIT_S)[0].offset == 1
    back.commit(offsets=[TopicPartition(topic, 1, 1)], asynchronous=False)
    back.close()


def test_a_static_member_that_restarts_keeps_its_partitions(quick: Node, topic: str) -> None:
    """K9: nobody else gets them while it is away for a moment."""
    static = {"group.instance.id": "i-1"}
    one, two = member(quick, topic, topic, **static), member(quick, topic, topic)
    until("they share", lambda: len(numbers(one)) == len(numbers(two)) == 2, one, two)
    had, kept = numbers(one), numbers(two)
    one.close()
    again = member(quick, topic, topic, **static)
    until("it is back", lambda: numbers(again) == had, again, two)
    assert numbers(two) == kept
    again.close()
    two.close()
