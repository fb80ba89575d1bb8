"""A topic as a source, on a real node."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.conftest import NodeFactory, RunningNode

from dovetail.errors import TopicUnknown, Unavailable
from dovetail.stream import Event, KafkaSource

DEADLINE_S = 60.0


def make_topic(node: RunningNode, partitions: int = 2) -> str:
    topic = f"events-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(60)
    return topic


def send(node: RunningNode, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for value in values:
        producer.produce(
            topic, value.encode(), key=b"k", partition=partition, headers=[("h", b"1")]
        )
    assert producer.flush(60) == 0


async def take(batches: AsyncIterator[Sequence[Event]], count: int) -> list[Event]:
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            events += await anext(batches)
    return events


async def test_all_partitions_are_read_from_a_position(node: RunningNode) -> None:
    """S1, S9: with key, headers and time; partitions that the position does not name from 0."""
    topic = make_topic(node)
    send(node, topic, "a0", "a1", "a2")
    send(node, topic, "b0", partition=1)
    source = KafkaSource(node.bootstrap, topic)
    assert await source.end() == {0: 3, 1: 1}
    async with source.read({0: 1}) as batches:
        events = await take(batches, 3)
        assert {(e.lane, e.offset, e.value) for e in events} == {
            (0, 1, b"a1"),
            (0, 2, b"a2"),
            (1, 0, b"b0"),
        }
        assert events[0].key == b"k"
        assert events[0].headers == (("h", b"1"),)
        assert events[0].timestamp_ms > 0
        send(node, topic, "a3")
        assert [event.value for event in await take(batches, 1)] == [b"a3"]
    await source.close()


async def test_a_topic_that_is_not_there_is_named() -> None:
    """S1: so that it can be created."""
    source = KafkaSource("127.0.0.1:1", "nothing", timeout_ms=1_000)
    with pytest.raises(Unavailable, match="nothing"):
        await source.end()
    await source.close()


async def test_an_unknown_topic_is_named(node_factory: NodeFactory) -> None:
    """S1: so that it can be created."""
    node = node_factory(log_topic_auto_create="false")
    source = KafkaSource(node.bootstrap, "nothing")
    with pytest.raises(TopicUnknown, match="dovetail topic create nothing"):
        await source.end()
    await source.close()


async def test_a_silent_stream_is_told_from_a_lost_one(node_factory: NodeFactory) -> None:
    """S8: an empty batch says that it is there; a killed broker raises."""
    node = node_factory()
    topic = make_topic(node, 1)
    source = KafkaSource(node.bootstrap, topic, timeout_ms=1_000)
    async with source.read({}) as batches:
        async with asyncio.timeout(DEADLINE_S):
            assert await anext(batches) == []
            node.kill()
            with pytest.raises(Unavailable, match="is lost"):
                while True:
                    await anext(batches)
    await source.close()


async def test_added_partitions_are_read_from_their_start(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: without opening anything again."""
    monkeypatch.setattr("dovetail.stream.kafka_source.PARTITIONS_S", 0.1)
    topic = make_topic(node, 1)
    source = KafkaSource(node.bootstrap, topic, timeout_ms=1_000)
    async with source.read({}) as batches:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(60)
        send(node, topic, "new", partition=1)
        (event,) = await take(batches, 1)
        assert (event.lane, event.offset) == (1, 0)
    await source.close()


async def test_events_that_retention_took_are_counted(node: RunningNode) -> None:
    """S9: a position that is gone is said loudly, and reading goes on with what is left."""
    topic = make_topic(node, 1)
    send(node, topic, *(str(number) for number in range(5)))
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        future.result(60)
    source = KafkaSource(node.bootstrap, topic)
    async with source.read({0: 1}) as batches:
        events = await take(batches, 2)
        assert [event.offset for event in events] == [3, 4]
        assert source.lost_count == 2
    await source.close()


async def test_a_gap_is_not_a_loss(node: RunningNode) -> None:
    """S9, L17: offsets that hold no record, such as a marker's or a compacted one's, are passed."""
    topic = make_topic(node, 1)
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": topic})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"first", partition=0)
    producer.commit_transaction(10)
    send(node, topic, "second")
    source = KafkaSource(node.bootstrap, topic)
    async with source.read({0: 1}) as batches:
        events = await take(batches, 1)
        assert [event.offset for event in events] == [2]
        assert source.lost_count == 0
    await source.close()
