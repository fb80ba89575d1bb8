"""The end of the newest segment, and segment files that are gone."""

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import pytest
from tests.faulty_disk import FaultyDisk

from dovetail.clock import ManualClock
from dovetail.errors import Damaged, DovetailError
from dovetail.storage import LocalStorageNode
from dovetail.storage.disk.commands import Append
from dovetail.storage.disk.files import RealDisk
from dovetail.storage.disk.frame import HEAD, RECORD_BYTES
from dovetail.storage.disk.options import Durability, StoreSettings
from dovetail.storage.disk.segment import index_name, segment_name
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.disk.synced import SYNCED_NAME
from dovetail.storage.held import Span
from dovetail.storage.identifiers import EntryId, LedgerId, Term
from dovetail.storage.repair import scrubber as module
from dovetail.storage.repair.scrubber import PAUSE_S, Scrubber

LARGE = StoreSettings(segment_bytes=1 << 20, disk_free_bytes_min=0, reserve_bytes=1 << 16)
SMALL = StoreSettings(segment_bytes=4_000, disk_free_bytes_min=0, reserve_bytes=1_000)
ENTRY_BYTES = RECORD_BYTES + 309


def payload(ledger: int, entry: int) -> bytes:
    return b"<%03d/%03d>" % (ledger, entry) + bytes(300)


def append(ledger: int, entry: int) -> Append:
    return Append(LedgerId(ledger), EntryId(entry), Term(1), EntryId(-1), payload(ledger, entry))


def filled(disk: FaultyDisk, settings: StoreSettings, entries: int) -> LedgerStore:
    store = LedgerStore(disk, settings, random.Random(2))
    for entry in range(entries):
        assert store.commit([append(1, entry)]) == [None]
    return store


def read(store: LedgerStore, entry: int) -> bytes:
    found = store.read(LedgerId(1), EntryId(entry), last=EntryId(entry), bytes_max=1)
    return bytes(found[0].payload)


def zero(disk: FaultyDisk, name: str, start: int) -> None:
    file = disk.open(name)
    file.write(start, [bytes(file.size() - start)])
    file.sync()


@pytest.mark.parametrize("ends", ["closed", "idle"])
@pytest.mark.parametrize("durability", Durability)
def test_zeros_over_the_last_group_and_its_mark_are_damage(
    ends: str, durability: Durability
) -> None:
    """F3, L10: they are no room that was never written to, also at the starts after the next."""
    disk = FaultyDisk(random.Random(1))
    settings = StoreSettings(durability, 1 << 20, 0, reserve_bytes=1 << 16)
    store = filled(disk, settings, 3)
    store.close() if ends == "closed" else store.mark()
    end = store._active.position
    zero(disk, segment_name(1), end - RECORD_BYTES - ENTRY_BYTES)

    for number in range(3):
        store = LedgerStore(disk, settings, random.Random(2))
        assert store.report.torn_bytes == 0
        assert len(store.report.damaged) == 1
        assert read(store, 1) == payload(1, 1)
        with pytest.raises(Damaged):
            read(store, 2)
        assert store.commit([append(2, number)]) == [None]
        disk.crash()


def test_what_was_never_noted_is_torn_still() -> None:
    """L10: a group that no mark covers may be cut, and so may one behind a note that is torn."""
    disk = FaultyDisk(random.Random(1))
    store = filled(disk, LARGE, 2)
    zero(disk, segment_name(1), store._active.position - 306)
    store = LedgerStore(disk, LARGE, random.Random(2))
    assert (store.report.torn_bytes > 0, store.report.damaged) == (True, [])
    assert read(store, 0) == payload(1, 0)

    disk.flip(SYNCED_NAME, 9)
    zero(disk, segment_name(1), store._active.position - 306)
    store = LedgerStore(disk, LARGE, random.Random(2))
    assert store.report.damaged == []


@pytest.mark.parametrize("how", ["zeros", "removed"])
def test_a_newest_segment_that_is_gone_is_damage(how: str) -> None:
    """L10: nor is it taken for one that was never born; what older ones hold is served."""
    disk = FaultyDisk(random.Random(1))
    store = filled(disk, SMALL, 12)
    newest = segment_name(store._active.number)
    store.close()
    zero(disk, newest, HEAD.size) if how == "zeros" else disk.remove(newest)

    for _ in range(2):
        store = LedgerStore(disk, SMALL, random.Random(2))
        assert store.damaged
        assert read(store, 0) == payload(1, 0)
        with pytest.raises(Damaged):
            read(store, 11)
        store.close()


def test_a_sealed_segment_that_is_gone_at_a_start_is_damage() -> None:
    """L10: its index is there without it, which no removal of ours leaves behind."""
    disk = FaultyDisk(random.Random(1))
    store = filled(disk, SMALL, 30)
    store.close()
    assert {segment_name(1), index_name(1)} < set(disk.names())
    disk.remove(segment_name(1))
    for _ in range(2):
        store = LedgerStore(disk, SMALL, random.Random(2))
        assert store.damaged
        with pytest.raises(Damaged):
            read(store, 0)
        assert read(store, 29) == payload(1, 29)
        store.close()


async def node_with_entries(folder: Path) -> LocalStorageNode:
    node = LocalStorageNode(LedgerStore(RealDisk(folder), SMALL, random.Random(2)))
    for entry in range(20):
        answered: asyncio.Future[DovetailError | None] = asyncio.Future()
        node.append(append(1, entry), answered.set_result)
        assert await answered is None
    return node


@pytest.mark.parametrize("rate", [1 << 40, 0])
@pytest.mark.parametrize("which", ["sealed", "newest"])
async def test_a_segment_file_that_is_removed_while_the_node_runs_is_moved(
    tmp_path: Path, which: str, rate: int
) -> None:
    """L10, R8: noticed by the scrubber, also by one that reads nothing; what lies in it is open
    still, and is there after a restart."""
    node = await node_with_entries(tmp_path)
    segments = sorted(path for path in tmp_path.iterdir() if path.suffix == ".segment")
    gone = segments[0] if which == "sealed" else segments[-1]
    gone.unlink()

    clock = ManualClock()
    scrubber = Scrubber(node, bytes_per_second=rate, clock=clock, on_damage=lambda: None)
    await scrubber.once()
    assert node.scrub.damaged == 1
    assert (node.scrub.passes, node.scrub.bytes_read > 0) == (bool(rate), bool(rate))
    async with asyncio.timeout(20):
        while await node.look_for_files():
            await asyncio.sleep(0.01)
    clock.advance(60_000)
    await scrubber.once()
    assert node.scrub.damaged == 1
    await node.close()

    store = LedgerStore(RealDisk(tmp_path), SMALL, random.Random(2))
    assert not store.damaged
    assert store.held(LedgerId(1), first=EntryId(0), last=EntryId(99)).spans == (Span(0, 19),)
    store.close()


async def test_files_are_looked_for_while_reading_waits_for_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L10, R8: at the lowest rate a step lasts for hours; a file that is gone is noticed before."""
    node, clock, looked_ms = await node_with_entries(tmp_path), ManualClock(), list[float]()
    look_for_files = node.look_for_files

    async def noted() -> tuple[str, ...]:
        looked_ms.append(clock.monotonic_ms())
        return await look_for_files()

    async def sleep(seconds: float) -> None:
        clock.advance(round(seconds * 1000))

    node.look_for_files = noted  # type: ignore[method-assign]
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr(module, "STEP_BYTES", 1_000)
    scrubber = Scrubber(node, bytes_per_second=20, clock=clock, on_damage=lambda: None)
    await scrubber.once()
    monkeypatch.undo()
    pauses = [after - before for before, after in pairwise(looked_ms)]
    assert len(pauses) > 50
    assert max(pauses) < 2 * PAUSE_S * 1000
    await node.close()
