"""Compacted topics (L17), as foreign clients fill and read them."""

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.compat.drivers.base import ClientError, Driver, Message, wait_for
from tests.compat.drivers.registry import Feature, clients
from tests.compat.server import Connect, Node, TopicMaker
from tests.conftest import RunningNode, _factory
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.spark.decoder import to_arrow
from dovetail.spark.fetching import fetch

pytestmark = pytest.mark.usefixtures("node_only")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that looks often for something to compact."""
    for make in _factory(tmp_path_factory.mktemp("node")):
        yield make(log_compaction_check_ms="30", log_retention_check_ms="30")


@pytest.fixture
def compacted(topic_maker: TopicMaker) -> str:
    return topic_maker(
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0",
        segment_ms="100",
        segment_bytes="65536",
    )


def until_offsets(connect: Connect, topic: str, *offsets: int) -> None:
    """Waits until a reader from the start finds these offsets and no others."""
    reader = connect("confluent")

    def found() -> bool:
        return [r.offset for r in reader.read(topic, len(offsets))] == list(offsets)

    wait_for("compaction", found)


@clients()
def test_every_client_reads_across_gaps_and_empty_batches(
    driver: Driver, compacted: str, connect: Connect
) -> None:
    """L17, K1: from the start and from within a gap; at 1 there is a batch without records."""
    values = [random.randbytes(40_000) for _ in range(4)]
    keys = [b"one", b"two", b"two", b"three"]
    messages = [Message(value, key=key) for key, value in zip(keys, values, strict=True)]
    codecs = ["none", "gzip"]
    for half in (messages[:2], messages[2:]):
        for message, codec in zip(half, codecs, strict=True):
            driver.produce(compacted, [message], codec=codec)
    until_offsets(connect, compacted, 0, 2, 3)
    for start, offsets in ((0, [0, 2, 3]), (1, [2, 3]), (2, [2, 3]), (3, [3])):
        records = driver.read(compacted, len(offsets), start=start)
        assert [r.offset for r in records] == offsets
        assert [r.value for r in records] == [values[n] for n in offsets]


def test_everybody_sees_how_far_a_topic_is_compacted(
    node: RunningNode, compacted: str, connect: Connect
) -> None:
    """L17: the command line, the console and the metrics, whoever is asked; of a topic that is not
    compacted there is nothing to say."""
    for _ in range(2):
        connect("confluent").produce(compacted, [Message(random.randbytes(70_000), key=b"k")])
    until_offsets(connect, compacted, 1)

    def shown() -> list[dict[str, Any]]:
        words = ["topic", "describe", compacted, "--bootstrap", node.bootstrap, "--json"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        found: list[dict[str, Any]] = json.loads(done.stdout)["compaction"]
        return found

    wait_for("the owner has looked", lambda: [r["cleaned_to"] for r in shown()] == [2])
    (row,) = shown()
    assert (row["partition"], row["dirty_bytes"], row["dirty_ratio"]) == (0, 0, 0.0)
    assert abs(time.time() * 1000 - row["last_ms"]) < 600_000
    assert row["bytes_per_s"] > 0
    words = ["topic", "describe", compacted, "--bootstrap", node.bootstrap]
    assert "cleaned to" in CliRunner().invoke(app, words).stdout

    page = httpx.get(f"{node.http_url}/v1/topics/{compacted}", timeout=60).json()
    assert page["compaction"] == [row]
    told = {
        sample.name: sample.value
        for family in text_string_to_metric_families(httpx.get(f"{node.http_url}/metrics").text)
        for sample in family.samples
        if sample.labels.get("topic") == compacted and "compaction" in sample.name
    }
    assert told["dovetail_compaction_cleaned_offset"] == 2
    assert told["dovetail_compaction_dirty_bytes"] == 0
    assert told["dovetail_compaction_last_pass_bytes_per_second"] == row["bytes_per_s"]


def test_our_own_reader_passes_gaps(bootstrap: str, compacted: str, connect: Connect) -> None:
    """L17, T21: what Spark's tables and teams read with passes gaps and empty batches."""
    values = [random.randbytes(40_000) for _ in range(4)]
    for key, value in zip([b"one", b"two", b"two", b"three"], values, strict=True):
        connect("confluent").produce(compacted, [Message(value, key=key)])
    until_offsets(connect, compacted, 0, 2, 3)

    place = (compacted, 0)
    client = KafkaClient(Brokers(bootstrap))
    try:
        for start, end, offsets in ((0, 4, [0, 2, 3]), (1, 4, [2, 3]), (1, 2, []), (0, 1, [0])):
            found = [
                offset
                for fetched in fetch(client, place, start, end)
                for offset in to_arrow(fetched.batches, place, offset_min=start, offset_end=end)
                .column("offset")
                .to_pylist()
            ]
            assert found == offsets
    finally:
        client.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_left_of_a_batch(codec: str, compacted: str, connect: Connect) -> None:
    """L17, K2: records with headers, times and tombstones, under each codec."""
    driver = connect("confluent")
    messages = [
        Message(
            None if n == 6 else b"value %d" % n,
            key=b"%d" % (n % 4),
            headers=(("n", b"%d" % n), ("none", None)),
            timestamp_ms=1_700_000_000_000 + n,
        )
        for n in range(8)
    ]
    driver.produce(compacted, messages, codec=codec)
    until_offsets(connect, compacted, 4, 5, 6, 7)
    records = driver.read(compacted, 4)
    assert [r.content for r in records] == [(m.key, m.value, m.headers) for m in messages[4:]]
    assert [r.timestamp_ms for r in records] == [1_700_000_000_000 + n for n in range(4, 8)]
    assert driver.offset_at(compacted, 0, 1_700_000_000_001) == 4


@clients(Feature.DELETE_RECORDS)
def test_what_a_compacted_topic_refuses(driver: Driver, compacted: str) -> None:
    """L17, K5: a record without a key, and the deletion of records, with Kafka's own errors."""
    with pytest.raises(ClientError) as refused:
        driver.produce(compacted, [Message(b"v", key=b"k"), Message(b"v")])
    # aiokafka has no name for the error.
    assert refused.value.name in ("INVALID_RECORD", "UNKNOWN")
    with pytest.raises(ClientError) as refused:
        driver.delete_records(compacted, 0, 1)
    assert refused.value.name in ("POLICY_VIOLATION", "KafkaJSDeleteTopicRecordsError")


def test_a_policy_is_altered_while_the_topic_is_used(
    topic_maker: TopicMaker, connect: Connect
) -> None:
    """L17, K12: from delete to compact; what has no key goes, and no more of it is taken."""
    driver = connect("confluent")
    topic = topic_maker(segment_ms="100", min_cleanable_dirty_ratio="0")
    driver.produce(topic, [Message(b"keyless"), Message(b"1", key=b"k"), Message(b"2", key=b"k")])
    driver.set_config(topic, {"cleanup.policy": "compact", "segment.ms": "100"})
    until_offsets(connect, topic, 2)
    with pytest.raises(ClientError):
        driver.produce(topic, [Message(b"keyless")])
