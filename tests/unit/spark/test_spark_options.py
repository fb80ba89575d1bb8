"""Options, offsets and identities: the pure half of source and sink."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from dovetail.errors import Damaged, InvalidInput, ProducerFenced
from dovetail.kafka.client.client import EARLIEST, LATEST
from dovetail.spark.exactly_once import Attempt, Mark, begin_of, identity_of, marks_after
from dovetail.spark.offsets import (
    from_document,
    limited,
    lost,
    split,
    to_document,
)
from dovetail.spark.options import ReadOptions, WriteOptions

BASE = {"kafka.bootstrap.servers": "one:9092, two:9093", "subscribe": "a,b"}


def read(**changes: str | None) -> ReadOptions:
    """The options of BASE with changes; None takes one away, `_` stands for a dot."""
    given_options: dict[str, Any] = dict(BASE)
    for name, value in changes.items():
        given_options[name.replace("_", ".")] = value
    return ReadOptions.of({k: v for k, v in given_options.items() if v is not None})


def test_what_spark_users_know_is_understood() -> None:
    """T9: names and meanings of Spark's Kafka source, without regard to case."""
    options = read(
        startingOffsets='{"a": {"0": 5, "1": -2}, "b": {"0": -1}}', MAXOFFSETSPERTRIGGER="9"
    )
    assert options.topics == ("a", "b")
    assert options.starting is not None
    assert options.starting.each == {("a", 0): 5, ("a", 1): EARLIEST, ("b", 0): LATEST}
    assert options.rows_max == 9
    assert options.fail_on_data_loss
    by_time = read(startingTimestamp="1700000000000", failOnDataLoss="FALSE", includeHeaders="true")
    assert by_time.starting is not None
    assert by_time.starting.by_time
    assert not by_time.fail_on_data_loss
    assert by_time.include_headers
    assigned = read(subscribe=None, assign='{"a": [0, 2]}', kafka_group_id="g")
    assert assigned.assigned == (("a", 0), ("a", 2))
    assert assigned.group == "g"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"subscribePattern": "a.*"}, "subscribe and subscribePattern contradict each other"),
        ({"subscribe": None}, "which topics to read; give one of subscribe"),
        ({"subscribe": "a,,b"}, "names an empty topic"),
        ({"kafka_bootstrap_servers": None}, "where the brokers are"),
        ({"kafka_bootstrap_servers": "here"}, "broker address 'here' is not of the form host:port"),
        ({"bootstrap": "x:1"}, "kafka.bootstrap.servers and bootstrap contradict"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": "first"}, "write earliest or latest, or JSON such as"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "-3 for partition '0'"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "True for partition '0'"),
        ({"startingOffsets": "{}"}, "names no partition"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "contradict each other"),
        ({"maxOffsetsPerTrigger": "0"}, "must be a number from 1 on"),
        ({"minPartitions": "1e3"}, "'1e3'; it must be a number"),
        ({"failOnDataLoss": "no"}, "must be true or false"),
        ({"includeHeaders": " "}, "is empty"),
        ({"subscribe": None, "subscribePattern": "("}, "not a regular expression"),
        ({"subscribe": None, "assign": '{"a": "0"}'}, "write a list of partitions"),
        ({"subscribe": None, "assign": "{}"}, "names no partition"),
        ({"kafka_security_protocol": "TLS"}, "it can be PLAINTEXT, SSL, SASL_PLAINTEXT or"),
        ({"kafka_security_protocol": "SASL_SSL"}, "needs sasl.username"),
        ({"kafka_ssl_ca_location": "ca.pem"}, "use one with SSL"),
        ({"kafka_sasl_jaas_config": "x"}, "sasl.jaas.config has an unknown form"),
        ({"kafka_auto_offset_reset": "latest"}, "not supported: .*startingOffsets"),
        ({"kafka_fetch_max_bytes": "2147483648"}, "must be a number from 1 to 2147483647"),
        ({"kafka_fetch_max_byte": "1"}, "did you mean 'kafka.fetch.max.bytes'"),
        ({"kafka_sasl_password_env": "NOT_THERE"}, "which the driver does not have"),
        ({"maxTriggerDelay": "soon"}, "'maxTriggerDelay' is 'soon'; write 500ms"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "above maxOffsetsPerTrigger"),
        ({"topic": "t"}, "option 'topic' is for writing"),
        ({"kafka_isolation_level": "read_all"}, "it can be read_uncommitted or read_committed"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, str], words: str) -> None:
    """T9: unknown, contradictory and malformed options each have a message."""
    with pytest.raises(InvalidInput, match=words):
        read(**changes)


def test_streams_have_no_end_and_batches_no_trigger() -> None:
    """T9: what fits one of the two only is refused by the other, or has no effect there."""
    with pytest.raises(InvalidInput, match="a stream has no end"):
        read(endingOffsets="latest").check_streaming()
    # As Spark's source: one table is read in both ways.
    read(maxOffsetsPerTrigger="5", minOffsetsPerTrigger="2").check_batch()
    with pytest.raises(InvalidInput, match="starts at the latest"):
        read(startingOffsets="latest").check_batch()
    with pytest.raises(InvalidInput, match="ends at the earliest"):
        read(endingOffsets="earliest").check_batch()
    read(startingOffsets="latest", maxOffsetsPerTrigger="5").check_streaming()
    read(endingTimestamp="5").check_batch()


def test_options_of_the_sink() -> None:
    """T9: the sink's own options, and none of the source's."""
    options = WriteOptions.of({"bootstrap": "h:1", "topic": "t", "kafka.compression.type": "zstd"})
    assert (options.topic, options.codec, options.term) == ("t", 4, None)
    with pytest.raises(InvalidInput, match="'subscribe' is for reading"):
        WriteOptions.of({"bootstrap": "h:1", "subscribe": "t"})
    with pytest.raises(InvalidInput, match=r"did you mean 'kafka\.compression\.type'"):
        WriteOptions.of({"bootstrap": "h:1", "kafka.compression.tipe": "zstd"})
    # Spark hands on what is its own.
    WriteOptions.of({"bootstrap": "h:1", "queryname": "loud", "checkpointlocation": "/c"})
    with pytest.raises(InvalidInput, match="'brotli' is unknown"):
        WriteOptions.of({"bootstrap": "h:1", "kafka.compression.type": "brotli"})


PARTITIONS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.integers(0, 50), st.integers(0, 1000)),
    min_size=1,
)


@given(PARTITIONS, st.integers(1, 500))
def test_a_limit_is_kept_and_shared(partitions: Any, rows_max: int) -> None:
    """T9: never more than asked for, never less than is there, nobody beyond their end."""
    start = {key: low for key, (low, _) in partitions.items()}
    latest = {key: low + more for key, (low, more) in partitions.items()}
    ends = limited(start, latest, rows_max)
    waiting = sum(latest.values()) - sum(start.values())
    assert sum(ends.values()) - sum(start.values()) == min(rows_max, waiting)
    assert all(start[key] <= ends[key] <= latest[key] for key in start)
    assert limited(start, latest, None) == latest
    again = limited(ends, latest, rows_max)
    assert again == latest or sum(again.values()) > sum(ends.values())


@given(PARTITIONS, st.none() | st.integers(1, 40), st.none() | st.integers(1, 100))
def test_ranges_cover_everything_once(
    partitions: Any, minimum: int | None, most: int | None
) -> None:
    """T9, T20: one task for each partition that has records, or as many as asked for; none with
    more than `maxRecordsPerPartition`."""
    start = {key: low for key, (low, _) in partitions.items()}
    end = {key: low + more for key, (low, more) in partitions.items()}
    ranges = split(start, end, minimum, most)
    offsets = [(r.topic, r.partition, o) for r in ranges for o in range(r.start, r.end)]
    assert offsets == [(t, p, o) for t, p in sorted(end) for o in range(start[t, p], end[t, p])]
    assert all(one.start < one.end for one in ranges)
    assert len(ranges) >= min(minimum or 0, len(offsets))
    assert all(one.end - one.start <= (most or 1_000) for one in ranges)
    assert ranges == split(start, end, minimum, most)


@given(PARTITIONS)
def test_positions_travel_as_spark_keeps_them(partitions: Any) -> None:
    """T9: as JSON in the checkpoint and back."""
    positions = {key: low for key, (low, _) in partitions.items()}
    assert from_document(json.loads(json.dumps(to_document(positions)))) == positions
    with pytest.raises(Damaged, match="malformed positions"):
        from_document({"a": "b"})  # type: ignore[dict-item]


def test_what_is_lost_is_named() -> None:
    """T9: cut off by retention, made anew, or gone."""
    start = {("a", 0): 5, ("a", 1): 5, ("a", 2): 5, ("a", 3): 5}
    reasons = lost(
        start, {("a", 0): 7, ("a", 1): 0, ("a", 3): 0}, {("a", 0): 9, ("a", 1): 2, ("a", 3): 5}
    )
    assert reasons == [
        "a-0 begins at 7 (its position was 5)",
        "a-1 ends at 2 (its position was 5)",
        "a-2 is gone (its position was 5)",
    ]


@given(st.text(max_size=8), st.integers(0, 2**20), st.integers(0, 2**20 - 1))
def test_identities_are_told_apart(query: str, batch: int, task: int) -> None:
    """T5: of one micro-batch or another, of one task or another, and never the broker's own."""
    mine = identity_of(Attempt(query, batch, task))
    assert 2**62 <= mine.producer_id < 2**63
    assert 0 <= mine.epoch < 2**15
    assert mine == identity_of(Attempt(query, batch, task))
    other = identity_of(Attempt(query, batch, task ^ 1))
    assert not mine.wrote(producer_id=other.producer_id, epoch=other.epoch)
    assert mine.shares_batch(producer_id=other.producer_id, epoch=other.epoch)
    later = identity_of(Attempt(query, batch + 1, task))
    assert not mine.shares_batch(producer_id=later.producer_id, epoch=later.epoch)
    if later.producer_id == mine.producer_id:
        assert later.epoch > mine.epoch
    else:
        assert (batch + 1) % 2**15 == 0
    stranger = identity_of(Attempt(query + "x", batch, task))
    assert not mine.shares_batch(producer_id=stranger.producer_id, epoch=stranger.epoch)
    with pytest.raises(InvalidInput, match="up to 1048576 tasks"):
        identity_of(Attempt(query, batch, 2**20))


def test_marks_tell_who_is_superseded_and_where_a_micro_batch_began() -> None:
    """T2, T5: what a commit leaves beside its positions; the sink's comes before Spark's."""
    place = ("t", 0)
    first = marks_after({}, {place: 50}, batch=3, term=7)[place]
    assert Mark.of(str(first)) == first == Mark(batch=3, term=7, begin=0)
    stored = {place: (50, str(first))}
    second = marks_after(stored, {place: 80}, batch=4, term=7)[place]
    stored = {place: (80, str(second))}
    assert second.begin == 50
    assert marks_after(stored, {place: 80}, batch=4, term=8)[place].begin == 50, "run again"
    assert begin_of(stored[place], batch=4) == 50, "the position lies behind its rows"
    assert begin_of(stored[place], batch=5) == 80
    assert begin_of(None, batch=5) == 0
    assert begin_of((80, "of another"), batch=5) == 80
    with pytest.raises(ProducerFenced, match="term 6 writes, but one of term 7"):
        marks_after(stored, {("t", 1): 9}, batch=5, term=6)
    with pytest.raises(ProducerFenced, match="micro-batch 3 is written again, but 4 is complete"):
        marks_after(stored, {("t", 1): 9}, batch=3, term=9)


def test_spark_finds_the_source_by_itself() -> None:
    """T20, F74: by the name of a module and of a class in it, as Spark looks for them."""
    pytest.importorskip("pyspark")
    from importlib import import_module
    from pkgutil import iter_modules

    from pyspark.sql.datasource import DataSource

    assert "pyspark_dovetail" in {info.name for info in iter_modules()}
    found = import_module("pyspark_dovetail").DefaultSource
    assert issubclass(found, DataSource)
    assert found.name() == "dovetail"
