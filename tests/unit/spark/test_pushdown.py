"""Filters of a query decide what is read, and nothing that passes them is left out."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from dovetail.kafka.client.brokers import Brokers
from dovetail.spark.options import ReadOptions
from dovetail.spark.pushdown import EVERYTHING, narrowed
from dovetail.spark.source import TopicReader

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPICS = ("ab", "abc", "b")
ONE_VALUE = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
STRINGS = (StringContains, StringEndsWith, StringStartsWith)


def filters_on(column: str, values: Any) -> Any:
    one = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(ONE_VALUE), values)
    several = st.lists(st.none() | values, max_size=3).map(lambda all_: In((column,), tuple(all_)))
    plain = one | several | st.just(IsNotNull((column,))) | st.just(EqualTo((column,), None))
    return plain | plain.map(Not)


FILTERS = st.lists(
    filters_on("topic", st.sampled_from(TOPICS))
    | st.builds(lambda kind, text: kind(("topic",), text), st.sampled_from(STRINGS), st.text("abc"))
    | filters_on("partition", st.integers(-1, 3))
    | filters_on("offset", st.integers(-2, 12) | st.just((1 << 63) - 1))
    | filters_on("timestamp", st.integers(-2, 8).map(lambda n: EPOCH + timedelta(microseconds=n)))
    | st.just(EqualTo(("headers", "key"), "x")),
    max_size=4,
)
ROWS = [
    {"topic": topic, "partition": number, "offset": offset, "timestamp": (offset * 7) % 5}
    for topic in TOPICS
    for number in range(3)
    for offset in range(10)
]


def truth(one: Filter, row: dict[str, Any]) -> bool | None:
    """What SQL says of a filter: true, false or null."""
    if isinstance(one, Not):
        inner = truth(one.child, row)
        return None if inner is None else not inner
    attribute: tuple[str, ...] = one.attribute  # type: ignore[attr-defined]
    if len(attribute) > 1:
        return False
    found = row[attribute[0]]
    if attribute == ("timestamp",):
        found = EPOCH + timedelta(milliseconds=found)
    if isinstance(one, IsNotNull):
        return True
    value = one.value  # type: ignore[attr-defined]
    if isinstance(one, In):
        return True if found in value else (None if None in value else False)
    if isinstance(one, EqualNullSafe):
        return bool(found == value)
    if value is None:
        return None
    if isinstance(one, STRINGS):
        told = {StringContains: found.count, StringEndsWith: found.endswith}
        return bool(told.get(type(one), found.startswith)(value))
    return {
        EqualTo: found == value,
        GreaterThan: found > value,
        GreaterThanOrEqual: found >= value,
        LessThan: found < value,
        LessThanOrEqual: found <= value,
    }[type(one)]


@given(FILTERS)
def test_what_is_read_and_what_spark_evaluates_is_what_the_filters_say(filters: Any) -> None:
    """T20: filters of all kinds, with nulls and negations, on rows of several partitions."""
    wanted, left = narrowed(filters)
    assert all(any(one is had for had in filters) for one in left), "Spark compares by reference"

    known = {(row["topic"], row["partition"]) for row in ROWS}
    starts, ends = wanted.within(dict.fromkeys(known, 0), dict.fromkeys(known, 10))
    read = []
    for key, end in ends.items():
        inside = [row for row in ROWS if (row["topic"], row["partition"]) == key]
        first = starts[key]
        if wanted.since_ms is not None:
            # What a broker answers: the first that is not older.
            recent = (row["offset"] for row in inside if row["timestamp"] >= wanted.since_ms)
            first = max(first, next(recent, end))
        read += [row for row in inside if first <= row["offset"] < end]

    passing = [row for row in ROWS if all(truth(one, row) is True for one in filters)]
    seen = [row for row in read if all(truth(one, row) is True for one in left)]
    order = [*TOPICS]
    seen.sort(key=lambda row: (order.index(row["topic"]), row["partition"], row["offset"]))
    assert seen == passing


def test_a_filter_on_offset_is_not_evaluated_twice() -> None:
    """T20: what is exact Spark leaves out; a time it looks at again."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    late, exact = GreaterThan(("timestamp",), moment), LessThan(("offset",), 9)
    wanted, left = narrowed([late, exact, EqualTo(("partition",), 0)])
    assert left == [late]
    assert (wanted.start, wanted.end, wanted.takes(("a", 1))) == (0, 9, False)
    assert wanted.since_ms == moment.timestamp() * 1000
    naive = GreaterThan(("timestamp",), moment.replace(tzinfo=None))
    assert narrowed([naive, EqualTo(("offset",), "9")]) == (
        EVERYTHING,
        [naive, EqualTo(("offset",), "9")],
    )


def test_spark_does_not_refuse_a_reader_where_pushdown_is_off() -> None:
    """T20: the comparison by which Spark finds a `pushFilters` that it was told not to call."""
    reader = TopicReader(ReadOptions(Brokers("unused:1"), ("orders",)))
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert reader.pushFilters([EqualTo(("partition",), 3)]) == []
    assert not reader.wanted.takes(("orders", 2))
