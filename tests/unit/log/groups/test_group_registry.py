"""Positions survive a journal that cannot be read, and one that is still being read."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.log.conftest import Bench

from dovetail.clock import ManualClock
from dovetail.errors import Damaged
from dovetail.log import coordinators
from dovetail.log.groups import partition_journal
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.journal import JournalRecord
from dovetail.log.groups.offsets import OffsetTable
from dovetail.log.groups.partition_journal import GROUPS_TOPIC, PartitionJournal
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import (
    CommittedOffset,
    Generation,
    GroupError,
    GroupId,
    GroupSettings,
    MemberId,
    MemberIdentity,
    OffsetCommit,
    PartitionKey,
)

GROUP, PLACE = GroupId("g"), PartitionKey("t", 0)


def _registry(bench: Bench) -> GroupRegistry:
    return GroupRegistry(
        bench.log, bench.clock, GroupSettings(), partitions=1, topics_of=lambda _kind, _data: None
    )


async def _commit(groups: GroupRegistry, offset: int) -> None:
    nobody = MemberIdentity(MemberId(""))
    answer = await groups.of(GROUP).commit(
        GROUP, nobody, Generation(-1), {PLACE: OffsetCommit(offset)}
    )
    assert set(answer.values()) == {GroupError.NONE}


@pytest.fixture
async def groups(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GroupRegistry]:
    """Groups with a committed position, whose journal is due to be written anew."""
    monkeypatch.setattr(partition_journal, "_GROWTH_BYTES", 0)
    monkeypatch.setattr(coordinators, "AGAIN_MS", 1)
    made = _registry(bench)
    await made.start()
    await _commit(made, 7)
    yield made
    await made.close()


async def test_a_journal_that_is_not_loaded_is_not_shortened(
    bench: Bench, groups: GroupRegistry
) -> None:
    """F1: a coordinator that knows nothing yet must not write its knowledge over the journal."""
    partition = bench.log.partition(GROUPS_TOPIC, 0)
    journal = PartitionJournal(partition, bench.clock)
    empty = GroupCoordinator(journal, bench.clock)
    await journal.shorten(empty)
    assert partition.log_start == 0
    await empty.load(journal.replay())
    found = await empty.fetch(GROUP, [PLACE])
    assert found.offsets[PLACE].offset == 7
    await empty.close()


async def test_a_journal_that_cannot_be_read_is_kept_reported_and_tried_again(
    bench: Bench, groups: GroupRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: the node starts and says so, positions stay, and a repaired journal serves again."""
    whole, read = PartitionJournal.replay, asyncio.Event()

    async def damaged(_: PartitionJournal) -> AsyncIterator[JournalRecord]:
        raise Damaged("record 3 does not check")
        yield  # pragma: no cover - it is a generator

    async def mended(journal: PartitionJournal) -> AsyncIterator[JournalRecord]:
        async for record in whole(journal):
            yield record
        read.set()

    monkeypatch.setattr(PartitionJournal, "replay", damaged)
    partition = bench.log.partition(GROUPS_TOPIC, 0)
    again = _registry(bench)
    again._coordinators._on_opened(bench.log.topic(GROUPS_TOPIC), 0, partition)
    async with asyncio.timeout(30):
        await again.start()
    assert "does not check" in again.unreadable()[0]
    await again.shorten()
    assert partition.log_start == 0

    monkeypatch.setattr(PartitionJournal, "replay", mended)
    async with asyncio.timeout(30):
        await read.wait()
        while again.unreadable():
            await asyncio.sleep(0)
    found = await again.of(GROUP).fetch(GROUP, [PLACE])
    assert found.offsets[PLACE].offset == 7
    await again.close()


def test_a_retention_of_minus_one_keeps_positions_for_ever() -> None:
    """F2: -1 means never, as everywhere."""
    table = OffsetTable()
    table.put(PLACE, CommittedOffset(7, -1, "", 0))
    far = ManualClock().wall_ms() + 10**15
    times = {"now_wall_ms": far, "empty_since_wall_ms": 0}
    assert table.expired(**times, retention_ms=-1) == []
    assert table.expired(**times, retention_ms=0) == [PLACE]


async def test_a_journal_that_has_gone_is_not_reported_nor_served_by_its_old_coordinator(
    bench: Bench, groups: GroupRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1: it came back under a new coordinator while the old one was still reading."""
    whole, go_on = PartitionJournal.replay, asyncio.Event()

    async def slow(journal: PartitionJournal) -> AsyncIterator[JournalRecord]:
        await go_on.wait()
        async for record in whole(journal):
            yield record

    async def defect(_: PartitionJournal) -> AsyncIterator[JournalRecord]:
        raise ValueError("not what a journal says")
        yield  # pragma: no cover - it is a generator

    partition = bench.log.partition(GROUPS_TOPIC, 0)
    topic = bench.log.topic(GROUPS_TOPIC)
    again = _registry(bench)
    monkeypatch.setattr(PartitionJournal, "replay", slow)
    again._coordinators._on_opened(topic, 0, partition)
    first = again._coordinators._here[0][0]
    await asyncio.sleep(0)
    again._coordinators._on_gone(GROUPS_TOPIC, 0)
    monkeypatch.setattr(PartitionJournal, "replay", defect)
    monkeypatch.setattr(coordinators, "AGAIN_MS", 60_000)
    again._coordinators._on_opened(topic, 0, partition)
    async with asyncio.timeout(30):
        await again.start()
    assert "not what a journal says" in again.unreadable()[0]

    go_on.set()
    async with asyncio.timeout(30):
        while not first.loaded:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert first._timer is None, "a coordinator that was closed does not start"
    assert again.unreadable(), "the new one cannot read it still"
    again._coordinators._on_gone(GROUPS_TOPIC, 0)
    assert not again.unreadable()
    await again.close()
