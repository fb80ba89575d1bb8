"""From files back to state, at start.

Promises:
- Of the newest segment exactly the intact prefix is kept; a torn tail is cut and reported.
- Damage (frame.py says how it is told from a torn tail) is never cut: what is intact around it
  stays readable, and the report says where it is.
- What is served after a start is on the disk: the last group is written once more and synced,
  because after a crash of the process, or a failed sync, it may be in the system's memory only.

The order of things at a start:

    newest segment   scanned whole; it holds the state. One that was never finished being born
                     holds nothing and is removed.
    older segments   their index file is checked; without one they are scanned, and it is built
"""

from dataclasses import dataclass, field

import msgspec

from dovetail.errors import Damaged
from dovetail.storage.disk.files import Disk
from dovetail.storage.disk.frame import (
    HEAD,
    Kind,
    ScanEnd,
    Scanned,
    SegmentScan,
    decode_head,
    encode_record,
)
from dovetail.storage.disk.run import Row, RunSet, decode_index
from dovetail.storage.disk.segment import (
    Segment,
    StoreState,
    index_name,
    segment_name,
    segment_numbers,
    write_index,
)


@dataclass(slots=True)
class RecoveryReport:
    """What a start found, for the log line and for tests."""

    segments: int = 0
    segments_scanned: int = 0
    torn_bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    #: The segment of the last damage, and where it ends there.
    damage_end: tuple[int, int] | None = None


@dataclass(slots=True)
class Recovered:
    """Everything a store needs to go on; `active` is None on an empty disk."""

    sealed: list[Segment]
    active: Segment | None
    active_runs: RunSet
    state: StoreState
    group: int
    report: RecoveryReport


def recover_segments(disk: Disk) -> Recovered:
    """Reads the disk. Raises `Damaged` if a segment's head is unreadable."""
    numbers = segment_numbers(disk)
    report = RecoveryReport()
    if numbers and not _is_born(disk, numbers[-1]):
        disk.remove(segment_name(numbers.pop()))
        disk.sync_names()
    for name in disk.names():
        if name.endswith(".index") and int(name[:10]) not in numbers[:-1]:
            disk.remove(name)
    report.segments = len(numbers)
    sealed = [_open_sealed(disk, number, report) for number in numbers[:-1]]
    if not numbers:
        return Recovered(sealed, None, RunSet(1), StoreState({}, {}), 0, report)
    return _open_active(disk, numbers[-1], sealed, report)


def _is_born(disk: Disk, number: int) -> bool:
    """Whether the newest segment got past its creation."""
    file = disk.open(segment_name(number))
    try:
        size = file.size()
        try:
            salt = decode_head(file.read(0, HEAD.size), number)
        except Damaged:
            # The head is synced before anything is written behind it.
            if not file.read(HEAD.size, size).strip(b"\0"):
                return False
            raise
        first = next(iter(SegmentScan(file.read, size, salt)), None)
        if first is not None and first.record.kind is not Kind.STATE:
            raise Damaged(
                f"{segment_name(number)}: its first record, which holds the fences, does not "
                "check; restore this node's data folder from a copy or a replica"
            )
        return first is not None
    finally:
        file.close()


def _open_sealed(disk: Disk, number: int, report: RecoveryReport) -> Segment:
    file = disk.open(segment_name(number))
    salt = decode_head(file.read(0, HEAD.size), number)
    segment = Segment(number, file, salt, file.size())
    if index_name(number) in disk.names():
        index = disk.open(index_name(number))
        try:
            decoded = decode_index(index, segment=number)
        finally:
            index.close()
        if decoded is not None and decoded[1] <= file.size():
            segment.runs, segment.position = decoded
            return segment
    report.segments_scanned += 1
    runs = RunSet(number)
    scan = SegmentScan(file.read, file.size(), salt)
    for found in scan:
        if found.record.kind is Kind.ENTRY:
            row = Row(found.record.entry, found.position, len(found.payload))
            runs.add(found.record.ledger, row)
    segment.runs, segment.position = runs.runs, scan.end.position
    _note_damage(segment, scan.end, report)
    if scan.end.torn_bytes:  # It was synced before the next one was born, so this is damage too.
        segment.damaged = True
        report.damaged.append(f"{segment_name(number)}: end, {scan.end.torn_bytes} bytes")
        report.damage_end = (number, file.size())
    if not segment.damaged:
        write_index(disk, segment, segment.runs)
    return segment


def _open_active(
    disk: Disk, number: int, sealed: list[Segment], report: RecoveryReport
) -> Recovered:
    file = disk.open(segment_name(number))
    salt = decode_head(file.read(0, HEAD.size), number)
    segment = Segment(number, file, salt, HEAD.size)
    state = StoreState({}, {})
    runs = RunSet(number)
    report.segments_scanned += 1
    scan = SegmentScan(file.read, file.size(), salt)
    last = None
    for found in scan:
        last = found
        record = found.record
        if record.kind is Kind.ENTRY:
            runs.add(record.ledger, Row(record.entry, found.position, len(found.payload)))
        elif record.kind is Kind.FENCE:
            state.fences[record.ledger] = record.term
        elif record.kind is Kind.DELETE:
            state.deleted[record.ledger] = found.group
            state.fences.pop(record.ledger, None)
        else:
            state = msgspec.msgpack.decode(found.payload, type=StoreState)
    end = scan.end
    _note_damage(segment, end, report)
    report.torn_bytes = end.torn_bytes
    if file.size() > end.position:
        file.truncate(end.position)
    if last is not None:
        _write_last_group_again(segment, end, last)
    file.sync()
    segment.position, segment.runs = end.position, runs.runs
    return Recovered(sealed, segment, runs, state, end.group + 1, report)


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


def _note_damage(segment: Segment, end: ScanEnd, report: RecoveryReport) -> None:
    for first, beyond in end.damaged_ranges:
        segment.damaged = True
        report.damaged.append(f"{segment_name(segment.number)}: bytes {first} to {beyond}")
        report.damage_end = (segment.number, beyond)
