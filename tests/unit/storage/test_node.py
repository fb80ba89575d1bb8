"""The storage node behind asyncio: group commit, order, recovery of unclosed ledgers."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.faulty_disk import FaultyDisk

from dovetail.errors import DiskFull, DovetailError, EntryUnknown, Fenced, StorageOut
from dovetail.storage import (
    NO_ENTRY,
    SINGLE,
    Ensembles,
    EnsembleWriter,
    EntryId,
    LedgerId,
    LedgerStore,
    LocalStorageNode,
    OneNode,
    Placement,
    RealDisk,
    StoreSettings,
    Term,
)
from dovetail.storage.disk.commands import Append, GroupReport
from dovetail.storage.placement import Fragment


def placed(ledger: int) -> Placement:
    return Placement(ledger, SINGLE, (Fragment(0, (1,)),))


def writer_of(node: LocalStorageNode, *, term: int = 1) -> EnsembleWriter:
    return Ensembles(OneNode(1, node)).writer(placed(1), term=Term(term), change=_unchanged)


async def _unchanged(placement: Placement) -> None:
    raise AssertionError(f"an ensemble of one cannot change: {placement}")


def open_node(folder: Path, groups: list[GroupReport] | None = None) -> LocalStorageNode:
    store = LedgerStore(RealDisk(folder), StoreSettings(disk_free_bytes_min=0), random.Random(1))
    return LocalStorageNode(store, on_group=(groups.append if groups is not None else _ignore))


def _ignore(_: GroupReport) -> None:
    pass


async def test_many_appends_share_few_syncs_and_confirm_in_order(tmp_path: Path) -> None:
    """L4, L6: a thousand appends at once, confirmed in order, in a handful of groups."""
    groups: list[GroupReport] = []
    node = open_node(tmp_path, groups)
    writer = writer_of(node)
    confirmed: list[int] = []
    done = asyncio.Event()
    for number in range(1000):

        def confirm(error: DovetailError | None, number: int = number) -> None:
            assert error is None
            confirmed.append(number)
            if number == 999:
                done.set()

        assert writer.append(number.to_bytes(4, "big"), confirm) == number
    await asyncio.wait_for(done.wait(), 30)
    assert confirmed == list(range(1000))
    assert sum(report.entries for report in groups) == 1000
    assert len(groups) < 100
    await node.close()


async def test_recovery_finds_the_end_and_fences(tmp_path: Path) -> None:
    """L9: a new owner finds everything that was stored; the old one is refused."""
    node = open_node(tmp_path)
    writer = writer_of(node)
    for number in range(50):
        await _appended(writer, bytes([number]))
    await node.close()
    node = open_node(tmp_path)
    ensembles = Ensembles(OneNode(1, node))
    assert await ensembles.recover(placed(1), Term(2)) == (placed(1), 49)
    assert await ensembles.recover(placed(7), Term(2)) == (placed(7), NO_ENTRY)
    with pytest.raises(Fenced):
        await ensembles.recover(placed(1), Term(1))
    old = writer_of(node)
    with pytest.raises(Fenced):
        await _appended(old, b"late")
    found = [
        entry.payload[0]
        async for entry in ensembles.read_forward(placed(1), EntryId(0), last=EntryId(49))
    ]
    assert found == list(range(50))
    await node.close()


async def test_nothing_is_confirmed_behind_a_failure() -> None:
    """L4: entries behind the first that failed are uncertain, never confirmed."""
    disk = FaultyDisk(random.Random(1))
    store = LedgerStore(
        disk, StoreSettings(disk_free_bytes_min=0, reserve_bytes=4096), random.Random(1)
    )
    out: list[str] = []
    node = LocalStorageNode(store, on_out=out.append)
    writer = writer_of(node)
    await _appended(writer, b"a")
    disk.syncs_until_failure = 0
    outcomes = await asyncio.gather(
        *(_appended(writer, b"b") for _ in range(20)), return_exceptions=True
    )
    assert all(isinstance(outcome, DovetailError) for outcome in outcomes)
    assert out
    with pytest.raises(StorageOut):
        await node.fence(LedgerId(1), Term(2))
    await node.close()


async def _appended(writer: EnsembleWriter, payload: bytes) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def confirm(error: DovetailError | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    writer.append(payload, confirm)
    await future


async def test_a_disk_that_fails_in_compaction_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """L6: the node takes itself out and says so; the thread that writers wait for lives."""

    def failing(self: LedgerStore) -> bool:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(LedgerStore, "compact_step", failing)
    disk = FaultyDisk(random.Random(1))
    settings = StoreSettings(disk_free_bytes_min=0, reserve_bytes=4096)
    node = LocalStorageNode(LedgerStore(disk, settings, random.Random(1)))
    with pytest.raises(StorageOut):
        async with asyncio.timeout(60):
            while True:
                await node.fence(LedgerId(1), Term(1))
    assert node.out_because is not None
    await node.close()


async def test_a_node_that_goes_out_while_nobody_writes_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F3, L6: the sync of a mark fails; whoever looks at the node must not learn it at a write."""
    monkeypatch.setattr("dovetail.storage.node.MARK_AFTER_S", 0.01)
    disk = FaultyDisk(random.Random(1))
    store = LedgerStore(disk, StoreSettings(disk_free_bytes_min=0), random.Random(1))
    out: asyncio.Queue[str] = asyncio.Queue()
    node = LocalStorageNode(store, on_out=out.put_nowait)
    disk.syncs_until_failure = 1
    await node.fence(LedgerId(1), Term(1))
    async with asyncio.timeout(60):
        assert "a sync failed" in await out.get()
    await asyncio.sleep(0.1)
    assert out.empty(), "once is enough"
    await node.close()


async def test_a_write_that_finds_no_room_is_told_although_the_disk_has_some() -> None:
    """L6, R8: `/readyz` asks this; a node whose user has a quota was ready and refused writes."""
    disk = FaultyDisk(random.Random(1))
    store = LedgerStore(disk, StoreSettings(disk_free_bytes_min=0), random.Random(1))
    node = LocalStorageNode(store)
    try:
        disk.writes_until_full = 0
        with pytest.raises(DiskFull):
            await node.fence(LedgerId(1), Term(1))
        assert "writes are refused" in (node.full_because or "")
        disk.writes_until_full = None
        await node.fence(LedgerId(1), Term(1))
        assert node.full_because is None
    finally:
        await node.close()


async def test_each_of_many_reads_at_once_has_its_own_answer(tmp_path: Path) -> None:
    """L7, F60: one that fails, and one whose reader has gone, disturb none of the others."""
    node = open_node(tmp_path)
    for entry in range(100):
        stored: asyncio.Future[DovetailError | None] = asyncio.Future()
        content = b"entry %d" % entry
        node.append(
            Append(LedgerId(1), EntryId(entry), Term(1), EntryId(-1), content), stored.set_result
        )
        assert await stored is None

    async def read(entry: int) -> bytes:
        found = await node.read(LedgerId(1), EntryId(entry), last=EntryId(entry), bytes_max=1)
        return bytes(found[0].payload)

    reads = [asyncio.create_task(read(entry)) for entry in (*range(100), 100, 101)]
    await asyncio.sleep(0)
    for gone in reads[::7]:
        gone.cancel()
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*reads, return_exceptions=True)
    for entry, answer in enumerate(answers):
        if entry % 7 == 0:
            assert isinstance(answer, asyncio.CancelledError)
        elif entry >= 100:
            assert isinstance(answer, EntryUnknown)
        else:
            assert answer == b"entry %d" % entry
    assert await read(99) == b"entry 99"
    await node.close()
