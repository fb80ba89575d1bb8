"""What a batch holds that is due later, and what is appended when it is: pure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidBatch, InvalidInput
from dovetail.node.due.pump import LEASED_BYTES, LEASED_MAX, LEASED_MIN, next_limit
from dovetail.node.due.records import (
    PRODUCER_ID,
    WAITING_MAX,
    due_batch,
    names_in,
    record_of,
    split,
)
from dovetail.record_batch import (
    NewRecord,
    build_batch,
    check_batch,
    decode_batch,
    open_records,
    read_header,
)
from dovetail.timeline.message import Leased, MessageId, NewMessage, Version

NOW_MS = 1_700_000_000_000

names = st.text("abc-", min_size=1, max_size=5)
parts = st.none() | st.binary(max_size=5)
headers = st.lists(st.tuples(names, parts), max_size=3)
records = st.lists(
    st.tuples(parts, parts, headers, st.sampled_from([None, b"5000", b"0", b"1h"])),
    min_size=1,
    max_size=8,
)


def leased(message: NewMessage, number: int) -> Leased:
    return Leased(
        MessageId(number), Version(1), message.due_ms, 0, 1, 0, 0, message.body, message.headers
    )


@given(records, st.booleans())
def test_a_batch_is_split_and_nothing_is_lost(given_: list[Any], idempotent: bool) -> None:
    """K11: what stays keeps its offset, what waits comes back as it was, with its id."""
    sent = [
        NewRecord(NOW_MS, key, value, [*more, *([("dovetail-delay", delay)] if delay else [])])
        for key, value, more, delay in given_
    ]
    numbers = {"producer_id": 7, "producer_epoch": 2, "sequence": 40} if idempotent else {}
    batch = memoryview(build_batch(sent, **numbers))
    header = read_header(batch)
    found = split(batch, header, topic_id="t", now_ms=NOW_MS)

    waits = [delay in (b"5000", b"1h") for *_, delay in given_]
    if found is None:
        assert not any(waits)
        return
    assert len(found.waiting) == sum(waits)
    assert (found.batch is None) == (all(waits) and not idempotent)
    if found.batch is not None:
        kept = read_header(found.batch)
        assert kept == found.header
        assert (kept.last_offset_delta, kept.base_sequence) == (len(sent) - 1, header.base_sequence)
        expected = [at for at, wait in enumerate(waits) if not wait]
        assert [record.offset for record in decode_batch(found.batch)] == expected

    originals = [record for record, wait in zip(given_, waits, strict=True) if wait]
    messages = [leased(message, 100 + at) for at, message in enumerate(found.waiting)]
    restored = [record_of(message, f"7-{message.id}")[1] for message in messages]
    for (key, value, more, _), record in zip(originals, restored, strict=True):
        assert (record.key, record.value, list(record.headers)[:-1]) == (key, value, more)
    made = memoryview(due_batch(restored, 2**31 - 1))
    assert read_header(made).producer_id == PRODUCER_ID
    assert names_in(made, read_header(made)) == {f"7-{message.id}" for message in messages}


def test_records_with_the_same_headers_keep_what_is_their_own() -> None:
    """K11: their headers are read once, and each has its own key and value, or none."""
    same = [("trace", b"1"), ("bare", None), ("dovetail-delay", b"1h"), ("dovetail-key", b"k")]
    own = [(None, b"a"), (b"k", b"b"), (None, None), (b"", b""), (None, b""), (b"k", None)]
    sent = [NewRecord(NOW_MS, key, value, same) for key, value in own]
    batch = memoryview(build_batch(sent))
    found = split(batch, read_header(batch), topic_id="t", now_ms=NOW_MS)
    assert found is not None
    assert {(new.key, new.due_ms) for new in found.waiting} == {("k", NOW_MS + 3_600_000)}
    restored = [record_of(leased(message, 1), "7-1")[1] for message in found.waiting]
    assert [(record.key, record.value) for record in restored] == own
    assert {tuple(record.headers)[:-1] for record in restored} == {tuple(same[:2])}


@pytest.mark.parametrize("name", ["dovetail-due", "dovetail-delay"])
@pytest.mark.parametrize(
    "value", [None, b"", b"x", b"-1", b"1.5", b"\xff", b"9" * 30, "١٢".encode(), b"1\0"]
)
def test_a_time_that_cannot_be_is_refused(name: str, value: bytes | None) -> None:
    """K11, R6: whatever bytes come."""
    batch = memoryview(build_batch([NewRecord(NOW_MS, None, b"x", [(name, value)])]))
    with pytest.raises(InvalidBatch):
        split(batch, read_header(batch), topic_id="t", now_ms=NOW_MS)


def test_a_message_of_somebody_else_is_no_record() -> None:
    """K11: it is a dead letter, and does not stop the partition."""
    for headers_ in (b"", b"\xc1", b"\x91\x92\xa1a\xc4\x01b"):
        message = NewMessage(NOW_MS, b"x", headers_)
        with pytest.raises(InvalidInput):
            record_of(leased(message, 1), "7-1")


def test_a_name_that_is_no_text_is_refused() -> None:
    """K11, R6: headers have names in UTF-8."""
    batch = bytearray(build_batch([NewRecord(NOW_MS, None, b"x", [("ab", b"1")])]))
    at = bytes(batch).index(b"ab")
    batch[at : at + 2] = b"\xff\xfe"
    with pytest.raises(InvalidBatch, match="UTF-8"):
        list(open_records(batch, read_header(batch)))


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_is_sent_again_is_split_as_it_was(idempotent: bool) -> None:
    """K11, K4: a record that waits since the first attempt is not stored beside it by the second,
    which comes when it is due; what no timeline knows by its numbers is stored at once."""
    sent = [
        NewRecord(NOW_MS, b"k", b"plain"),
        NewRecord(NOW_MS, b"k", b"due", [("dovetail-due", b"%d" % (NOW_MS + 50))]),
        NewRecord(NOW_MS, b"k", b"seconds", [("dovetail-due", b"%d" % (NOW_MS // 1000))]),
    ]
    numbers = {"producer_id": 7, "producer_epoch": 2, "sequence": 40} if idempotent else {}
    batch = memoryview(build_batch(sent, **numbers))
    first, later = (
        split(batch, read_header(batch), topic_id="t", now_ms=NOW_MS + after_ms)
        for after_ms in (0, 60_000)
    )
    if not idempotent:
        assert later is None
        return
    assert first is not None
    assert later is not None
    assert first.batch == later.batch
    assert [each.body for each in first.waiting] == [each.body for each in later.waiting]
    # Its time is that of its arrival, or retention would remove it at once.
    assert [each.due_ms for each in first.waiting] == [NOW_MS + 50, NOW_MS]


def test_an_id_that_a_record_brings_is_not_its_own() -> None:
    """K11: a consumer that sends a record again with all its headers, to be due later, names a
    message of some other timeline; taken for ours, one that waits would be deleted unseen."""
    headers_ = [("dovetail-due-id", b"3-1"), ("a", b"b"), ("dovetail-delay", b"1h")]
    batch = memoryview(build_batch([NewRecord(NOW_MS, None, b"x", headers_)]))
    found = split(batch, read_header(batch), topic_id="t", now_ms=NOW_MS)
    assert found is not None
    _, record = record_of(leased(found.waiting[0], 9), "3-9")
    assert record.headers == [("a", b"b"), ("dovetail-due-id", b"3-9")]

    stored = record._replace(headers=[("dovetail-due-id", b"3-1"), *record.headers])
    made = memoryview(due_batch([stored], 0))
    assert names_in(made, read_header(made)) == {"3-9"}


def test_nobody_takes_the_part_of_our_producer() -> None:
    """K11, R7: a client's batch under its id and a higher epoch would stop a topic for good."""
    batch = bytearray(due_batch([NewRecord(NOW_MS, None, b"x")], 0))
    with pytest.raises(InvalidBatch, match="brokers"):
        check_batch(memoryview(batch), bytes_max=len(batch))


def test_a_batch_holds_back_so_many_and_no_more() -> None:
    """K11, R8: what waits is stored in one transaction."""
    sent = [NewRecord(NOW_MS, None, None, [("dovetail-delay", b"1h")])] * (WAITING_MAX + 1)
    batch = memoryview(build_batch(sent))
    with pytest.raises(InvalidBatch, match="smaller"):
        split(batch, read_header(batch), topic_id="t", now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("each", "wanted"), [(100, LEASED_MAX), (64 * 1024, 64), (1_000_000, LEASED_MIN)]
)
def test_large_messages_are_leased_few_at_a_time(each: int, wanted: int) -> None:
    """R8: five hundred of a megabyte would be held in memory at once, again after each restart."""
    limit = LEASED_MIN
    for _ in range(10):
        assert limit * each <= max(2 * LEASED_BYTES, LEASED_MIN * each)
        limit = next_limit(limit, count=limit, size=limit * each)
    assert limit == wanted
    assert next_limit(LEASED_MAX, count=0, size=0) == LEASED_MAX
    assert next_limit(LEASED_MAX, count=3, size=3_000_000) == LEASED_MIN
