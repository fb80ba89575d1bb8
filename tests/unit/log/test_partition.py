"""A partition: offsets, order, producers, ledgers, time, and its end."""

import asyncio
import threading
from itertools import count
from typing import Any

import pytest
from tests.unit.log.conftest import Bench, read_all

from dovetail.errors import (
    DiskFull,
    DovetailError,
    NotOwner,
    OffsetOutOfRange,
    ProducerFenced,
    SequenceGap,
    TopicExists,
    TopicUnknown,
    Unavailable,
)
from dovetail.log.producers import IN_ORDER_MS
from dovetail.log.reading import TimedOffset, newest_record, offset_for_time, read_from_tail


async def settle(bench: Bench) -> None:
    """Waits until a roll has closed the ledger before."""
    rolling = bench.log.partition("t", 0)._rolling
    if rolling is not None:
        await asyncio.wait([rolling])


async def test_offsets_follow_the_records(bench: Bench) -> None:
    """K2: a batch gets the offset behind the last record, and is stored as it came."""
    partition = await bench.topic()
    assert (await bench.send(partition, b"a", b"b", b"c")).base_offset == 0
    assert (await bench.send(partition, b"d")).base_offset == 3
    assert partition.high_watermark == 4
    for tail in (True, False):
        found = await read_all(partition, tail=tail)
        assert [(r.offset, r.value) for r in found] == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]


@pytest.mark.parametrize("crash", [False, True])
async def test_everything_is_there_after_a_restart(bench: Bench, crash: bool) -> None:
    """L6, L9: after a clean stop and after a crash; the term rises, offsets go on."""
    partition = await bench.topic()
    await asyncio.gather(*(bench.send(partition, str(n).encode()) for n in range(3000)))
    term = partition.term
    await bench.restart(crash=crash)
    partition = bench.log.partition("t", 0)
    assert partition.term > term
    assert [r.value for r in await read_all(partition)] == [str(n).encode() for n in range(3000)]
    assert (await bench.send(partition, b"next")).base_offset == 3000


async def test_a_repeated_batch_is_stored_once(bench: Bench) -> None:
    """K4: while it is on its way, after it is stored, after a crash and after a clean stop."""
    partition = await bench.topic()
    first = bench.send_numbered(partition, b"a", b"b", sequence=0)
    again = bench.send_numbered(partition, b"a", b"b", sequence=0)
    assert (await first).base_offset == (await again).base_offset == 0
    assert (await bench.send_numbered(partition, b"c", sequence=2)).base_offset == 2
    for crash in (True, False):
        await bench.restart(crash=crash)
        partition = bench.log.partition("t", 0)
        assert (await bench.send_numbered(partition, b"a", b"b", sequence=0)).base_offset == 0
        assert (await bench.send_numbered(partition, b"c", sequence=2)).base_offset == 2
    assert len(await read_all(partition)) == 3


async def test_gaps_and_old_epochs_are_refused(bench: Bench) -> None:
    """K4: nothing is stored of them."""
    partition = await bench.topic()
    await bench.send_numbered(partition, b"a", sequence=0, epoch=1)
    with pytest.raises(SequenceGap):
        await bench.send_numbered(partition, b"c", sequence=2, epoch=1)
    with pytest.raises(ProducerFenced):
        await bench.send_numbered(partition, b"b", sequence=1, epoch=0)
    with pytest.raises(SequenceGap):
        await bench.send_numbered(partition, b"b", sequence=1, epoch=2)
    assert (await bench.send_numbered(partition, b"b", sequence=0, epoch=2)).base_offset == 1
    assert len(await read_all(partition)) == 2


async def test_ledgers_are_rolled_without_a_gap(bench: Bench) -> None:
    """L2: a partition is a chain of ledgers; reads and producers cross their borders."""
    partition = await bench.topic(segment_bytes=str(64 * 1024))
    for at in range(0, 3000, 100):
        await asyncio.gather(
            *(
                bench.send_numbered(partition, str(n).encode() * 40, sequence=n)
                for n in range(at, at + 100)
            )
        )
        partition.roll()
        await settle(bench)
    assert len(partition.record.ledgers) > 5
    expected = [str(n).encode() * 40 for n in range(3000)]
    assert [r.value for r in await read_all(partition, tail=False)] == expected
    await bench.restart(crash=True)
    partition = bench.log.partition("t", 0)
    assert [r.value for r in await read_all(partition)] == expected
    assert (await bench.send_numbered(partition, expected[-1], sequence=2999)).base_offset == 2999


async def test_reads_outside_the_log_are_refused(bench: Bench) -> None:
    """L7: at the end there is nothing yet; past it, and below the start, is an error."""
    partition = await bench.topic()
    await bench.send(partition, b"a")
    assert read_from_tail(partition, 1, 100) == []
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange):
            read_from_tail(partition, offset, 100)


async def test_a_reader_is_woken_by_new_records(bench: Bench) -> None:
    """L7: long poll."""
    partition = await bench.topic()
    woken = asyncio.Event()
    partition.on_confirmed.add(woken.set)
    await bench.send(partition, b"a")
    assert woken.is_set()


async def test_time_finds_the_first_record_that_is_young_enough(bench: Bench) -> None:
    """K1: exact to the record, across ledgers, with times that go back and forth."""
    partition = await bench.topic()
    times = [1000, 3000, 2000, 5000, 4000, 7000]
    for at, time in enumerate(times):
        await bench.send(partition, str(at).encode(), timestamp=time)
        if at % 2:
            partition.roll()
            await settle(bench)
    for crash in (False, True):
        for asked in range(0, 8000, 500):
            expected = next((at for at, time in enumerate(times) if time >= asked), None)
            found = await offset_for_time(partition, asked)
            assert (found.offset if found else None) == expected, asked
        newest = await newest_record(partition)
        assert newest is not None
        assert (newest.offset, newest.timestamp) == (5, 7000)
        await bench.restart(crash=crash)
        partition = bench.log.partition("t", 0)


async def test_the_newest_record_is_found_behind_one_that_cannot_be_read(bench: Bench) -> None:
    """F17: while a newer batch is on its way, and after the newest records were deleted."""
    partition = await bench.topic()
    for at, time in enumerate([9000, 3000, 5000, 5000, 4000]):
        await bench.send(partition, str(at).encode(), timestamp=time)
    on_its_way = bench.send(partition, b"unconfirmed", timestamp=99_000)
    newest = await newest_record(partition)
    assert newest in (TimedOffset(0, 9000), TimedOffset(5, 99_000))  # Confirmed meanwhile.
    await on_its_way
    assert await newest_record(partition) == TimedOffset(5, 99_000)

    partition.roll()
    await settle(bench)
    await bench.send(partition, b"last", timestamp=7)
    await partition.trim(6)
    assert await newest_record(partition) == TimedOffset(6, 7)
    await partition.trim(7)
    assert await newest_record(partition) is None


async def test_append_time_is_stamped_where_the_topic_says_so(bench: Bench) -> None:
    """K2: the one case in which a batch's own bytes are changed, checksum included."""
    partition = await bench.topic(message_timestamp_type="LogAppendTime")
    appended = await bench.send(partition, b"a", timestamp=5)
    assert appended.append_time == bench.clock.wall_ms()
    found = await read_all(partition)
    assert found[0].timestamp == bench.clock.wall_ms()


async def test_delete_records_hides_at_once_and_frees_whole_ledgers(bench: Bench) -> None:
    """K3, L11: the start moves to the offset; ledgers below it are gone, also after a restart."""
    partition = await bench.topic()
    for n in range(6):
        await bench.send(partition, str(n).encode())
        if n in (1, 3):
            partition.roll()
            await settle(bench)
    before = await bench.storage.ledgers()
    await partition.trim(3)
    assert [r.value for r in await read_all(partition)] == [b"3", b"4", b"5"]
    assert len(await bench.storage.ledgers()) < len(before)
    await bench.restart(crash=True)
    partition = bench.log.partition("t", 0)
    assert partition.log_start == 3
    assert [r.value for r in await read_all(partition)] == [b"3", b"4", b"5"]
    await partition.trim(6)
    assert await read_all(partition) == []
    await bench.restart()
    assert (await bench.send(bench.log.partition("t", 0), b"6")).base_offset == 6


async def test_retention_by_age(bench: Bench) -> None:
    """L11: whole ledgers past their time go; the open one is closed first when it is old."""
    partition = await bench.topic(retention_ms="60000", segment_ms="10000")
    await bench.send(partition, b"old")
    bench.clock.advance(20_000)
    await bench.log.maintain()
    await settle(bench)
    await bench.send(partition, b"young")
    bench.clock.advance(45_000)
    await bench.log.maintain()
    assert [r.value for r in await read_all(partition)] == [b"young"]
    bench.clock.advance(100_000)
    await bench.log.maintain()
    await settle(bench)
    await bench.log.maintain()
    assert await read_all(partition) == []
    assert partition.log_start == partition.high_watermark == 2


async def test_records_of_the_future_do_not_stop_retention(bench: Bench) -> None:
    """F16: microseconds for milliseconds hold back neither their own ledger nor those behind it."""
    partition = await bench.topic(retention_ms="60000", segment_ms="10000")
    await bench.send(partition, b"far", timestamp=bench.clock.wall_ms() * 1000)
    partition.roll()
    await settle(bench)
    await bench.send(partition, b"old")
    for _ in range(3):
        bench.clock.advance(61_000)
        await bench.log.maintain()
        await settle(bench)
    await bench.send(partition, b"new")
    assert [r.value for r in await read_all(partition)] == [b"new"]


async def test_a_clock_that_is_set_ahead_deletes_nothing_at_once(bench: Bench) -> None:
    """F16, L11: retention believes it slowly; a clock that is right in the end is followed."""
    partition = await bench.topic(retention_ms="60000", segment_ms="10000")
    await bench.send(partition, b"kept")
    bench.clock.jump_wall(8 * 24 * 3_600_000)
    for _ in range(4):
        bench.clock.advance(7_000)
        await bench.log.maintain()
        await settle(bench)
    assert [r.value for r in await read_all(partition)] == [b"kept"]
    for _ in range(4):
        bench.clock.advance(7_000)
        await bench.log.maintain()
        await settle(bench)
    assert await read_all(partition) == []


async def test_retention_by_bytes(bench: Bench) -> None:
    """L11: the oldest ledgers go while the rest is still enough."""
    partition = await bench.topic(retention_bytes="2500")
    for n in range(6):
        await bench.send(partition, bytes([n]) * 1000)
        partition.roll()
        await settle(bench)
    await bench.log.maintain()
    kept = [r.offset for r in await read_all(partition)]
    assert kept == [3, 4, 5]
    assert partition.payload_bytes >= 2500


async def test_a_topic_is_deleted_and_its_name_is_free_again(bench: Bench) -> None:
    """L8: unknown at once, refused while it goes, accepted right after; nothing of it is left."""
    partition = await bench.topic()
    await bench.send(partition, b"a")
    await bench.log.delete_topic("t")
    with pytest.raises(TopicUnknown):
        bench.log.topic("t")
    with pytest.raises(TopicExists):
        await bench.topic()
    await bench.log.deletions_done()
    with pytest.raises(NotOwner):
        await bench.send(partition, b"b")
    assert await bench.storage.ledgers() == set()
    partition = await bench.topic()
    assert await read_all(partition) == []
    assert (await bench.send(partition, b"new")).base_offset == 0


async def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(bench: Bench) -> None:
    """L8, B4: whoever starts next finishes it."""
    partition = await bench.topic()
    await bench.send(partition, b"a")
    await bench.log.delete_topic("t")
    await bench.restart(crash=True)
    await bench.log.deletions_done()
    assert bench.log.topics() == []
    assert await bench.storage.ledgers() == set()
    await bench.topic()


async def test_a_creation_that_was_cut_short_is_finished_at_the_next_start(bench: Bench) -> None:
    """L3, B3: registered is created."""
    creating = asyncio.create_task(bench.log.create_topic("t", partitions=40))
    while not bench.log.catalog._topics:
        await asyncio.sleep(0)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    await bench.restart(crash=True)
    assert bench.log.topic("t").partitions == 40
    for number in range(40):
        await bench.send(bench.log.partition("t", number), b"a")


async def test_ledgers_that_no_chain_names_go_at_start(bench: Bench) -> None:
    """L11: what a crash between trimming and deleting left."""
    partition = await bench.topic()
    await bench.send(partition, b"a")
    from dovetail.storage import EntryId, LedgerId, Term
    from dovetail.storage.disk.commands import Append

    done = asyncio.get_running_loop().create_future()
    bench.storage.append(
        Append(LedgerId(99), EntryId(0), Term(1), EntryId(-1), b"orphan"), done.set_result
    )
    assert await done is None
    await bench.restart()
    assert 99 not in await bench.storage.ledgers()
    assert len(await read_all(bench.log.partition("t", 0))) == 1


async def test_partitions_can_be_added(bench: Bench) -> None:
    """K3: the old ones keep their records."""
    partition = await bench.topic()
    await bench.send(partition, b"a")
    await bench.log.add_partitions("t", 3)
    assert (await bench.send(bench.log.partition("t", 2), b"b")).base_offset == 0
    await bench.restart(crash=True)
    assert bench.log.topic("t").partitions == 3
    assert len(await read_all(bench.log.partition("t", 0))) == 1
    assert len(await read_all(bench.log.partition("t", 2))) == 1


async def test_a_batch_refused_at_the_border_of_two_ledgers_is_not_taken_for_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4, L4: the old ledger's entry fails, the new one's are stored; the retry is stored too."""
    partition = await bench.topic()
    await bench.send_numbered(partition, b"a", sequence=0)
    gate, asked = threading.Event(), count(1)

    def room() -> int:
        if next(asked) > 1:
            return 1 << 40
        gate.wait(10)
        return 0

    monkeypatch.setattr(bench.disk, "bytes_free", room)
    first = bench.send_numbered(partition, b"b", sequence=1)
    partition.roll()
    async with asyncio.timeout(60):
        while len(partition.open_ledgers) < 2:
            await asyncio.sleep(0)
    second = bench.send_numbered(partition, b"c", sequence=2)
    gate.set()
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(outcome, DovetailError) for outcome in outcomes)
    assert partition._mending is not None
    await partition._mending
    bench.clock.advance(1000)
    for sequence, value in ((1, b"b"), (2, b"c")):
        await bench.send_numbered(partition, value, sequence=sequence)
    found = await read_all(partition, tail=False)
    assert [(r.offset, r.value) for r in found] == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_producers_of_old_records_are_remembered_across_a_crash(bench: Bench) -> None:
    """K4: the age of a producer is when it was heard, not what its records say."""
    partition = await bench.topic()
    bench.clock.jump_wall(-3 * 86_400_000)
    await bench.send_numbered(partition, b"a", sequence=0)
    bench.clock.jump_wall(3 * 86_400_000)
    await bench.restart(crash=True)
    partition = bench.log.partition("t", 0)
    assert (await bench.send_numbered(partition, b"a", sequence=0)).base_offset == 0
    assert len(await read_all(partition)) == 1


async def test_a_clock_that_is_set_ahead_forgets_no_producer(bench: Bench) -> None:
    """F16, K4: one that was silent meanwhile sends again, and it is stored once."""
    partition = await bench.topic()
    await bench.send_numbered(partition, b"a", sequence=0)
    bench.clock.jump_wall(2 * 86_400_000)
    partition.roll()
    await settle(bench)
    assert (await bench.send_numbered(partition, b"a", sequence=0)).base_offset == 0


async def test_a_clock_that_is_set_back_keeps_no_producer_waiting(bench: Bench) -> None:
    """F16, K4: who is ahead of a new owner waits for seconds, whatever the clock says."""
    partition = await bench.topic()
    bench.clock.jump_wall(-86_400_000)
    with pytest.raises(Unavailable, match="send again, in order"):
        await bench.send_numbered(partition, b"b", sequence=7)
    bench.clock.advance(IN_ORDER_MS)
    assert (await bench.send_numbered(partition, b"b", sequence=7)).base_offset == 0


async def test_a_roll_that_could_not_close_the_old_ledger_is_finished_by_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: two open ledgers are not a dead end."""
    partition = await bench.topic()
    await bench.send(partition, b"a")
    original, calls = bench.coordinator.transact, count(1)

    async def failing(changes: Any, *, conditions: Any = ()) -> Any:
        if next(calls) == 2:
            raise DiskFull("no room for the chain")
        return await original(changes, conditions=conditions)

    monkeypatch.setattr(bench.coordinator, "transact", failing)
    partition.roll()
    await settle(bench)
    assert len(partition.open_ledgers) == 2
    await bench.send(partition, b"b")
    partition.roll()
    await settle(bench)
    assert len(partition.open_ledgers) == 1
    assert [r.value for r in await read_all(partition, tail=False)] == [b"a", b"b"]


@pytest.mark.parametrize("turns", range(6))
async def test_an_append_that_fails_during_a_roll_does_not_lose_the_partition(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """L9: the roll and the mending of one owner do not take each other for another owner."""
    partition = await bench.topic()
    await bench.send(partition, b"a")
    full = False
    monkeypatch.setattr(bench.disk, "bytes_free", lambda: 0 if full else 1 << 40)
    partition.roll()
    for _ in range(turns):
        await asyncio.sleep(0)
    full = True
    await asyncio.gather(bench.send(partition, b"b"), return_exceptions=True)
    full = False
    await settle(bench)
    async with asyncio.timeout(60):
        while True:
            bench.clock.advance(1000)
            try:
                await bench.send(bench.log.partition("t", 0), b"c")
                break
            except DovetailError:
                await asyncio.sleep(0.01)
    found = await read_all(bench.log.partition("t", 0), tail=False)
    assert (found[0].value, found[-1].value) == (b"a", b"c")


async def test_a_caller_that_goes_away_leaves_the_chain_known(bench: Bench) -> None:
    """L3: a change whose answer was not waited for is found to be our own."""
    partition = await bench.topic()
    for n in range(4):
        await bench.send(partition, str(n).encode())
    trimming = asyncio.create_task(partition.trim(2))
    for _ in range(3):
        await asyncio.sleep(0)
    trimming.cancel()
    await asyncio.gather(trimming, return_exceptions=True)
    await partition.trim(3)
    assert partition.log_start == 3
    partition.roll()
    await settle(bench)
    assert partition.serving


async def test_damage_in_one_partition_leaves_the_others_alone(bench: Bench) -> None:
    """L6, B18: the damaged one is out of service and says so; nothing of it is overwritten."""
    idle = await bench.topic("idle")
    await bench.send(idle, b"one")
    await bench.send(idle, b"THE-LAST-ONE")
    busy = await bench.topic("busy")
    for _ in range(30):
        await bench.send(busy, bytes(50_000))
    await bench.stop(crash=True)
    for segment in bench.folder.glob("ledgers/*.segment"):
        data = bytearray(segment.read_bytes())
        at = data.find(b"THE-LAST-ONE")
        if at > 0:
            data[at] ^= 1
            segment.write_bytes(data)
    await bench.start()
    assert ("idle", 0) in bench.log.broken()
    assert bench.storage.out_because is None
    assert (await bench.send(bench.log.partition("busy", 0), b"x")).base_offset == 30
