"""A damaged store: what it says meanwhile, and how it becomes whole again."""

import contextlib
import errno
import os
import random
from dataclasses import replace
from typing import cast

import pytest
from tests.faulty_disk import FaultyDisk

from dovetail.errors import (
    Damaged,
    DiskFull,
    EntryUnknown,
    Fenced,
    LedgerUnknown,
    StorageOut,
    Unavailable,
)
from dovetail.storage.disk.commands import Append, DeleteLedger, Fence, LetDamageGo
from dovetail.storage.disk.files import File
from dovetail.storage.disk.frame import RECORD_BYTES
from dovetail.storage.disk.options import Durability, StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.held import Span
from dovetail.storage.identifiers import EntryId, LedgerId, Term

LARGE = StoreSettings(segment_bytes=1 << 20, disk_free_bytes_min=0, reserve_bytes=1 << 16)
SMALL = StoreSettings(segment_bytes=4_000, disk_free_bytes_min=0, reserve_bytes=1_000)
SEGMENT = "0000000001.segment"


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(random.Random(1))


def open_store(disk: FaultyDisk, settings: StoreSettings = LARGE) -> LedgerStore:
    return LedgerStore(disk, settings, random.Random(2))


def payload(ledger: int, entry: int) -> bytes:
    return b"<%03d/%03d>" % (ledger, entry) + bytes(300)


def store_entry(store: LedgerStore, ledger: int, entry: int, *, term: int = 1) -> object:
    command = Append(
        LedgerId(ledger), EntryId(entry), Term(term), EntryId(-1), payload(ledger, entry)
    )
    return store.commit([command])[0]


def read(store: LedgerStore, ledger: int, entry: int) -> bytes:
    found = store.read(LedgerId(ledger), EntryId(entry), last=EntryId(entry), bytes_max=1)
    return bytes(found[0].payload)


def held(store: LedgerStore, ledger: int, last: int = 99) -> list[Span]:
    found = store.held(LedgerId(ledger), first=EntryId(0), last=EntryId(last))
    assert found.next is None
    return list(found.spans)


def damage(disk: FaultyDisk, ledger: int, entry: int, *, name: str = SEGMENT) -> None:
    content = disk.open(name).read(0, 1 << 20)
    disk.flip(name, content.find(payload(ledger, entry)[:9]))


def compact(store: LedgerStore) -> None:
    while store.compact_step():
        pass


def test_what_may_have_been_lost_is_not_denied(disk: FaultyDisk) -> None:
    """L10: neither before nor after the ledgers in doubt are known; others can be denied then."""
    store = open_store(disk)
    for ledger in (1, 2, 3):
        store_entry(store, ledger, 0)
    store_entry(store, 1, 1)
    store_entry(store, 3, 1)
    damage(disk, 2, 0)
    store = open_store(disk)
    assert store.damaged
    assert store.doubts.ledgers() is None
    with pytest.raises(Damaged, match="entry 0 of ledger 2"):
        read(store, 2, 0)
    store.doubts.examine({2: True, 3: True})
    assert store.doubts.ledgers() == {2, 3}
    for ledger, entry in ((2, 0), (2, 7), (3, 2)):
        with pytest.raises(Damaged):
            read(store, ledger, entry)
    with pytest.raises(EntryUnknown):
        read(store, 1, 2)
    with pytest.raises(LedgerUnknown):
        read(store, 9, 0)
    assert read(store, 1, 1) == payload(1, 1)


def test_doubt_about_the_only_copy_ends_at_what_came_later(disk: FaultyDisk) -> None:
    """L6, B18: one writer sends in order, so an intact entry behind the damage bounds it."""
    store = open_store(disk)
    for ledger, entry in ((1, 0), (2, 0), (2, 1), (1, 1), (1, 2)):
        store_entry(store, ledger, entry)
    damage(disk, 2, 1)
    store = open_store(disk)
    store.doubts.examine({1: False, 2: False})
    with pytest.raises(EntryUnknown):
        read(store, 1, 3)
    with pytest.raises(Damaged):
        read(store, 2, 1)
    with pytest.raises(Damaged):
        read(store, 2, 2)


def test_an_old_entry_that_was_moved_behind_the_damage_bounds_nothing(disk: FaultyDisk) -> None:
    """L6: compaction writes old entries again; that says nothing of what came after them."""
    store = open_store(disk, SMALL)
    for entry in range(3):
        store_entry(store, 1, entry)
    for entry in range(9):
        store_entry(store, 2, entry)
    newest = max(name for name in disk.names() if name.endswith(".segment"))
    store_entry(store, 1, 3)
    store_entry(store, 1, 4)
    store.commit([DeleteLedger(LedgerId(2))])
    compact(store)
    assert SEGMENT not in disk.names()
    store.close()
    damage(disk, 1, 4, name=newest)

    store = open_store(disk, SMALL)
    assert [read(store, 1, entry) for entry in range(4)] == [payload(1, e) for e in range(4)]
    with pytest.raises(Damaged):
        read(store, 1, 4)
    store.doubts.examine({1: False})
    with pytest.raises(Damaged):
        read(store, 1, 4)


def test_an_entry_that_does_not_check_is_not_held_and_can_be_stored_anew(disk: FaultyDisk) -> None:
    """L5, L10: found by a read; also in the segment that is being written."""
    store = open_store(disk)
    for entry in range(4):
        store_entry(store, 1, entry)
    damage(disk, 1, 2)
    with pytest.raises(Damaged):
        read(store, 1, 2)
    assert held(store, 1) == [Span(0, 1), Span(3, 3)]
    assert store.doubts.ledgers() == {1}
    assert store_entry(store, 1, 2) is None
    assert read(store, 1, 2) == payload(1, 2)
    assert held(store, 1) == [Span(0, 3)]
    assert store.doubts.ledgers() == set()


@pytest.mark.parametrize("settings", [LARGE, SMALL], ids=["being-written", "sealed"])
def test_a_store_that_was_repaired_is_whole_also_after_a_restart(
    disk: FaultyDisk, settings: StoreSettings
) -> None:
    """L10: what lives in a damaged segment is moved, the segment goes, nothing is in doubt."""
    store = open_store(disk, settings)
    for entry in range(30):
        store_entry(store, 1, entry)
        store_entry(store, 2, entry)
    damage(disk, 1, 3)
    disk.remove("0000000001.index")
    store = open_store(disk, settings)
    assert len(store.report.damaged) == 1
    compact(store)
    assert SEGMENT in disk.names(), "kept: what is intact in it may be the last copy"
    assert Span(3, 3) not in held(store, 1)
    assert store_entry(store, 1, 3, term=5) is None
    assert store.commit([LetDamageGo()]) == [None]
    with pytest.raises(EntryUnknown):
        read(store, 1, 30)
    compact(store)
    assert SEGMENT not in disk.names()
    assert store.report.damaged == []
    assert not store.damaged
    disk.crash()
    store = open_store(disk, settings)
    assert store.report.damaged == []
    assert store.doubts.ledgers() == set()
    for entry in range(30):
        assert read(store, 1, entry) == payload(1, entry)
        assert read(store, 2, entry) == payload(2, entry)


def test_damage_is_found_again_after_a_restart_until_it_is_repaired(disk: FaultyDisk) -> None:
    """L10: sealing the segment that was damaged while it was written must not hide it."""
    store = open_store(disk, SMALL)
    store_entry(store, 1, 0)
    store_entry(store, 1, 1)
    damage(disk, 1, 0)
    for _ in range(3):
        store = open_store(disk, SMALL)
        assert len(store.report.damaged) == 1
        for entry in range(2, 30):
            store_entry(store, 1, entry)
        disk.crash()


def test_damage_that_is_met_while_moving_keeps_the_segment(disk: FaultyDisk) -> None:
    """L10: letting go ends at the first entry that does not check, and begins again later."""
    store = open_store(disk)
    for entry in range(3):
        store_entry(store, 1, entry)
    damage(disk, 1, 0)
    with pytest.raises(Damaged):
        read(store, 1, 0)
    assert store_entry(store, 1, 0) is None
    damage(disk, 1, 2)
    store.commit([LetDamageGo()])
    compact(store)
    assert store.damaged
    assert SEGMENT in disk.names()
    assert store.doubts.ledgers() == {1}
    assert store_entry(store, 1, 2) is None
    store.commit([LetDamageGo()])
    compact(store)
    assert not store.damaged
    assert [read(store, 1, entry) for entry in range(3)] == [payload(1, e) for e in range(3)]


def test_a_damaged_segment_of_deleted_ledgers_is_let_go(disk: FaultyDisk) -> None:
    """L8, L10: a node with the only copies is whole again once they are gone."""
    store = open_store(disk)
    store_entry(store, 1, 0)
    store_entry(store, 1, 1)
    damage(disk, 1, 0)
    store = open_store(disk)
    store.commit([DeleteLedger(LedgerId(1))])
    compact(store)
    assert store.damaged
    store.commit([LetDamageGo()])
    compact(store)
    assert not store.damaged
    assert store.report.damaged == []


def test_what_is_not_needed_keeps_no_damaged_segment(disk: FaultyDisk) -> None:
    """L10: an entry behind the ledger's end, or of a place that is another's, may be unreadable."""
    store = open_store(disk)
    for ledger in (1, 2):
        for entry in range(3):
            store_entry(store, ledger, entry)
    damage(disk, 1, 2)
    with pytest.raises(Damaged):
        read(store, 1, 2)
    store.commit([LetDamageGo()])
    compact(store)
    assert store.damaged, "nobody said that it is not needed"
    store.commit([LetDamageGo(frozenset({LedgerId(1)}))])
    compact(store)
    assert not store.damaged
    assert held(store, 1) == [Span(0, 1)]
    assert held(store, 2) == [Span(0, 2)]


def test_damage_to_the_last_group_is_damage_once_it_is_marked(disk: FaultyDisk) -> None:
    """F3: after a clean close, or a second without writes, nothing acknowledged looks torn."""
    store = open_store(disk)
    for entry in range(3):
        assert store_entry(store, 1, entry) is None
    store.mark()
    damage(disk, 1, 2)
    for _ in range(2):  # The evidence outlives a start.
        store = open_store(disk)
        assert store.report.torn_bytes == 0
        assert len(store.report.damaged) == 1
        with pytest.raises(Damaged):
            read(store, 1, 2)
        assert read(store, 1, 1) == payload(1, 1)


def test_a_clean_close_marks_the_last_group(disk: FaultyDisk) -> None:
    """F3: its id must not be given to another entry after a restart."""
    store = open_store(disk)
    store_entry(store, 1, 0)
    store_entry(store, 1, 1)
    store.close()
    damage(disk, 1, 1)
    store = open_store(disk)
    assert store.report.damaged
    with pytest.raises(Damaged):
        read(store, 1, 1)


def test_a_mark_is_written_once_and_changes_nothing(disk: FaultyDisk) -> None:
    """F3: an idle store does not grow, and a torn tail behind a mark is still cut."""
    store = open_store(disk)
    store_entry(store, 1, 0)
    store.mark()
    size, syncs = store.bytes_on_disk(), disk.syncs
    store.mark()
    assert (store.bytes_on_disk(), disk.syncs) == (size, syncs)
    store_entry(store, 1, 1)
    damage(disk, 1, 1)
    store = open_store(disk)
    assert store.report.damaged == []
    assert store.report.torn_bytes > 0
    assert held(store, 1) == [Span(0, 0)]


def test_rows_of_an_index_that_do_not_check_are_built_anew(disk: FaultyDisk) -> None:
    """F19: the segment is the truth, also for what is read long after the start."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    index = "0000000001.index"
    disk.flip(index, disk.open(index).size() - 1)
    for _ in range(2):  # The file is written anew, so the next start finds it whole.
        store = open_store(disk, SMALL)
        assert store.report.damaged == []
        assert [read(store, 1, entry) for entry in range(30)] == [
            payload(1, entry) for entry in range(30)
        ]
        assert not store.damaged


def test_rows_that_the_segment_does_not_tell_any_more_are_damage(disk: FaultyDisk) -> None:
    """F19: index and segment damaged at once: noticed, and nothing is denied."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    index = "0000000001.index"
    disk.flip(index, disk.open(index).size() - 1)
    store = open_store(disk, SMALL)
    damage(disk, 1, 2)
    with pytest.raises(Damaged):
        read(store, 1, 2)
    assert store.damaged


@pytest.mark.parametrize("head", [True, False])
def test_the_end_of_a_sealed_segment_that_reads_as_zeros_is_damage(
    disk: FaultyDisk, head: bool
) -> None:
    """F19, L10: it is no room that was never written to, also at the start after the next."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    store.close()
    index, size = "0000000001.index", disk.open(SEGMENT).size()
    disk.flip(index, 10 if head else disk.open(index).size() - 1)
    lost = RECORD_BYTES + len(payload(1, 0))
    disk.open(SEGMENT).write(size - lost, [bytes(lost)])

    for _ in range(3):
        store = open_store(disk, SMALL)
        for entry in range(10):
            with contextlib.suppress(Damaged):
                assert read(store, 1, entry) == payload(1, entry)
        assert store.damaged
        assert len(held(store, 1)) == 2
        store.close()


def test_files_of_somebody_else_are_left_alone(disk: FaultyDisk) -> None:
    """L10: copies that an operator made, and whatever else lies in the folder."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    store.close()
    names = ("notes.index", "old.segment", "0000000001 (1).segment", "0000000002.segment.index")
    for name in names:
        disk.open(name, create=True).write(0, [b"something"])
    store = open_store(disk, SMALL)
    assert not store.damaged
    assert [read(store, 1, entry) for entry in range(30)] == [payload(1, e) for e in range(30)]
    assert set(names) <= set(disk.names())


@pytest.mark.parametrize("place", ["head", "state"])
def test_a_damaged_beginning_of_the_newest_segment_stops_its_ledgers_alone(
    disk: FaultyDisk, place: str
) -> None:
    """F38: the node starts, fences and deletions of older segments hold, new entries are taken."""
    store = open_store(disk, SMALL)
    store.commit([Fence(LedgerId(7), Term(5)), DeleteLedger(LedgerId(8))])
    for entry in range(12):
        store_entry(store, 1, entry)
    newest = max(name for name in disk.names() if name.endswith(".segment"))
    for entry in range(12, 14):
        store_entry(store, 1, entry)
    disk.flip(newest, 4 if place == "head" else 24 + 20)

    store = open_store(disk, SMALL)
    assert store.report.damaged
    assert store.damaged
    assert read(store, 1, 0) == payload(1, 0)
    assert isinstance(store_entry(store, 7, 0, term=4), Fenced)
    assert isinstance(store_entry(store, 8, 0), LedgerUnknown)
    assert store_entry(store, 2, 0) is None
    again = open_store(disk, SMALL)
    assert read(again, 2, 0) == payload(2, 0)
    assert isinstance(store_entry(again, 7, 0, term=4), Fenced)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_damaged_head_of_an_old_segment_stops_its_ledgers_alone(
    disk: FaultyDisk, indexed: bool
) -> None:
    """F38: what lay in it is in doubt, the rest is served."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    disk.flip(SEGMENT, 4)
    if not indexed:
        disk.remove("0000000001.index")
    store = open_store(disk, SMALL)
    assert store.report.damaged
    with pytest.raises(Damaged):
        read(store, 1, 0)
    assert read(store, 1, 29) == payload(1, 29)


def test_too_many_open_files_at_a_roll_pass(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F35: the group is refused, nothing is lost, and the next one goes on."""
    store = open_store(disk, SMALL)
    plenty = disk.open

    def too_many(name: str, *, create: bool = False) -> File:
        if create:
            raise OSError(errno.EMFILE, "Too many open files")
        return plenty(name)

    monkeypatch.setattr(disk, "open", too_many)
    outcomes = [store_entry(store, 1, entry) for entry in range(15)]
    refused = [entry for entry, outcome in enumerate(outcomes) if outcome is not None]
    assert refused
    assert all(isinstance(outcomes[entry], Unavailable) for entry in refused)
    assert store.out_because is None

    monkeypatch.setattr(disk, "open", plenty)
    assert [store_entry(store, 1, entry) for entry in refused] == [None] * len(refused)
    store = open_store(disk, SMALL)
    assert [read(store, 1, entry) for entry in range(15)] == [payload(1, n) for n in range(15)]


def test_an_index_and_its_segment_damaged_at_once_lose_the_damaged_entry_alone(
    disk: FaultyDisk,
) -> None:
    """F19, L10: the others are read, the node works on, and what was copied ends the damage."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    index = "0000000001.index"
    disk.flip(index, disk.open(index).size() - 1)
    store = open_store(disk, SMALL)
    damage(disk, 1, 2)

    assert [read(store, 1, entry) for entry in (0, 1, 3)] == [payload(1, e) for e in (0, 1, 3)]
    with pytest.raises(Damaged):
        read(store, 1, 2)
    assert store.doubts.ledgers() == {1}
    assert held(store, 1) == [Span(0, 1), Span(3, 29)]
    assert store.commit([LetDamageGo()]) == [None]
    compact(store)
    assert SEGMENT in disk.names(), "nobody said that what was lost is here again"

    for restarted in (False, True):
        store = open_store(disk, SMALL) if restarted else store
        assert store.damaged
        assert store_entry(store, 1, 2) is None
        assert [read(store, 1, entry) for entry in range(30)] == [payload(1, e) for e in range(30)]
    store.doubts.examine({1: True})
    store.commit([LetDamageGo(frozenset({LedgerId(1)}))])
    compact(store)
    assert not store.damaged
    store = open_store(disk, SMALL)
    assert not store.damaged
    assert held(store, 1) == [Span(0, 29)]


def test_what_is_found_unreadable_only_when_it_is_moved_is_not_let_go(disk: FaultyDisk) -> None:
    """L10: it was told to be held, so whoever settled its ledger did not know."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    for entry in (1, 3, 5):
        damage(disk, 1, entry)
    with pytest.raises(Damaged):
        read(store, 1, 1)
    assert store_entry(store, 1, 1) is None
    settled = LetDamageGo(frozenset({LedgerId(1)}))
    store.commit([settled])
    compact(store)
    assert store.damaged
    assert store.doubts.ledgers() == {1}
    assert held(store, 1) == [Span(0, 2), Span(4, 4), Span(6, 29)], "all are found at once"
    for entry in (3, 5):
        assert store_entry(store, 1, entry) is None
    store.commit([settled])
    compact(store)
    assert not store.damaged
    assert [read(store, 1, entry) for entry in range(30)] == [payload(1, e) for e in range(30)]


def test_a_segment_without_its_head_holds_nothing(disk: FaultyDisk) -> None:
    """F38, L10: its index would say that entries are held that nobody can read."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    for at in (4, 13):
        disk.flip(SEGMENT, at)
    store = open_store(disk, SMALL)
    assert held(store, 1)[0].first > 0
    store.doubts.examine({1: False})
    store.commit([LetDamageGo()])
    with pytest.raises(EntryUnknown):
        read(store, 1, 0)
    compact(store)
    assert not store.damaged


def test_a_segment_that_is_shorter_than_its_index_says_is_damaged(disk: FaultyDisk) -> None:
    """L10: the end of a sealed segment is known."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    content = disk.open(SEGMENT).read(0, 1 << 20)
    last = max(e for e in range(30) if payload(1, e) in content)
    disk.open(SEGMENT).truncate(content.find(payload(1, last)) - 52)
    store = open_store(disk, SMALL)
    assert store.report.damaged
    with pytest.raises(Damaged):
        read(store, 1, last)


def test_a_start_without_room_for_an_index_reads_the_segment(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F19: an index makes a start faster; it is not needed."""
    store = open_store(disk, SMALL)
    for entry in range(30):
        store_entry(store, 1, entry)
    disk.remove("0000000001.index")
    plenty = disk.open

    def full(name: str, *, create: bool = False) -> File:
        if create:
            raise OSError(errno.ENOSPC, "no space left on device")
        return plenty(name)

    monkeypatch.setattr(disk, "open", full)
    store = open_store(disk, SMALL)
    assert [read(store, 1, entry) for entry in range(30)] == [payload(1, e) for e in range(30)]


def test_a_damaged_state_is_not_taken_for_a_segment_that_was_never_born(disk: FaultyDisk) -> None:
    """F38: the older segments are gone, so nothing else tells the fences."""
    store = open_store(disk, SMALL)
    store_entry(store, 1, 0)
    store_entry(store, 1, 1)
    store.commit([Fence(LedgerId(7), Term(5)), DeleteLedger(LedgerId(8))])
    damage(disk, 1, 1)
    store = open_store(disk, SMALL)
    store.commit([DeleteLedger(LedgerId(1))])
    store.commit([LetDamageGo()])
    compact(store)
    assert sorted(disk.names()) == ["0000000002.segment", "synced"]
    disk.flip("0000000002.segment", 24 + 20)
    store = open_store(disk, SMALL)
    assert store.damaged
    assert store.doubts.ledgers() is None


class Failing:
    """A file whose calls fail as they are told to."""

    def __init__(self, file: File, **failures: int) -> None:
        self._file = file
        self._failures = failures

    def __getattr__(self, name: str) -> object:
        if name in self._failures:
            raise OSError(self._failures[name], os.strerror(self._failures[name]))
        return getattr(self._file, name)


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.ENOSPC, errno.EIO])
def test_a_segment_that_cannot_be_synced_when_it_is_sealed_takes_the_store_out(
    disk: FaultyDisk, code: int
) -> None:
    """L6: it is no passing want of files; what was not synced may be gone."""
    store = open_store(disk, replace(SMALL, durability=Durability.OS))
    for entry in range(10):
        assert store_entry(store, 1, entry) is None
    store._active.file = cast("File", Failing(store._active.file, sync=code))
    outcomes = [store_entry(store, 1, entry) for entry in range(10, 13)]
    assert any(isinstance(outcome, StorageOut) for outcome in outcomes)
    assert store.out_because is not None


def test_a_segment_that_was_not_born_does_not_come_back(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, L6: it knows nothing of the fences that were written behind it into the older one."""
    store = open_store(disk, SMALL)
    plenty = disk.open

    def no_room_at_the_last_sync(name: str, *, create: bool = False) -> File:
        file, syncs = plenty(name, create=create), iter(range(3))
        original = file.sync

        def sync() -> None:
            original()
            if next(syncs, None) == 1:
                raise OSError(errno.ENOSPC, "no space left on device")

        if create:
            monkeypatch.setattr(file, "sync", sync)
        return file

    monkeypatch.setattr(disk, "open", no_room_at_the_last_sync)
    outcomes = [store_entry(store, 1, entry) for entry in range(12)]
    assert isinstance(outcomes[-1], DiskFull)
    assert store.commit([Fence(LedgerId(1), Term(5))]) != [None]
    disk._files = {**disk._durable_names}  # The power is cut: no removal was synced.
    monkeypatch.setattr(disk, "open", plenty)
    store = open_store(disk, SMALL)
    assert isinstance(store_entry(store, 1, 12, term=4), Fenced)


def test_too_many_open_files_refuse_what_needs_one_and_take_nothing_out(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F35: also where an old entry must be found, for an append, a fence or a move."""
    store = open_store(disk, SMALL)
    for entry in range(12):
        store_entry(store, 1, entry)
        store_entry(store, 2, entry)
    store.commit([DeleteLedger(LedgerId(2))])
    store = open_store(disk, SMALL)
    plenty = disk.open

    def too_many(name: str, *, create: bool = False) -> File:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(disk, "open", too_many)
    assert isinstance(store_entry(store, 1, 0), Unavailable)
    assert not store.compact_step()
    assert store.out_because is None
    monkeypatch.setattr(disk, "open", plenty)
    assert store_entry(store, 1, 0) is None
    compact(store)
    assert [read(store, 1, entry) for entry in range(12)] == [payload(1, e) for e in range(12)]


def test_a_place_that_the_disk_cannot_read_is_damaged_and_can_be_stored_anew(
    disk: FaultyDisk,
) -> None:
    """L10: most disks say so, rather than give other bytes."""
    store = open_store(disk)
    store_entry(store, 1, 0)
    whole = store._active.file
    store._active.file = cast("File", Failing(whole, read=errno.EIO))
    with pytest.raises(Damaged):
        read(store, 1, 0)
    assert store.doubts.ledgers() == {1}
    assert held(store, 1) == []
    assert store_entry(store, 1, 0) is None
    store._active.file = whole
    assert read(store, 1, 0) == payload(1, 0)


def test_what_was_moved_never_looks_torn(disk: FaultyDisk) -> None:
    """L6, F3: it was acknowledged long ago, and the place that it came from is gone."""
    store = open_store(disk, SMALL)
    store_entry(store, 1, 0)
    for entry in range(12):
        store_entry(store, 2, entry)
    store.commit([DeleteLedger(LedgerId(2))])
    compact(store)
    assert SEGMENT not in disk.names()
    newest = max(name for name in disk.names() if name.endswith(".segment"))
    damage(disk, 1, 0, name=newest)
    store = open_store(disk, SMALL)
    assert store.damaged
    with pytest.raises(Damaged):
        read(store, 1, 0)


@pytest.mark.parametrize("place", ["state", "mark", "fence"])
def test_damage_where_no_entry_can_have_lain_denies_none_and_doubts_none(
    disk: FaultyDisk, place: str
) -> None:
    """F38, B18: else a byte of a mark would take every idle partition out of service."""
    store = open_store(disk)
    store_entry(store, 1, 0)
    at = {"state": 24 + 54}
    for name, write in (
        ("mark", store.mark),
        ("fence", lambda: store.commit([Fence(LedgerId(1), Term(5))])),
    ):
        at[name] = store.bytes_on_disk() + 5
        write()
        assert store.bytes_on_disk() == at[name] - 5 + 52
    store_entry(store, 2, 0, term=9)
    store.close()
    disk.flip(SEGMENT, at[place])

    store = open_store(disk)
    assert store.damaged
    assert store.doubts.ledgers() is None, "fences are in doubt"
    with pytest.raises(EntryUnknown):
        read(store, 1, 1)
    store.doubts.examine({1: False, 2: False})
    assert store.doubts.ledgers() == set()
    store.commit([LetDamageGo()])
    compact(store)
    assert not open_store(disk).damaged


def test_what_was_stored_anew_is_read_in_one_go_with_its_neighbours(disk: FaultyDisk) -> None:
    """L10: not from the place where it was lost."""
    store = open_store(disk)
    for entry in range(5):
        store_entry(store, 1, entry)
    damage(disk, 1, 2)
    with pytest.raises(Damaged):
        read(store, 1, 2)
    assert store_entry(store, 1, 2) is None
    found = store.read(LedgerId(1), EntryId(0), last=EntryId(4), bytes_max=1 << 20)
    assert [bytes(entry.payload) for entry in found] == [payload(1, e) for e in range(5)]


@pytest.mark.parametrize("at", ["head", "state", "middle", "last"])
def test_a_place_that_cannot_be_read_at_start_stops_its_ledger_alone(
    disk: FaultyDisk, at: str
) -> None:
    """F38: the node starts, nothing is cut or denied, and what lies elsewhere is served."""
    store = open_store(disk, SMALL)
    entries = [(ledger, entry) for entry in range(20) for ledger in (1, 2)]
    for ledger, entry in entries:
        store_entry(store, ledger, entry)
    store.commit([Fence(LedgerId(1), Term(7))])
    store.mark()
    newest = max(name for name in disk.names() if name.endswith(".segment"))
    content = disk.open(newest).read(0, 1 << 20)
    here = [e for e in entries if payload(*e)[:9] in content]
    position = {"head": 3, "state": 40}.get(at)
    if position is None:
        position = content.find(payload(*here[len(here) // 2 if at == "middle" else -1])[:9])
    disk.spoil(newest, position)
    size = disk.open(newest).size()

    store = open_store(disk, SMALL)
    assert store.damaged
    assert disk.open(newest).size() == size, "nothing was cut"
    for ledger, entry in entries:
        try:
            assert read(store, ledger, entry) == payload(ledger, entry)
        except Damaged:
            assert (ledger, entry) in here
    before = [e for e in entries if e not in here]
    assert before
    assert [read(store, *e) for e in before] == [payload(*e) for e in before]
    assert store.doubts.ledgers() is None, "fences are in doubt until chains were read"
    assert store_entry(store, 3, 0) is None
    assert read(store, 3, 0) == payload(3, 0)


def test_an_index_that_cannot_be_read_at_start_is_built_anew(disk: FaultyDisk) -> None:
    """F19: as one that is damaged."""
    store = open_store(disk, SMALL)
    for entry in range(20):
        store_entry(store, 1, entry)
    disk.spoil("0000000001.index", 10)
    store = open_store(disk, SMALL)
    assert not store.damaged
    assert [read(store, 1, entry) for entry in range(20)] == [payload(1, e) for e in range(20)]
