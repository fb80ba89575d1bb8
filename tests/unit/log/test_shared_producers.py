"""Producer ids that attempts share: others who write to the partition do not push them out."""

from collections.abc import Iterator

import pytest

from dovetail.errors import SequenceGap, Unavailable
from dovetail.log import producers
from dovetail.log.producers import SHARED_FROM, SHARED_KEPT_MS, ProducerTable
from dovetail.record_batch import BatchHeader, NewRecord, build_batch, read_header


def batch(producer: int, sequence: int = 0) -> BatchHeader:
    made = build_batch(
        [NewRecord(0, None, b"x")], producer_id=producer, producer_epoch=0, sequence=sequence
    )
    return read_header(made)._replace(base_offset=0)


def store(table: ProducerTable, producer: int, sequence: int, *, now_ms: int) -> None:
    header = batch(producer, sequence)
    assert table.duplicate_of(header, now_ms=now_ms) is None
    table.note(header, now_ms=now_ms)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 10)
    monkeypatch.setattr(producers, "SHARED_MAX", 5)
    yield


def chain_of_seven(table: ProducerTable, *, now_ms: int) -> None:
    """An attempt slept with batch 0 in its hand; another one has stored 0 to 6 since."""
    for sequence in range(7):
        store(table, SHARED_FROM, sequence, now_ms=now_ms)


def test_a_crowd_of_producers_does_not_let_an_old_batch_of_a_chain_in() -> None:
    """T5, K4: the attempt wakes up within the hour, and is refused as ever."""
    table = ProducerTable()
    chain_of_seven(table, now_ms=0)
    for other in range(1_000):
        store(table, other, 0, now_ms=other)
    assert len(table.known()) == 10

    for one in (table, ProducerTable(table.snapshot(now_ms=1_000))):
        with pytest.raises(SequenceGap):
            one.duplicate_of(batch(SHARED_FROM, 0), now_ms=SHARED_KEPT_MS - 1)
        assert one.duplicate_of(batch(SHARED_FROM, 7), now_ms=1_000) is None


def test_a_crowd_of_chains_is_refused_and_pushes_none_out() -> None:
    """T5: one chain too many is told to wait; the others go on, and places become free."""
    table = ProducerTable()
    chain_of_seven(table, now_ms=0)
    for other in range(1, 5):
        store(table, SHARED_FROM + other, 0, now_ms=other)
    with pytest.raises(Unavailable, match="5 chains"):
        table.duplicate_of(batch(SHARED_FROM + 5, 0), now_ms=10)
    assert table.duplicate_of(batch(4, 0), now_ms=10) is None, "an ordinary producer"
    assert table.duplicate_of(batch(SHARED_FROM + 4, 1), now_ms=10) is None, "one that is there"
    store(table, 3, 0, now_ms=SHARED_KEPT_MS)
    assert table.duplicate_of(batch(SHARED_FROM + 5, 0), now_ms=10) is None


def test_chains_that_were_silent_for_hours_make_room_for_others() -> None:
    """K4: the table stays as small as it was."""
    table = ProducerTable()
    for number in range(50):
        store(table, SHARED_FROM + number, 0, now_ms=number * SHARED_KEPT_MS)
        store(table, number, 0, now_ms=number * SHARED_KEPT_MS)
    assert len(table.known()) == 10
