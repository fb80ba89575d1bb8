"""The store's promises, one by one, on a disk in memory that can be told to fail."""

import random
from dataclasses import replace

import pytest
from tests.faulty_disk import FaultyDisk

from dovetail.errors import (
    Damaged,
    DiskFull,
    EntryConflict,
    EntryUnknown,
    Fenced,
    InvalidInput,
    LedgerUnknown,
    StorageOut,
    Uncertain,
)
from dovetail.storage.disk.commands import Append, Command, DeleteLedger, Fence, Outcome
from dovetail.storage.disk.options import Durability, StoreSettings
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.identifiers import NO_ENTRY, EntryId, LedgerId, LedgerState, Term

SMALL = StoreSettings(segment_bytes=4_000, disk_free_bytes_min=0, reserve_bytes=1_000)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(random.Random(1))


def open_store(disk: FaultyDisk, settings: StoreSettings = SMALL) -> LedgerStore:
    return LedgerStore(disk, settings, random.Random(2))


def append(ledger: int, entry: int, payload: bytes = b"x", *, term: int = 1) -> Append:
    return Append(LedgerId(ledger), EntryId(entry), Term(term), EntryId(entry - 1), payload)


def one(store: LedgerStore, command: Command) -> Outcome:
    return store.commit([command])[0]


def read(
    store: LedgerStore, ledger: int, first: int, last: int, *, room: int = 1 << 20
) -> list[bytes]:
    found = store.read(LedgerId(ledger), EntryId(first), last=EntryId(last), bytes_max=room)
    return [bytes(entry.payload) for entry in found]


def test_append_is_idempotent(disk: FaultyDisk) -> None:
    """L5: the same entry again is a success and writes nothing; another under its id is refused."""
    store = open_store(disk)
    assert one(store, append(1, 0, b"a")) is None
    size = store.bytes_on_disk()
    assert one(store, append(1, 0, b"a")) is None
    assert store.bytes_on_disk() == size
    assert isinstance(one(store, append(1, 0, b"b")), EntryConflict)
    assert read(store, 1, 0, 0) == [b"a"]


def test_append_is_idempotent_within_a_group(disk: FaultyDisk) -> None:
    """L5: also when the first is still on its way."""
    store = open_store(disk)
    outcomes = store.commit([append(1, 0, b"a"), append(1, 0, b"a"), append(1, 0, b"b")])
    assert outcomes[:2] == [None, None]
    assert isinstance(outcomes[2], EntryConflict)


def test_tiny_entries_end_a_segment_too(disk: FaultyDisk) -> None:
    """F69: a start reads the newest segment entry by entry, so there are not many in it."""
    few = replace(SMALL, segment_bytes=1 << 20, segment_entries=10)
    store = open_store(disk, few)
    for entry in range(35):
        assert one(store, append(1, entry)) is None
    store = open_store(disk, few)
    assert (store.report.segments, store.report.segments_scanned) == (4, 1)
    assert len(read(store, 1, 0, 40)) == 35


def test_append_is_idempotent_after_a_restart_in_a_sealed_segment(disk: FaultyDisk) -> None:
    """L5: the rows of sealed segments are found again through their index files."""
    store = open_store(disk)
    for entry in range(20):
        assert one(store, append(1, entry, bytes([entry]) * 500)) is None
    store = open_store(disk)
    assert store.report.segments > 2
    assert store.report.segments_scanned == 1
    assert one(store, append(1, 0, bytes([0]) * 500)) is None
    assert isinstance(one(store, append(1, 0, b"other")), EntryConflict)


def test_a_fence_refuses_lower_terms_and_survives_a_crash(disk: FaultyDisk) -> None:
    """L9: fenced before it is answered; refused before and after a power cut."""
    store = open_store(disk)
    one(store, append(1, 0, term=3))
    state = one(store, Fence(LedgerId(1), Term(5)))
    assert state == LedgerState(EntryId(0), NO_ENTRY, Term(5))
    disk.crash()
    store = open_store(disk)
    assert isinstance(one(store, append(1, 1, term=4)), Fenced)
    assert isinstance(one(store, Fence(LedgerId(1), Term(4))), Fenced)
    assert one(store, append(1, 1, term=5)) is None


def test_a_fence_holds_for_a_ledger_that_is_not_here(disk: FaultyDisk) -> None:
    """L9: who was told "no such entry" by a fence never finds it stored later."""
    store = open_store(disk)
    assert one(store, Fence(LedgerId(9), Term(2))) == LedgerState(NO_ENTRY, NO_ENTRY, Term(2))
    disk.crash()
    store = open_store(disk)
    assert isinstance(one(store, append(9, 0, term=1)), Fenced)


def test_a_fence_outlives_the_segment_that_it_was_written_to(disk: FaultyDisk) -> None:
    """L9: each new segment starts with all fences."""
    store = open_store(disk)
    one(store, Fence(LedgerId(1), Term(7)))
    for entry in range(30):
        one(store, append(2, entry, bytes(600)))
    one(store, DeleteLedger(LedgerId(2)))
    assert "0000000001.segment" not in disk.names()
    store = open_store(disk)
    assert isinstance(one(store, append(1, 0, term=6)), Fenced)


def test_group_commit_shares_one_sync(disk: FaultyDisk) -> None:
    """L6: a hundred entries of ten ledgers, one sync."""
    store = open_store(disk, StoreSettings(disk_free_bytes_min=0, reserve_bytes=1 << 16))
    before = disk.syncs
    store.commit([append(n % 10, n // 10) for n in range(100)])
    assert disk.syncs == before + 1


def test_a_failed_sync_is_uncertain_and_takes_the_node_out(disk: FaultyDisk) -> None:
    """L6: never tried again; a restart reads the disk anew."""
    store = open_store(disk)
    one(store, append(1, 0))
    disk.syncs_until_failure = 0
    assert isinstance(one(store, append(1, 1)), Uncertain)
    disk.syncs_until_failure = None
    assert isinstance(one(store, append(1, 2)), StorageOut)
    assert store.out_because is not None
    assert read(store, 1, 0, 0) == [b"x"]
    assert one(open_store(disk), append(1, 5)) is None


def test_a_full_disk_stores_nothing_of_the_group_and_goes_on(disk: FaultyDisk) -> None:
    """L6: the group is taken back whole; reads go on, and so do appends once there is room."""
    store = open_store(disk)
    one(store, append(1, 0, b"a"))
    disk.writes_until_full = 0
    outcomes = store.commit([append(1, 1, b"b"), append(2, 0, b"c")])
    assert all(isinstance(outcome, DiskFull) for outcome in outcomes)
    assert read(store, 1, 0, 5) == [b"a"]
    disk.writes_until_full = None
    assert one(store, append(1, 1, b"d")) is None
    disk.crash()
    assert read(open_store(disk), 1, 0, 5) == [b"a", b"d"]


def test_writes_that_a_quota_refuses_are_told_until_one_succeeds(disk: FaultyDisk) -> None:
    """L6, R8: the disk has room, so only a write can tell; a mark does if nobody else writes."""
    store = open_store(disk)
    one(store, append(1, 0))
    store.mark()
    disk.writes_until_full = 0
    assert isinstance(one(store, append(1, 1)), DiskFull)
    assert store.has_room()
    assert "no space left" in (store.full_because or "")
    store.mark()
    assert "no space left" in (store.full_because or "")
    disk.writes_until_full = None
    store.mark()
    assert store.full_because is None
    disk.crash()
    assert read(open_store(disk), 1, 0, 5) == [b"x"]


def test_below_the_reserve_appends_are_refused_and_deletes_are_not(disk: FaultyDisk) -> None:
    """L6: what makes room must not need room."""
    store = open_store(disk, StoreSettings(disk_free_bytes_min=1000, reserve_bytes=1_000))
    one(store, append(1, 0))
    disk.free = 999
    assert isinstance(one(store, append(1, 1)), DiskFull)
    assert isinstance(one(store, Fence(LedgerId(1), Term(2))), LedgerState)
    assert one(store, DeleteLedger(LedgerId(1))) is None


def test_a_torn_tail_is_cut_and_reported(disk: FaultyDisk) -> None:
    """L6: exactly the intact prefix is kept."""
    store = open_store(disk)
    for entry in range(3):
        one(store, append(1, entry, b"kept"))
    end = store.bytes_on_disk()
    one(store, append(1, 3, bytes(300)))
    file = disk.open("0000000001.segment")
    file.write(end + 200, [b"\x55" * 40])
    store = open_store(disk)
    assert store.report.torn_bytes > 0
    assert store.report.damaged == []
    assert read(store, 1, 0, 9) == [b"kept"] * 3


def test_damage_is_reported_and_its_neighbours_are_served(disk: FaultyDisk) -> None:
    """L6: a flipped bit in what was once synced is not taken for a torn tail."""
    store = open_store(disk, StoreSettings(disk_free_bytes_min=0, reserve_bytes=1 << 16))
    for entry in range(5):
        one(store, append(1, entry, bytes([entry]) * 100))
    disk.flip("0000000001.segment", 300)
    with pytest.raises(Damaged):
        read(store, 1, 0, 4)
    store = open_store(disk)
    assert len(store.report.damaged) == 1
    intact = []
    for entry in range(5):
        try:
            intact += read(store, 1, entry, entry)
        except Damaged:
            continue
    assert len(intact) == 4


def test_a_lost_index_is_built_anew(disk: FaultyDisk) -> None:
    """L6: the segment is the truth."""
    store = open_store(disk)
    for entry in range(20):
        one(store, append(1, entry, bytes([entry]) * 500))
    disk.remove("0000000001.index")
    disk.flip("0000000002.index", 30)
    store = open_store(disk)
    assert store.report.segments_scanned == 3
    assert read(store, 1, 0, 19) == [bytes([entry]) * 500 for entry in range(20)]
    assert "0000000001.index" in disk.names()


def test_reads_are_bounded_and_gapless(disk: FaultyDisk) -> None:
    """L7: at least one entry, no more than asked, never past a gap."""
    store = open_store(disk)
    for entry in (0, 1, 2, 4):
        one(store, append(1, entry, bytes([entry]) * 100))
    assert len(read(store, 1, 0, 9)) == 3
    assert len(read(store, 1, 0, 9, room=1)) == 1
    assert len(read(store, 1, 0, 9, room=150)) == 2
    assert len(read(store, 1, 1, 1)) == 1
    with pytest.raises(EntryUnknown):
        read(store, 1, 3, 9)
    with pytest.raises(LedgerUnknown):
        read(store, 2, 0, 9)


def test_bad_entries_are_refused(disk: FaultyDisk) -> None:
    """L5: with the state untouched."""
    store = open_store(disk)
    assert isinstance(one(store, append(1, -1)), InvalidInput)
    assert isinstance(one(store, append(1, 0, b"")), InvalidInput)
    assert store.ledgers() == set()


def test_deleted_ledgers_give_their_room_back(disk: FaultyDisk) -> None:
    """L8: whole segments at once, mixed ones by moving what lives."""
    store = open_store(disk)
    for entry in range(40):
        one(store, append(1 if entry % 10 else 2, entry, bytes([entry]) * 500))
    full = store.bytes_on_disk()
    one(store, DeleteLedger(LedgerId(1)))
    while store.compact_step():
        pass
    assert store.bytes_on_disk() < full / 2
    assert isinstance(one(store, append(1, 99)), LedgerUnknown)
    for entry in (0, 10, 20, 30):
        assert read(store, 2, entry, entry) == [bytes([entry]) * 500]
    disk.crash()
    store = open_store(disk)
    assert store.ledgers() == {2}
    for entry in (0, 10, 20, 30):
        assert read(store, 2, entry, entry) == [bytes([entry]) * 500]


def test_small_entries_are_not_compacted_for_ever(disk: FaultyDisk) -> None:
    """L8: what is counted as live includes the heads of records."""
    store = open_store(disk)
    for entry in range(200):
        one(store, append(1, entry, b"x"))
    assert not store.compact_step()


def test_intact_records_of_a_damaged_group_are_kept(disk: FaultyDisk) -> None:
    """L6: one bad byte costs one entry, also in the middle of a group."""
    store = open_store(disk, StoreSettings(disk_free_bytes_min=0, reserve_bytes=1 << 16))
    store.commit([append(1, entry, b"p%04d" % entry) for entry in range(10)])
    store.commit([append(1, 10, b"later")])
    content = disk.open("0000000001.segment").read(0, 1 << 16)
    disk.flip("0000000001.segment", content.find(b"p0003"))
    store = open_store(disk)
    missing = []
    for entry in range(11):
        try:
            read(store, 1, entry, entry)
        except Damaged:
            missing.append(entry)
    assert missing == [3]
    with pytest.raises(EntryUnknown):
        read(store, 1, 11, 11)


def test_a_damaged_entry_is_the_outcome_of_its_command_alone(disk: FaultyDisk) -> None:
    """L6, B18: a fence on a damaged ledger does not take its neighbours down."""
    store = open_store(disk, StoreSettings(disk_free_bytes_min=0, reserve_bytes=1 << 16))
    store.commit([append(1, 0, b"broken"), append(2, 0, b"sound")])
    content = disk.open("0000000001.segment").read(0, 1 << 16)
    disk.flip("0000000001.segment", content.find(b"broken"))
    outcomes = store.commit([Fence(LedgerId(1), Term(2)), Fence(LedgerId(2), Term(2))])
    assert isinstance(outcomes[0], Damaged)
    assert isinstance(outcomes[1], LedgerState)
    assert isinstance(one(store, append(1, 1, term=1)), Fenced)


def test_relaxed_durability_syncs_what_was_moved_before_its_old_place_goes() -> None:
    """L6: compaction never turns what was on the disk into what is not."""
    disk = FaultyDisk(random.Random(3))
    relaxed = StoreSettings(Durability.OS, 4_000, 0, reserve_bytes=1_000)
    store = open_store(disk, relaxed)
    for entry in range(40):
        one(store, append(1 if entry % 10 else 2, entry, bytes([entry]) * 500))
    disk.open("0000000001.segment").sync()
    one(store, DeleteLedger(LedgerId(1)))
    while store.compact_step():
        pass
    assert "0000000001.segment" not in disk.names()
    disk.crash()
    assert read(open_store(disk, relaxed), 2, 0, 0) == [bytes([0]) * 500]
