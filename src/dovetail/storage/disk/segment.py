"""One segment file: its handle, its runs, and the state in its first record.

A segment is created in three synced steps: its head; its first record, with all the state for which
earlier segments would be needed (fences, and deleted ledgers whose entries still exist somewhere);
and a mark (frame.py), so that a damaged state does not pass for a torn one. So the newest segment
alone gives the state, and old segments can go in any order.
"""

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from dovetail.errors import Damaged
from dovetail.storage.disk.files import Disk, File, Salvage
from dovetail.storage.disk.frame import (
    HEAD,
    RECORD_BYTES,
    Kind,
    Record,
    ScanEnd,
    Scanned,
    SegmentScan,
    decode_record,
    encode_head,
    encode_record,
)
from dovetail.storage.disk.run import Row, Run, RunSet, encode_index
from dovetail.storage.held import Span

#: Deletions that are remembered although nothing is left to hide: a writer that slept through the
#: deletion of its ledger is refused still. They cost 16 bytes each in every segment.
DELETED_KEPT = 10_000

_SEGMENT_NAME = re.compile(r"(\d{10})\.segment", re.ASCII)
_INDEX_NAME = re.compile(r"(\d{10})\.index", re.ASCII)


STATE = Record(Kind.STATE, ledger=0, entry=0, term=0, confirmed=0)
MARK = Record(Kind.MARK, ledger=0, entry=0, term=0, confirmed=0)


class StoreState(msgspec.Struct):
    """What a storage node remembers beside entries."""

    fences: dict[int, int] = {}
    #: Deleted ledgers, oldest first, each with the group that deleted it.
    deleted: dict[int, int] = {}

    def forget_deleted(self, lying: set[int]) -> None:
        """Drops old deletions of ledgers without any entry left."""
        gone = [ledger for ledger in self.deleted if ledger not in lying]
        for ledger in gone[:-DELETED_KEPT]:
            del self.deleted[ledger]


@dataclass(slots=True, eq=False)
class Segment:
    """A segment file; `position` is the end of what is written."""

    number: int
    file: File
    salt: int
    position: int
    runs: list[Run] = field(default_factory=list)
    readers: int = 0
    dropped: bool = False
    #: Set when an entry in it does not check; it is kept as it is for repair.
    damaged: bool = False
    #: Set when its file is not in its folder any more: what lives in it is moved, and it goes.
    removed: bool = False
    #: By ledger: between which entries some lay here of which neither index nor segment tells.
    holes: dict[int, list[Span]] = field(default_factory=dict)

    def read_entry(self, row: Row) -> tuple[Record, memoryview]:
        """The entry at `row`. Raises `Damaged` if it does not check."""
        data = self.read(row.position, RECORD_BYTES + row.length)
        return self.decode(data, 0, row)

    def read(self, position: int, length: int) -> memoryview:
        """Bytes of the file. Raises `Damaged` if the disk cannot read them any more."""
        try:
            return memoryview(self.file.read(position, length))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.damaged = True
            raise Damaged(
                f"{segment_name(self.number)} cannot be read at byte {position}: {error.strerror}"
            ) from error

    def checks(self, row: Row) -> bool:
        """Whether the entry at `row` can be read."""
        try:
            self.read_entry(row)
        except Damaged:
            return False
        return True

    def decode(self, data: memoryview, at: int, row: Row) -> tuple[Record, memoryview]:
        """The entry of `row`, which lies at `at` in `data`."""
        found = decode_record(data[: at + RECORD_BYTES + row.length], at, self.salt)
        if found is None or found.record.entry != row.entry or len(found.payload) != row.length:
            self.damaged = True
            raise Damaged(
                f"entry {row.entry} in {segment_name(self.number)} at byte {row.position} "
                "fails its checksum; the disk has changed it"
            )
        return found.record, found.payload


def segment_name(number: int) -> str:
    """The segment's file."""
    return f"{number:010d}.segment"


def index_name(number: int) -> str:
    """The file with the sealed segment's rows."""
    return f"{number:010d}.index"


def segment_numbers(disk: Disk) -> list[int]:
    """The segments on the disk, in order."""
    return _numbers(disk, _SEGMENT_NAME)


def index_numbers(disk: Disk) -> list[int]:
    """The segments whose index is on the disk, in order."""
    return _numbers(disk, _INDEX_NAME)


def _numbers(disk: Disk, names: re.Pattern[str]) -> list[int]:
    """Numbers of files that this program made; others, such as copies, are left alone."""
    found = (names.fullmatch(name) for name in disk.names())
    return sorted(int(name[1]) for name in found if name is not None)


def create_segment(
    disk: Disk, number: int, *, salt: int, state: StoreState, group: int, reserve_bytes: int
) -> Segment:
    """A new segment, durable with its state and a mark: groups `group` and `group` + 1."""
    file = disk.open(segment_name(number), create=True)
    position = HEAD.size
    try:
        file.reserve(0, reserve_bytes)
        file.write(0, [encode_head(number, salt)])
        file.sync()
        disk.sync_names()
        for record, payload in ((STATE, msgspec.msgpack.encode(state)), (MARK, b"")):
            head = encode_record(record, payload, salt=salt, group=group, group_last=True)
            position += file.write(position, [head, payload])
            file.sync()
            group += 1
    except OSError:
        try:  # A power cut may bring its name back, and the old segment is the newest still.
            file.truncate(0)
            file.sync()
        finally:
            file.close()
            disk.remove(segment_name(number))
        raise
    return Segment(number, file, salt, position)


def note_entry(runs: RunSet, found: Scanned) -> None:
    """Adds the row of a record that is an entry."""
    if found.record.kind is Kind.ENTRY:
        row = Row(found.record.entry, found.position, len(found.payload))
        runs.add(found.record.ledger, row, again=found.record.again)


def scan_runs(segment: Segment) -> tuple[list[Run], ScanEnd]:
    """The runs of a segment, scanned from the file itself, and how the scan ended."""
    runs = RunSet(segment.number)
    scan = SegmentScan(Salvage(segment.file).read, segment.file.size(), segment.salt)
    for found in scan:
        note_entry(runs, found)
    return runs.runs, scan.end


def write_index(disk: Disk, segment: Segment, runs: Iterable[Run]) -> None:
    """Writes the index of a sealed segment and drops its rows from memory."""
    kept = list(runs)
    file = disk.open(index_name(segment.number), create=True)
    try:
        file.truncate(0)
        head, *rest = encode_index(kept, segment=segment.number, segment_bytes=segment.position)
        file.write(len(head), rest)
        file.sync()
        # The head comes last: where it checks, the rows are on the disk.
        file.write(0, [head])
        file.sync()
    finally:
        file.close()
    disk.sync_names()
    for run in kept:
        run.rows = None
