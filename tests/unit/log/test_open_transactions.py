"""Open and aborted transactions in the table of a partition's producers: a function of the log."""

import pytest

from dovetail.errors import Fenced, ProducerFenced, TransactionRefused, Unavailable
from dovetail.log.producers import ProducerTable
from dovetail.record_batch import (
    TRANSACTIONAL,
    BatchHeader,
    Marker,
    NewRecord,
    build_batch,
    build_marker,
    decode_batch,
    read_header,
    read_marker,
)


def data(
    offset: int, *, sequence: int = 0, epoch: int = 0, attributes: int = TRANSACTIONAL
) -> BatchHeader:
    batch = build_batch(
        [NewRecord(0, None, b"x")],
        producer_id=7,
        producer_epoch=epoch,
        sequence=sequence,
        attributes=attributes,
    )
    return read_header(batch)._replace(base_offset=offset)


def mark(
    table: ProducerTable, offset: int, number: int, *, commit: bool = True, epoch: int = 0
) -> object:
    marker = Marker(7, epoch, commit, 3, number)
    header = read_header(build_marker(marker, timestamp=0))._replace(base_offset=offset)
    known = table.duplicate_of(header, now_ms=0, marker=marker)
    return known if known is not None else table.note(header, now_ms=0, marker=marker)


def opened(table: ProducerTable, offset: int, number: int, *, sequence: int = 0) -> None:
    table.admit(7, 0, number)
    header = data(offset, sequence=sequence)
    assert table.duplicate_of(header, now_ms=0) is None
    table.note(header, now_ms=0)


def test_a_marker_is_a_control_batch_that_holds_no_record() -> None:
    """K8: what it says comes back, and our readers see nothing in it."""
    marker = Marker(2**40, 32767, False, 9, 2**50)
    batch = build_marker(marker, timestamp=5)
    assert read_marker(batch, read_header(batch)) == marker
    assert list(decode_batch(batch)) == []
    plain = build_batch([NewRecord(0, None, b"x")])
    assert read_marker(plain, read_header(plain)) is None


def test_the_first_batch_is_admitted_and_the_last_stable_offset_waits_for_the_marker() -> None:
    """K8: until the marker is confirmed, not until it is written."""
    table = ProducerTable()
    with pytest.raises(Unavailable, match="verify its transaction first"):
        table.duplicate_of(data(0), now_ms=0)
    opened(table, 10, 1)
    assert table.is_open(7, 0)
    assert table.stable_below(11) == 10
    assert mark(table, 12, 1) is None
    assert table.stable_below(12) == 10
    assert table.stable_below(13) == 13


def test_a_batch_behind_its_marker_opens_nothing() -> None:
    """K8: it would hang for ever; so would one that was admitted before the marker came."""
    table = ProducerTable()
    opened(table, 0, 1)
    table.admit(7, 0, 1)
    mark(table, 1, 1)
    with pytest.raises(Unavailable):
        table.duplicate_of(data(2, sequence=1), now_ms=0)
    with pytest.raises(TransactionRefused, match="has ended"):
        table.admit(7, 0, 1)


def test_a_marker_that_comes_twice_or_late_changes_nothing() -> None:
    """K8: also when the next transaction is open under the same epoch."""
    table = ProducerTable()
    opened(table, 0, 1)
    mark(table, 1, 1)
    opened(table, 2, 2, sequence=1)
    assert mark(table, 3, 1, commit=False) == 1
    assert table.is_open(7, 0)
    aborted = mark(table, 4, 2, commit=False)
    assert aborted == (7, 2, 4, 5)


def test_markers_of_older_epochs_and_of_replaced_coordinators_are_refused() -> None:
    """K8: by what the log knows of the producer."""
    table = ProducerTable()
    opened(table, 0, 1)
    mark(table, 1, 1, epoch=4)
    with pytest.raises(ProducerFenced):
        mark(table, 2, 2, epoch=3)
    late = Marker(7, 4, True, 2, 2)
    header = read_header(build_marker(late, timestamp=0))
    with pytest.raises(Fenced):
        table.duplicate_of(header, now_ms=0, marker=late)
    with pytest.raises(ProducerFenced):
        table.duplicate_of(data(2, epoch=3), now_ms=0)


def test_a_batch_outside_of_its_open_transaction_is_refused() -> None:
    """K8: a producer is in it or not."""
    table = ProducerTable()
    opened(table, 0, 1)
    with pytest.raises(TransactionRefused):
        table.duplicate_of(data(1, sequence=1, attributes=0), now_ms=0)


def test_open_ones_are_never_forgotten_with_their_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """K8: however many producers come after, and however long it takes."""
    monkeypatch.setattr("dovetail.log.producers.PRODUCERS_MAX", 2)
    table = ProducerTable()
    opened(table, 0, 1)
    for other in range(20, 25):
        table.note(data(other, attributes=0)._replace(producer_id=other), now_ms=0)
    assert table.is_open(7, 0)
    later = ProducerTable(table.snapshot(now_ms=10**10), table.open_transactions())
    assert later.lowest_open == 0
    assert later.duplicate_of(data(9, sequence=1), now_ms=10**10) is None
