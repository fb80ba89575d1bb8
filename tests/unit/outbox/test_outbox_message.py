"""Messages, batches and waits: the pure parts of the outbox."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidInput
from dovetail.kafka.client.partitioner import crc32_partitioner, murmur2_partitioner
from dovetail.kafka.codec.error_codes import error_of
from dovetail.outbox.batch import (
    Batch,
    Identity,
    Row,
    compact,
    cut,
    decode_batches,
    decode_identity,
    encode_batches,
    encode_identity,
    plan,
    remaining,
    spread,
)
from dovetail.outbox.drain import Fate
from dovetail.outbox.message import (
    DELAY_HEADER,
    DUE_HEADER,
    Due,
    Message,
    due_ms_of,
    headers_from_text,
    headers_to_text,
)
from dovetail.outbox.pace import FETCH_BYTES, Pace, fetch_count, retry_delay_ms
from dovetail.outbox.producer import Producer, encode_json
from dovetail.outbox.sender import outcome_of


def _row(number: int, key: bytes | None = None, payload: bytes = b"x") -> Row:
    return Row(number, key, None, None, payload, f"m{number}", 0)


@pytest.mark.parametrize(
    ("due", "header"),
    [
        ("2h", (DELAY_HEADER, b"7200000")),
        ("0s", (DELAY_HEADER, b"0")),
        (timedelta(milliseconds=1), (DELAY_HEADER, b"1")),
        (datetime(1970, 1, 2, tzinfo=UTC), (DUE_HEADER, b"86400000")),
        (datetime(9999, 12, 31, tzinfo=UTC), (DUE_HEADER, b"253402214400000")),
    ],
)
def test_a_due_time_is_a_header(due: Due, header: tuple[str, bytes]) -> None:
    """O12: of a message for a topic as for a timeline; counted from when it was published."""
    message = Message.of("t", b"x", headers={"a": "b"}, due=due)
    assert message.headers == (("a", b"b"), header)
    timed = Message.for_timeline("t", b"x", due=due, priority=9, key="k")
    assert (timed.timeline, timed.topic, timed.is_due_later) == ("t", "timeline:t", True)
    name, value = header
    base_ms = 1_000 if name == DELAY_HEADER else 0
    found = due_ms_of(headers_from_text(headers_to_text(timed.headers)), published_ms=1_000)
    assert found == base_ms + int(value)


@pytest.mark.parametrize(
    "due",
    [
        "",
        "soon",
        "-1s",
        "2h\0",
        "\ud800",
        7200,
        1.5,
        b"2h",
        timedelta(-1),
        timedelta.max,
        "9" * 20 + "d",
    ],
)
def test_a_due_time_that_is_none_is_refused(due: Due) -> None:
    """O12, R6: at once, in the caller's transaction, with what can be written."""
    with pytest.raises(InvalidInput):
        Message.of("t", b"x", due=due)
    with pytest.raises(InvalidInput):
        Message.for_timeline("t", b"x", due=due)


@pytest.mark.parametrize(
    "given",
    [
        {"timeline": ""},
        {"timeline": "a b"},
        {"timeline": "x" * 101},
        {"timeline": None},
        {"timeline": "a\0"},
        {"payload": None},
        {"key": ""},
        {"key": "a\0b"},
        {"key": "\ud800"},
        {"priority": -1},
        {"priority": 10},
        {"priority": True},
        {"headers": {"a": None}},
    ],
)
def test_what_no_timeline_takes_is_refused(given: dict[str, object]) -> None:
    """O12, R6: before it is in the database."""
    values = {"timeline": "t", "payload": b"x", **given}
    with pytest.raises(InvalidInput):
        Message.for_timeline(values.pop("timeline"), values.pop("payload"), **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"soon", b"9" * 16, b"\xff"])
def test_a_due_header_of_another_writer_that_is_none(value: bytes) -> None:
    """O6, O12: it is told, and the message set aside."""
    for name in (DUE_HEADER, DELAY_HEADER):
        with pytest.raises(InvalidInput, match="milliseconds"):
            due_ms_of(((name, value),), published_ms=1)


def test_a_delay_of_another_writer_may_be_a_duration() -> None:
    """O12, K11: as any Kafka client may write it."""
    assert due_ms_of(((DELAY_HEADER, b"2h"),), published_ms=1) == 7_200_001
    with pytest.raises(InvalidInput, match="milliseconds"):
        due_ms_of(((DUE_HEADER, b"2h"),), published_ms=1)


def test_only_the_outbox_carries_what_is_due_later() -> None:
    """O12: a message that would be sent at once is refused."""
    for backend in ("kafka", "kafka_async"):
        with pytest.raises(InvalidInput, match="backend 'db'"):
            Producer("t", backend=backend).publish("x", due="2h")
        with pytest.raises(InvalidInput, match="backend 'db'"):
            Producer(backend=backend).schedule("reminders", "x")
    producer = Producer(backend="test")
    producer.schedule("reminders", "x", due="2h")
    assert [message.payload for message in producer.published.on("timeline:reminders")] == [b"x"]


@given(
    st.lists(st.tuples(st.text(min_size=1), st.none() | st.binary() | st.text().map(str.encode)))
)
def test_headers_come_back_as_they_were(headers: list[tuple[str, bytes | None]]) -> None:
    """O2: names, text, bytes and nothing are kept."""
    assert headers_from_text(headers_to_text(tuple(headers))) == tuple(headers)


@pytest.mark.parametrize(
    "text", ["{", "[1]", '[["a"]]', '[[1, "b"]]', '[["a", "b", "c"]]', '[["a", "?", "base64"]]']
)
def test_headers_that_are_none_are_refused(text: str) -> None:
    """O6: what another writer has spoilt is told, not sent."""
    with pytest.raises(InvalidInput, match="headers"):
        headers_from_text(text)


@pytest.mark.parametrize(
    "given",
    [
        {"topic": "a b"},
        {"topic": ""},
        {"topic": ".."},
        {"topic": "x" * 250},
        {"payload": "text"},
        {"payload": 7},
        {"key": b"x" * 5000},
        {"id": "with space"},
        {"id": ""},
        {"headers": (("dovetail-message-id", b"x"),)},
        {"topic": "timeline:"},
        {"topic": "timeline:a b"},
        {"topic": "timeline:a\0"},
        {"topic": "timeline:t", "payload": None},
        {"topic": "timeline:t", "key": b"\xff"},
        {"topic": "timeline:t", "key": b"a\0b"},
        {"topic": "timeline:t", "partition_key": b""},
        {"topic": "timeline:t", "headers": (("a", None),)},
    ],
)
def test_bad_messages_are_refused_at_the_edge(given: dict[str, object]) -> None:
    """O2, U7: before anything reaches the database."""
    with pytest.raises(InvalidInput):
        Message(**{"topic": "t", "payload": b"", **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [[("a",)], [5], 5, ["abc"]])
def test_headers_that_are_no_pairs_are_refused(headers: Any) -> None:
    """O2, R6: as `InvalidInput`, and not as what unpacking raises."""
    with pytest.raises(InvalidInput, match="pairs of a name and a value"):
        Message.of("t", b"", headers=headers)


def test_what_is_no_json_is_refused() -> None:
    """O2, R6: `NaN` went out, which no other reader takes: a poisoned topic."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for payload in (math.nan, {"a": math.inf}, [-math.inf], deep, {1, 2}):
        with pytest.raises(InvalidInput, match="as JSON"):
            encode_json(payload)


def test_text_becomes_bytes() -> None:
    """O2: keys, payloads and headers may be given as text."""
    message = Message.of("t", "p", key="k", partition_key="pk", headers={"a": "b", "c": None})
    assert (message.payload, message.key, message.partition_key) == (b"p", b"k", b"pk")
    assert message.headers == (("a", b"b"), ("c", None))
    assert Message.of("t", None, message_id="own").id == "own"


@given(st.lists(st.integers(0, 10**12), unique=True), st.lists(st.integers(0, 50), unique=True))
def test_a_batch_comes_back_as_it_was_written(ids: list[int], dropped: list[int]) -> None:
    """O7: whoever comes next sends exactly this."""
    batch = Batch(ids, 7, 3, 0, {0: 5, 6: 2**31 - 1}, dropped)
    assert decode_batches(encode_batches([batch, batch])) == [batch, batch]
    assert decode_batches(encode_batches([])) == []


def test_ids_that_follow_each_other_take_little_room() -> None:
    """O7: the row of the lock is written with every batch, and should stay small."""
    text = encode_batches([Batch(list(range(10**6, 10**6 + 1000)), 1, 1, 0, {0: 0})])
    assert text is not None
    assert len(text) < 150


def test_sequence_numbers_go_on_and_begin_again_at_their_end() -> None:
    """O7: 31 bits, as Kafka counts."""
    identity = Identity(1, 0, {0: 2**31 - 2})
    rows = [_row(number) for number in range(5)]
    batch, after = plan(rows, {0: rows}, identity, partitions=1)
    assert batch.first_by_partition == {0: 2**31 - 2}
    assert after.next_of(0) == 3
    assert decode_identity(encode_identity(after)) == after
    assert remaining(batch, {0: rows}) == batch


@given(
    st.lists(st.tuples(st.none() | st.sampled_from([b"a", b"b", b"c"]), st.binary(max_size=9))),
    st.integers(1, 9),
)
def test_rows_of_a_key_share_a_partition_in_order(
    given: list[tuple[bytes | None, bytes]], partitions: int
) -> None:
    """O5, O8: and the same rows go to the same places every time."""
    rows = [_row(number, key, payload) for number, (key, payload) in enumerate(given)]
    sets = spread(rows, partitions, crc32_partitioner)
    assert sorted(row.id for part in sets.values() for row in part) == [row.id for row in rows]
    assert all(part == sorted(part) for part in sets.values())
    for key in (b"a", b"b", b"c"):
        homes = {at for at, part in sets.items() if any(row.key == key for row in part)}
        assert len(homes) <= 1
    assert sets == spread(rows, partitions, crc32_partitioner)


def test_partitioners_agree_with_the_clients() -> None:
    """O2: values that Kafka's Java client and librdkafka give (murmur2 of their own test data)."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    for key, value in known.items():
        assert murmur2_partitioner(key, 1000) == (value & 0x7FFFFFFF) % 1000
    assert crc32_partitioner(b"123456789", 1 << 32) == 0xCBF43926


def test_compaction_keeps_the_last_of_each_key() -> None:
    """O10: in order, and everything without a key."""
    rows = [_row(1, b"a"), _row(2, b"b"), _row(3), _row(4, b"a"), _row(5), _row(6, b"a")]
    kept, dropped = compact(rows)
    assert [row.id for row in kept] == [2, 3, 5, 6]
    assert dropped == [1, 4]


def test_groups_are_cut_by_bytes() -> None:
    """O6: a row that is larger than the limit is alone."""
    rows = [_row(1, payload=b"x" * 100), _row(2, payload=b"x" * 100), _row(3, payload=b"x" * 5000)]
    rows += [_row(4), _row(5)]
    groups = cut(rows, bytes_max=500)
    assert [[row.id for row in group] for group in groups] == [[1, 2], [3], [4, 5]]
    assert cut([], bytes_max=500) == []


def test_retries_double_up_to_their_limit() -> None:
    """O4: with chance over the upper half, and never beyond a minute by default."""
    delays = [
        retry_delay_ms(n, first_ms=1000, most_ms=60_000, chance=1.0) for n in (0, 1, 5, 6, 99)
    ]
    assert delays == [1000, 2000, 32_000, 60_000, 60_000]
    assert retry_delay_ms(0, first_ms=1000, most_ms=60_000, chance=0.0) == 500


def test_looks_grow_apart_until_something_is_found() -> None:
    """O4: 0.5 s at most, at once again after a find; asleep as long as is allowed."""
    pace = Pace(idle_ms=500)
    waits = [pace.next_ms(asleep=False) for _ in range(12)]
    assert waits == sorted(waits)
    assert waits[0] == 2.0
    assert waits[-1] == 500.0
    assert pace.next_ms(asleep=True) == 500.0
    assert not pace.restless
    pace.found()
    assert pace.restless
    assert pace.next_ms(asleep=False) == 2.0


def test_large_messages_are_fetched_a_few_at_a_time() -> None:
    """R3: memory follows bytes, not counts."""
    assert fetch_count(1000, 100_000, most=1000) == 1000
    assert fetch_count(200, 200 * FETCH_BYTES, most=1000) == 1
    assert 1 <= fetch_count(0, 0, most=50) <= 50


@pytest.mark.parametrize(
    ("code", "fate", "again"),
    [
        (2, Fate.REFUSED, False),
        (10, Fate.REFUSED, False),
        (18, Fate.REFUSED, False),
        (32, Fate.REFUSED, False),
        (43, Fate.REFUSED, False),
        (76, Fate.REFUSED, False),
        (87, Fate.REFUSED, False),
        (45, Fate.FORGOTTEN, False),
        (47, Fate.FORGOTTEN, False),
        (59, Fate.FORGOTTEN, False),
        (17, Fate.FAILED, False),
        (29, Fate.FAILED, False),
        (44, Fate.FAILED, False),
        (6, Fate.FAILED, True),
        (7, Fate.FAILED, True),
        (56, Fate.FAILED, True),
    ],
)
def test_what_error_codes_mean(code: int, fate: Fate, again: bool) -> None:
    """O6: what is sent again until its time is over, what never will be taken."""
    error = error_of(code, "writing")
    assert outcome_of(error).fate is fate
    assert error.retriable is again
