"""Which jobs are repetitions, from the log of a real node, wherever an attempt begins."""

import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.conftest import RunningNode

from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.spark.fetching import fetch
from dovetail.spark.objects import found_in
from dovetail.teams.tasks.seen_log import Record, SeenLog, records_of

REMEMBER_MS = 1_000
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def client(node: RunningNode) -> Iterator[KafkaClient]:
    made = KafkaClient(Brokers(node.bootstrap))
    yield made
    made.close()


def topic_of(node: RunningNode, jobs: list[tuple[str, int]]) -> str:
    """A topic with jobs, each an id and the producer's time."""
    topic = f"s{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for key, at_ms in jobs:
        producer.produce(topic, key=key, value=b"1", timestamp=FIRST_MS + at_ms)
        producer.poll(0)
    assert producer.flush(30) == 0
    return topic


def records_in(client: KafkaClient, topic: str, count: int, *, start: int = 0) -> list[Record]:
    return [
        record
        for fetched in fetch(client, (topic, 0), start, count)
        for record in records_of(
            found_in(fetched.batches, (topic, 0), offset_min=start), (topic, 0)
        )
    ]


def fresh(client: KafkaClient, topic: str, records: list[Record]) -> list[str]:
    """What an attempt that begins with these records takes for new."""
    seen = SeenLog(client, (topic, 0), remember_ms=REMEMBER_MS)
    return [record.job.id for record in seen.fresh(records)]


def test_an_attempt_that_begins_anywhere_finds_the_same(
    node: RunningNode, client: KafkaClient
) -> None:
    """T4: the window before its first record is read from the log."""
    jobs = [(str(n), 0) for n in range(10)] + [(str(n), 500) for n in range(15)]
    topic = topic_of(node, jobs)
    records = records_in(client, topic, 25)
    assert fresh(client, topic, records) == [str(n) for n in range(15)]
    for start in range(3, 25):
        wanted = [str(n) for n in range(min(start, 10) if start < 20 else start - 10, 15)]
        assert fresh(client, topic, records[start:]) == wanted


def test_what_retention_has_removed_is_not_known(node: RunningNode, client: KafkaClient) -> None:
    """T4: the rest of the window decides."""
    topic = topic_of(node, [(str(n), 0) for n in (*range(10), *range(5, 15))])
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        future.result(30)
    found = fresh(client, topic, records_in(client, topic, 20, start=10))
    assert found == ["5", "6", *(str(n) for n in range(10, 15))]


def test_memory_stays_flat_over_ten_times_the_time_to_live(
    node: RunningNode, client: KafkaClient
) -> None:
    """T4: each id twice: done once; an id that comes again after its time is done again."""
    count, step_ms = 10_000, 2
    jobs = [(f"{n // 2 % (count // 2 - 2)}", n // 2 * step_ms) for n in range(count)]
    assert jobs[-1][1] >= 9 * REMEMBER_MS
    topic = topic_of(node, jobs)
    records = records_in(client, topic, count)
    seen = SeenLog(client, (topic, 0), remember_ms=REMEMBER_MS)
    done, sizes = Counter[str](), []
    for start in range(0, count, 100):
        done.update(record.job.id for record in seen.fresh(records[start : start + 100]))
        assert seen.seen is not None
        sizes.append(len(seen.seen))
    assert {key for key, times in done.items() if times == 2} == {"0", "1"}
    assert done.total() == count // 2
    assert max(sizes) <= 2 * REMEMBER_MS // step_ms + 100
    assert max(sizes[50:]) <= max(sizes[:50])
