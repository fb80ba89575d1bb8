"""Compaction on a real disk, in process: what stays, what goes, and what readers see of it."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.unit.log.conftest import Bench, read_all

from dovetail.errors import InvalidBatch, OffsetOutOfRange
from dovetail.log.compaction.compactor import CompactionSettings, CompactionState, Compactor
from dovetail.log.partition import Partition
from dovetail.log.reading import (
    newest_record,
    offset_for_time,
    read_committed,
    read_from_storage,
)
from dovetail.record_batch import (
    DUE_PRODUCER_ID,
    TRANSACTIONAL,
    Marker,
    NewRecord,
    build_batch,
    build_marker,
    check_batch,
    decode_batch,
    encode_batch,
    read_header,
)

Pair = tuple[bytes, bytes | None]


def compactor(bench: Bench, *, memory_bytes: int = 1 << 20) -> Compactor:
    settings = CompactionSettings(memory_bytes=memory_bytes, bytes_per_second=1 << 40)
    return Compactor(clock=bench.clock, settings=settings)


async def send(bench: Bench, partition: Partition, *pairs: Pair) -> int:
    """Stores pairs as one batch; its first offset."""
    raw = memoryview(encode_batch(pairs, timestamp=bench.clock.wall_ms()))
    return (await partition.append(raw, check_batch(raw, bytes_max=1 << 20))).base_offset


async def transact(partition: Partition, number: int, *pairs: Pair, commit: bool) -> None:
    """A transaction of one batch, and its marker."""
    partition.producers.admit(7, 0, number)
    records = [NewRecord(1000, key, value) for key, value in pairs]
    known = partition.producers.known().get(7)
    sequence = known.batches[-1].sequence_last + 1 if known and known.batches else 0
    batch = build_batch(
        records, producer_id=7, producer_epoch=0, sequence=sequence, attributes=TRANSACTIONAL
    )
    raw = memoryview(bytearray(batch))
    await partition.append(raw, read_header(raw))
    mark = memoryview(build_marker(Marker(7, 0, commit, 1, number), timestamp=1000))
    await partition.append(mark, read_header(mark))


async def rolled(partition: Partition) -> None:
    """Everything so far is in closed ledgers."""
    end = partition.high_watermark
    partition.roll()
    async with asyncio.timeout(60):
        while partition.record.closed_end < end:
            await asyncio.sleep(0.001)


async def compact(bench: Bench, partition: Partition, **more: int) -> Compactor:
    """One pass, whether it is due or not."""
    made = compactor(bench, **more)
    await made.compact(partition, await made.survey(partition))
    return made


def pairs_of(records: Sequence[object]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in records]  # type: ignore[attr-defined]


@pytest.mark.parametrize("crash", [False, True])
async def test_the_last_record_of_each_key_stays_with_its_offset(bench: Bench, crash: bool) -> None:
    """L17: across ledgers and a restart; what is not closed stays whole."""
    partition = await bench.topic(cleanup_policy="compact")
    await send(bench, partition, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    await rolled(partition)
    await send(bench, partition, (b"c", b"1"), (b"b", b"2"))
    await send(bench, partition, (b"c", b"2"))
    await rolled(partition)
    await send(bench, partition, (b"a", b"3"))
    await compact(bench, partition)
    expected = [(2, b"a", b"2"), (4, b"b", b"2"), (5, b"c", b"2"), (6, b"a", b"3")]
    for tail in (True, False):
        assert pairs_of(await read_all(partition, tail=tail)) == expected
    await bench.restart(crash=crash)
    partition = bench.log.partition("t", 0)
    assert pairs_of(await read_all(partition)) == expected
    assert await send(bench, partition, (b"d", b"1")) == 7
    await rolled(partition)
    await compact(bench, partition)
    assert [r.offset for r in await read_all(partition)] == [4, 5, 6, 7]
    assert partition.record.rewriting is None
    assert len(partition.record.closed) == 1, "small neighbours become one ledger"
    # Those that were replaced are gone from the disk.
    named = {info.ledger for info in partition.record.ledgers}
    assert await bench.storage.ledgers() == named


async def test_a_batch_that_proves_what_was_due_stays_until_it_is_settled(bench: Bench) -> None:
    """K11, L17: a new owner reads there what is in the log already, however late it comes."""
    partition = await bench.topic(cleanup_policy="compact")
    due = build_batch(
        [NewRecord(1000, b"a", b"due")], producer_id=DUE_PRODUCER_ID, producer_epoch=0, sequence=0
    )
    await send(bench, partition, (b"a", b"1"), (b"a", b"2"))
    raw = memoryview(bytearray(due))
    await partition.append(raw, read_header(raw))
    await send(bench, partition, (b"a", b"3"))
    await rolled(partition)
    await compact(bench, partition)
    assert b"due" in [r.value for r in await read_all(partition)]
    await bench.restart(crash=True)
    partition = bench.log.partition("t", 0)
    await compact(bench, partition)
    assert b"due" in [r.value for r in await read_all(partition)]
    partition.producers.due_settled = True
    await compact(bench, partition)
    assert [r.value for r in await read_all(partition)] == [b"3"]


async def test_a_reader_gets_across_what_is_gone(bench: Bench) -> None:
    """L17, L7: at every offset, in a gap or at the end of a ledger of which nothing is left."""
    partition = await bench.topic(cleanup_policy="compact")
    for n in range(20):
        await send(bench, partition, (b"k", b"%d" % n), (b"k", b"%d!" % n))
        if n % 5 == 4:
            await rolled(partition)
    await send(bench, partition, (b"k", b"last"))
    await rolled(partition)
    await compact(bench, partition)
    for offset in range(41):
        batches = await read_from_storage(partition, offset, 10)
        assert read_header(batches[0]).offset_end > offset
    assert pairs_of(await read_all(partition, tail=False)) == [(40, b"k", b"last")]
    with pytest.raises(OffsetOutOfRange):
        await read_from_storage(partition, 41, 10)


async def test_a_reader_gets_a_record_with_what_has_none(bench: Bench) -> None:
    """L17, K1: a ledger of which nothing stays ends in a batch without records, and the next one is
    too large to join it; kafkajs asked behind such an answer for ever again. At the end of what may
    be read there is nothing more to give."""
    partition = await bench.topic(cleanup_policy="compact", segment_bytes="65536")
    for key in (b"one", b"two", b"two", b"three"):
        await send(bench, partition, (key, bytes(40_000)))
        await rolled(partition)
    await compact(bench, partition)
    for offset in range(4):
        batches = await read_from_storage(partition, offset, 10)
        assert sum(read_header(batch).record_count for batch in batches) == 1, offset
    short = await read_from_storage(partition, 1, 10, end=2)
    assert [read_header(batch).record_count for batch in short] == [0]


async def test_a_log_of_which_nothing_stays_still_ends_where_it_ended(bench: Bench) -> None:
    """L17: a reader that waits for the end gets there, by a batch without records."""
    partition = await bench.topic(cleanup_policy="compact", delete_retention_ms="0")
    await send(bench, partition, (b"a", b"1"), (b"a", None))
    await rolled(partition)
    await compact(bench, partition)
    bench.clock.advance(1)
    await send(bench, partition, (b"a", None))
    await rolled(partition)
    await compact(bench, partition)
    bench.clock.advance(1)
    await compact(bench, partition)
    batches = await read_from_storage(partition, 0, 1000)
    assert [list(decode_batch(batch)) for batch in batches] == [[]]
    assert read_header(batches[-1]).offset_end == partition.high_watermark == 3
    assert await offset_for_time(partition, 0) is None
    assert await newest_record(partition) is None
    await bench.restart()
    assert await send(bench, bench.log.partition("t", 0), (b"a", b"2")) == 3


async def test_tombstones_stay_for_a_time_and_what_they_delete_does_not(bench: Bench) -> None:
    """L17: delete.retention.ms counts from the first compaction, however often one follows."""
    partition = await bench.topic(cleanup_policy="compact", delete_retention_ms="1000")
    await send(bench, partition, (b"a", b"1"), (b"b", b"1"))
    await send(bench, partition, (b"a", None))
    await rolled(partition)
    for _ in range(3):
        await compact(bench, partition)
        kept = await read_all(partition, tail=False)
        assert pairs_of(kept) == [(1, b"b", b"1"), (2, b"a", None)]
        assert [r.timestamp for r in kept] == [kept[0].timestamp] * 2, "times do not change"
        bench.clock.advance(333)
    bench.clock.advance(1)
    await compact(bench, partition)
    assert pairs_of(await read_all(partition, tail=False)) == [(1, b"b", b"1")]


async def test_a_clock_that_is_set_ahead_takes_no_tombstones(bench: Bench) -> None:
    """L17, F16: a reader that is away for less than its time must not miss a deletion."""
    partition = await bench.topic(cleanup_policy="compact", delete_retention_ms="1000")
    await send(bench, partition, (b"a", b"1"))
    await send(bench, partition, (b"a", None))
    await rolled(partition)
    made = compactor(bench)
    for jump_ms in (0, 10**9):
        bench.clock.jump_wall(jump_ms)
        await made.compact(partition, await made.survey(partition))
        assert pairs_of(await read_all(partition, tail=False)) == [(1, b"a", None)]


async def test_a_map_that_is_too_small_takes_several_passes(bench: Bench) -> None:
    """L17: each compacts a part, up to the record that found no room, and the next goes on."""
    partition = await bench.topic(cleanup_policy="compact")
    for _ in range(2):
        for at in range(0, 3000, 100):
            pairs = [(b"%d" % (at + n), b"v") for n in range(100)]
            await send(bench, partition, *pairs)
    await rolled(partition)
    passes = 0
    made = compactor(bench, memory_bytes=1)
    while (survey := await made.survey(partition)).end > survey.first_dirty:
        await made.compact(partition, survey)
        passes += 1
    assert passes == 6, "a thousand keys at a time"
    assert [r.offset for r in await read_all(partition, tail=False)] == list(range(3000, 6000))


async def test_a_batch_of_more_keys_than_the_map_is_compacted_too(bench: Bench) -> None:
    """L17: a pass can end within a batch."""
    partition = await bench.topic(cleanup_policy="compact")
    pairs = [(b"%d" % (n % 2500), b"v") for n in range(5000)]
    await send(bench, partition, *pairs)
    await rolled(partition)
    made = compactor(bench, memory_bytes=1)
    while (survey := await made.survey(partition)).end > survey.first_dirty:
        await made.compact(partition, survey)
    assert [r.offset for r in await read_all(partition, tail=False)] == list(range(2500, 5000))


async def test_aborted_records_go_and_open_transactions_stop_compaction(bench: Bench) -> None:
    """L17, K8: nothing behind the last stable offset is touched, and readers are told no abort of
    which nothing is left."""
    partition = await bench.topic(cleanup_policy="compact", delete_retention_ms="1000")
    await transact(partition, 1, (b"a", b"committed"), commit=True)
    await transact(partition, 2, (b"a", b"aborted"), (b"b", b"aborted"), commit=False)
    await rolled(partition)
    end = partition.high_watermark
    partition.producers.admit(7, 0, 3)
    batch = build_batch(
        [NewRecord(1, b"a", b"open")],
        producer_id=7,
        producer_epoch=0,
        sequence=3,
        attributes=TRANSACTIONAL,
    )
    raw = memoryview(bytearray(batch))
    await partition.append(raw, read_header(raw))
    await rolled(partition)

    made = await compact(bench, partition)
    survey = await made.survey(partition)
    assert survey.first_dirty == survey.end == end == partition.last_stable
    assert pairs_of(await read_all(partition, tail=False)) == [
        (0, b"a", b"committed"),
        (end, b"a", b"open"),
    ]
    batches, aborted = await read_committed(partition, 0, 1 << 20, end=end)
    assert aborted == []
    # Both markers are there: one has a record, the other waits for its horizon.
    assert [read_header(batch).base_offset for batch in batches] == [0, 1, 4]

    # Producers are known as before, also by the next owner.
    await bench.restart()
    partition = bench.log.partition("t", 0)
    assert partition.producers.known()[7].batches[-1].sequence_last == 3
    assert partition.last_stable == end
    mark = memoryview(build_marker(Marker(7, 0, True, 1, 3), timestamp=1000))
    await partition.append(mark, read_header(mark))
    await rolled(partition)
    for _ in range(3):
        await compact(bench, partition)
        bench.clock.advance(2000)
    assert pairs_of(await read_all(partition, tail=False)) == [(end, b"a", b"open")]
    batches, _ = await read_committed(partition, 0, 1 << 20, end=partition.last_stable)
    kept = [read_header(batch).base_offset for batch in batches]
    assert kept == [end, end + 1], "markers of which nothing is left are gone"


async def test_when_compaction_is_due(bench: Bench) -> None:
    """L17: min.cleanable.dirty.ratio, min.compaction.lag.ms and max.compaction.lag.ms as Kafka
    means them."""
    partition = await bench.topic(
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.5",
        min_compaction_lag_ms="1000",
        max_compaction_lag_ms="5000",
    )
    made = compactor(bench)
    for n in range(4):
        await send(bench, partition, (b"a", b"%d" % n))
    assert not (await made.survey(partition)).due, "what is open is not compacted"
    await rolled(partition)
    survey = await made.survey(partition)
    assert not survey.due
    assert survey.end == survey.first_dirty, "it is too young"
    bench.clock.advance(1000)
    survey = await made.survey(partition)
    assert survey.due
    assert survey.dirty_ratio == 1.0
    await made.compact(partition, survey)

    for key in (b"b", b"c", b"d"):
        await send(bench, partition, (key, b"1" * 100))
    await rolled(partition)
    bench.clock.advance(1000)
    await made.compact(partition, await made.survey(partition))
    await send(bench, partition, (b"e", b"1"))
    await bench.log.maintain()
    assert len(partition.record.open) == 1
    bench.clock.advance(5000)
    await bench.log.maintain()
    async with asyncio.timeout(60):
        while partition.record.closed_end != partition.high_watermark:
            await asyncio.sleep(0.001)
    survey = await made.survey(partition)
    assert survey.dirty_ratio < 0.5
    assert survey.overdue
    assert survey.due


async def test_how_far_a_partition_is_compacted_can_be_seen(bench: Bench) -> None:
    """L17: the offset it is compacted up to, what is dirty, when the last pass ended and how fast
    it read; and nothing of a topic that is not compacted any more."""
    partition = await bench.topic(cleanup_policy="compact", min_cleanable_dirty_ratio="0.9")
    made = compactor(bench)
    for n in range(4):
        await send(bench, partition, (b"a", b"%d" % n * 100))
    await rolled(partition)
    found = await made._dirtiest([partition], set())
    assert found is not None
    assert made.report.partitions[partition.name] == CompactionState(found[1], None)
    await made.compact(*found)
    await send(bench, partition, (b"b", b"1"))
    await rolled(partition)

    assert await made._dirtiest([partition], set()) is None
    state = made.report.partitions[partition.name]
    assert (state.survey.first_dirty, state.survey.end) == (4, 5)
    assert 0 < state.survey.dirty_bytes < state.survey.clean_bytes + state.survey.dirty_bytes
    assert state.last is not None
    assert state.last.ended_ms == bench.clock.wall_ms()
    assert state.last.bytes_per_second > 0
    assert await made._dirtiest([], set()) is None
    assert made.report.partitions == {}


async def test_both_policies_and_a_policy_that_changes(bench: Bench) -> None:
    """L17, L11: compact,delete does both; after a change to compact what has no key goes."""
    partition = await bench.topic(cleanup_policy="delete", retention_ms="10000")
    await bench.send(partition, b"keyless")
    await send(bench, partition, (b"a", b"1"), (b"a", b"2"))
    await rolled(partition)
    await bench.log.alter_config("t", {"cleanup.policy": "compact,delete", "retention.ms": "10000"})
    async with asyncio.timeout(60):
        while not partition.config.compacts:
            await asyncio.sleep(0.001)
    await compact(bench, partition)
    assert pairs_of(await read_all(partition, tail=False)) == [(2, b"a", b"2")]
    bench.clock.advance(10_001)
    await bench.log.maintain()
    assert partition.log_start == partition.high_watermark == 3
    raw = memoryview(encode_batch([(b"k", b"v"), (None, b"v")], timestamp=0))
    with pytest.raises(InvalidBatch, match="record 1 of the batch has no key"):
        bench.log.examiner.append(
            partition, raw, read_header(raw), admit=None, store=partition.append
        )


async def test_a_reader_under_compaction_reads_again(bench: Bench) -> None:
    """L17: one whose ledger is deleted before it gets there finds the new one."""
    partition = await bench.topic(cleanup_policy="compact")
    for n in range(10):
        await send(bench, partition, (b"k", b"%d" % n))
    await rolled(partition)
    storage, read = bench.storage, bench.storage.read
    held, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*args: object, **more: object) -> object:
        held.set()
        await go_on.wait()
        return await read(*args, **more)  # type: ignore[arg-type]

    storage.read = slow  # type: ignore[assignment]
    reading = asyncio.create_task(read_from_storage(partition, 3, 1000))
    searching = asyncio.create_task(offset_for_time(partition, 0))
    await held.wait()
    storage.read = read  # type: ignore[method-assign]
    await compact(bench, partition)
    go_on.set()
    assert [read_header(b).offset_end for b in await reading] == [10]
    found = await searching
    assert found is not None
    assert found.offset == 9


async def test_what_a_dead_owner_was_writing_goes(bench: Bench) -> None:
    """L17, L8: the record names it, a sweep leaves it alone, and the next look lets it go."""
    partition = await bench.topic(cleanup_policy="compact")
    await send(bench, partition, (b"k", b"1"), (b"k", b"2"))
    await rolled(partition)
    made = compactor(bench)
    swap = partition.chain.swap

    async def dies(*_: object) -> bool:
        raise asyncio.CancelledError

    partition.chain.swap = dies  # type: ignore[method-assign, assignment]
    with pytest.raises(asyncio.CancelledError):
        await made.compact(partition, await made.survey(partition))
    partition.chain.swap = swap  # type: ignore[method-assign]
    left = partition.record.rewriting
    assert left is not None
    assert left.ledger in await bench.storage.ledgers()

    await bench.restart(crash=True)  # Sweeps.
    partition = bench.log.partition("t", 0)
    assert left.ledger in await bench.storage.ledgers()
    run = asyncio.create_task(compactor(bench).run(bench.log.partitions))
    async with asyncio.timeout(60):
        while partition.record.rewriting is not None or not partition.record.closed[0].is_compacted:
            await asyncio.sleep(0.001)
        while left.ledger in await bench.storage.ledgers():
            await asyncio.sleep(0.001)
    run.cancel()
    assert pairs_of(await read_all(partition, tail=False)) == [(1, b"k", b"2")]


async def test_a_partition_that_cannot_be_compacted_leaves_the_others_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L17, R5: whatever a pass raises; it is counted, and tried again later."""
    bad = await bench.topic("bad", cleanup_policy="compact")
    good = await bench.topic("good", cleanup_policy="compact")
    for partition in (bad, good):
        await send(bench, partition, (b"k", b"1"), (b"k", b"2"))
        await rolled(partition)
    made = compactor(bench)
    replace = made._replace

    async def fails(partition: Partition, *given: object, **named: object) -> None:
        if partition is bad:
            raise ZeroDivisionError("nobody expects it")
        await replace(partition, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(made, "_replace", fails)
    run = asyncio.create_task(made.run(lambda: [bad, good]))
    async with asyncio.timeout(60):
        while not good.record.closed[0].is_compacted or not made.report.passes_failed:
            await asyncio.sleep(0.001)
    assert made.report.partitions["bad-0"].survey.dirty_ratio == 1.0
    assert made.report.partitions["bad-0"].last is None
    run.cancel()
