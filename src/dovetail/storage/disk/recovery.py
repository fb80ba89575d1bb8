"""Rebuilds the state from the files at start.

Promises:
- Exactly the intact prefix of the newest segment is kept; a torn tail is cut and reported.
- Damage (frame.py distinguishes it from a torn tail) is never cut: what is intact around it stays
  readable, and the report gives its place. It affects no other ledger, even if the head of a
  segment or the state in its first record fails its checksum, or the disk cannot read a place.
- Everything served after a start is on disk: the last group is written once more and synced,
  because after a crash of the process, or a failed sync, it may be only in the system's memory.

What a start reads, in order:

    newest segment   scanned whole; it holds the state. One whose creation never finished holds
                     nothing and is removed. If its state is damaged, the older segments supply
                     most of it; the rest is in doubt like everything that was damaged (doubt.py),
                     and fences are renewed before the node serves
    older segments   their index file is checked; one without an index is scanned, and its index
                     built. If an index has no segment, the segment was lost: a deletion removes
                     the index first
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from dovetail.errors import Damaged
from dovetail.storage.disk.files import Disk, Salvage
from dovetail.storage.disk.frame import (
    HEAD,
    RECORD,
    RECORD_BYTES,
    Kind,
    ScanEnd,
    Scanned,
    SegmentScan,
    decode_head,
    encode_record,
)
from dovetail.storage.disk.run import RunSet, decode_index
from dovetail.storage.disk.segment import (
    Segment,
    StoreState,
    index_name,
    index_numbers,
    note_entry,
    scan_runs,
    segment_name,
    segment_numbers,
    write_index,
)
from dovetail.storage.disk.synced import read_synced


@dataclass(slots=True)
class RecoveryReport:
    """What a start found, for the log line and for tests."""

    segments: int = 0
    segments_scanned: int = 0
    torn_bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    #: The segment of the last damage in which entries may have lain, and where it ends there.
    damage_end: tuple[int, int] | None = None


@dataclass(slots=True)
class Recovered:
    """Everything a store needs to continue.

    `active` is None on an empty disk, and where nothing can be written behind the newest segment.
    """

    sealed: list[Segment]
    active: Segment | None
    active_runs: RunSet
    state: StoreState
    group: int
    marked: bool
    report: RecoveryReport

    @property
    def number_next(self) -> int:
        """The number of the next segment."""
        known = [*self.sealed, self.active] if self.active is not None else self.sealed
        return 1 + max((segment.number for segment in known), default=0)


def recover_segments(disk: Disk) -> Recovered:
    """Reads the disk."""
    synced = read_synced(disk)
    numbers = _numbers_with_lost(disk, synced.segment)
    report = RecoveryReport()
    if numbers and numbers[-1] != synced.segment and not _is_born(disk, numbers[-1]):
        disk.remove(segment_name(numbers.pop()))
        disk.sync_names()
    for number in index_numbers(disk):
        if number not in numbers[:-1]:
            disk.remove(index_name(number))
    report.segments = len(numbers)
    sealed = [_open_sealed(disk, number, report) for number in numbers[:-1]]
    if not numbers:
        return Recovered(sealed, None, RunSet(1), StoreState({}, {}), 0, False, report)

    newest, synced_to = numbers[-1], synced.position_in(numbers[-1])
    if _salt_of(disk, newest) is not None:
        opened = _open_active(disk, newest, sealed, report, synced_to=synced_to)
        if opened is not None:
            return opened
    # The newest one cannot be read, or not all of it: nothing is cut, or written behind it.
    sealed.append(_open_sealed(disk, newest, report, synced_to=synced_to))
    state, group = _state_of_older(sealed)
    return Recovered(sealed, None, RunSet(newest + 1), state, group, False, report)


def _numbers_with_lost(disk: Disk, newest: int) -> list[int]:
    """The segments that should be there. One that is lost is put back empty, as all damaged."""
    numbers = segment_numbers(disk)
    lost = {newest, *index_numbers(disk)} - {0, *numbers}
    if newest in lost and newest < max(numbers, default=0):  # It went like any other meanwhile.
        lost.remove(newest)
    for number in lost:
        disk.open(segment_name(number), create=True).close()
    return sorted({*numbers, *lost})


def _is_born(disk: Disk, number: int) -> bool:
    """Whether the newest segment got past its creation."""
    file = disk.open(segment_name(number))
    readable = Salvage(file)
    try:
        salt = _salt_of(disk, number)
        if salt is None:
            # The head is synced before anything is written behind it.
            return bool(readable.read(HEAD.size, file.size()).strip(b"\0"))
        first = next(iter(SegmentScan(readable.read, file.size(), salt)), None)
        return first is not None or readable.failed
    finally:
        file.close()


def _salt_of(disk: Disk, number: int) -> int | None:
    """The salt of a segment; None if its head does not check, so that nothing in it does."""
    file = disk.open(segment_name(number))
    try:
        return decode_head(Salvage(file).read(0, HEAD.size), number)
    except Damaged:
        return None
    finally:
        file.close()


def _open_sealed(disk: Disk, number: int, report: RecoveryReport, *, synced_to: int = 0) -> Segment:
    salt = _salt_of(disk, number)
    file = disk.open(segment_name(number))
    segment = Segment(number, file, salt or 0, file.size())
    if salt is None:  # An index would only tell what cannot be read.
        _note_lost(segment, "its head does not check", report)
        return segment

    indexed = number in index_numbers(disk)
    if indexed:
        index = disk.open(index_name(number))
        try:
            decoded = decode_index(Salvage(index), segment=number)
        finally:
            index.close()
        if decoded is not None and decoded[1] <= file.size():
            segment.runs, segment.position = decoded
            return segment
        if decoded is not None:
            _note_lost(segment, f"its end, {decoded[1] - file.size()} bytes", report)

    report.segments_scanned += 1
    runs, end = scan_runs(segment)
    segment.runs, segment.position = runs, end.position
    _note_damage(segment, end, report)
    # It was synced before the next one was born, and cut to its end before it got an index: so
    # what is torn is damage, and so is what looks like room that was never written to.
    lost = file.size() - end.position if indexed else end.torn_bytes
    if synced_to > end.position + lost:
        lost = synced_to - end.position
        disk.open(index_name(number), create=True).close()  # It says so at the next start.
        disk.sync_names()
    if lost:
        _note_lost(segment, f"end, {lost} bytes", report)
    if not segment.damaged:
        with suppress(OSError):  # Then its rows stay in memory.
            file.truncate(end.position)
            file.sync()
            write_index(disk, segment, segment.runs)
    return segment


def _state_of_older(sealed: list[Segment]) -> tuple[StoreState, int]:
    """What older segments tell of fences and deletions, and the next group.

    Each begins with all that was known before it, so the newest of them is enough if that checks.
    """
    state, group = StoreState({}, {}), 0
    for segment in sealed[_newest_with_state(sealed) :]:
        for found in _records(segment):
            state = _after(state, found)
            group = max(group, found.group + 1)
    return state, group


def _newest_with_state(sealed: list[Segment]) -> int:
    for at in reversed(range(len(sealed))):
        first = next(_records(sealed[at]), None)
        if first is not None and first.record.kind is Kind.STATE:
            return at
    return 0


def _records(segment: Segment) -> Iterator[Scanned]:
    return iter(SegmentScan(Salvage(segment.file).read, segment.file.size(), segment.salt))


def _after(state: StoreState, found: Scanned) -> StoreState:
    """The state behind a record."""
    record = found.record
    if record.kind is Kind.STATE:
        return msgspec.msgpack.decode(found.payload, type=StoreState)
    if record.kind is Kind.FENCE:
        state.fences[record.ledger] = record.term
    elif record.kind is Kind.DELETE:
        state.deleted[record.ledger] = found.group
        state.fences.pop(record.ledger, None)
    return state


def _open_active(
    disk: Disk, number: int, sealed: list[Segment], report: RecoveryReport, *, synced_to: int
) -> Recovered | None:
    """The newest segment, to be written on; None if the disk does not give all of it.

    All of it is what a scan finds, and at least what was noted to be there (synced.py).
    """
    file = disk.open(segment_name(number))
    salt = decode_head(file.read(0, HEAD.size), number)
    segment = Segment(number, file, salt, HEAD.size)
    report.segments_scanned += 1

    state, runs, first, last = StoreState({}, {}), RunSet(number), None, None
    readable = Salvage(file)
    scan = SegmentScan(readable.read, file.size(), salt)
    for found in scan:
        first, last = first or found, found
        if first is found and found.record.kind is not Kind.STATE:
            state, _ = _state_of_older(sealed)
        state = _after(state, found)
        note_entry(runs, found)
    end = scan.end
    if readable.failed or end.position < synced_to:
        file.close()
        return None
    _note_damage(segment, end, report)
    report.torn_bytes = end.torn_bytes

    if file.size() > end.position:
        file.truncate(end.position)
    if last is not None:
        _write_last_group_again(segment, end, last)
    file.sync()
    segment.position, segment.runs = end.position, runs.runs
    marked = last is not None and last.record.kind is Kind.MARK
    return Recovered(sealed, segment, runs, state, end.group + 1, marked, report)


def _write_last_group_again(segment: Segment, end: ScanEnd, last: Scanned) -> None:
    """Makes the last group dirty, so that the sync that follows is a real one.

    The bytes are the same, so a crash in the middle changes nothing. Only where the group was cut
    short is its new last record marked as such, and of that group nothing was acknowledged.
    """
    start = end.group_last_position
    segment.file.write(start, [segment.file.read(start, end.position - start)])
    if last.group_last:
        return
    head = encode_record(
        last.record, last.payload, salt=segment.salt, group=last.group, group_last=True
    )
    segment.file.write(last.position, [head])


def _note_lost(segment: Segment, what: str, report: RecoveryReport) -> None:
    segment.damaged = True
    report.damaged.append(f"{segment_name(segment.number)}: {what}")
    report.damage_end = (segment.number, segment.file.size())


def _note_damage(segment: Segment, end: ScanEnd, report: RecoveryReport) -> None:
    for first, beyond in end.damaged_ranges:
        segment.damaged = True
        report.damaged.append(f"{segment_name(segment.number)}: bytes {first} to {beyond}")
        if _may_hold_entries(segment, first, beyond):
            report.damage_end = (segment.number, beyond)


def _may_hold_entries(segment: Segment, first: int, beyond: int) -> bool:
    """Whether entries may have lain there: a mark, a fence, a deletion and a state are none."""
    if beyond - first == RECORD_BYTES:  # Too small for an entry, which is never empty.
        return False
    if first == HEAD.size:  # The state, if its length is believable.
        length = RECORD.unpack_from(Salvage(segment.file).read(first, RECORD_BYTES))[1]
        return bool(first + RECORD_BYTES + length != beyond)
    return True
