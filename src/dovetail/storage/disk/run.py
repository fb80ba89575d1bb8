"""Where entries lie: rows of (entry, position, length), compact.

A *run* is rows of one ledger in one segment with rising entry ids, either all written in sequence
or all written again (frame.py). A row takes 16 bytes, in arrays and not in objects, so 10 million
entries cost at most 160 MB while their segment is open. Once it is sealed they cost next to
nothing: the rows then lie in the segment's index file and are read when needed.

    index file = magic, segment number, segment length, runs, checksum of the directory
                 directory: (ledger, first, last, count, bytes, rows at, checksum of rows, again)
                 rows: entry ids (8 bytes each), positions (4), lengths (4); a run at a time

Survives: a missing, torn or damaged index file is detected and rebuilt from the segment, which is
authoritative.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from dovetail.storage.disk.files import File, Salvage
from dovetail.storage.disk.frame import RECORD_BYTES

_HEAD = struct.Struct("<8sIQII")
_HEAD_MAGIC = b"DVTLIDX2"
_DIRECTORY = struct.Struct("<qqqIQQI?")


class Row(NamedTuple):
    """One entry's place; `length` is that of its payload."""

    entry: int
    position: int
    length: int


@dataclass(slots=True)
class Rows:
    """Rows in memory, sorted by entry."""

    entries: "array[int]" = field(default_factory=lambda: array("q"))
    positions: "array[int]" = field(default_factory=lambda: array("I"))
    lengths: "array[int]" = field(default_factory=lambda: array("I"))

    def add(self, row: Row) -> None:
        self.entries.append(row.entry)
        self.positions.append(row.position)
        self.lengths.append(row.length)

    def index_of(self, entry: int) -> int | None:
        """The row of `entry`; almost always the ids have no gaps, and no search is needed."""
        if not self.entries:
            return None
        at = entry - self.entries[0]
        if 0 <= at < len(self.entries) and self.entries[at] == entry:
            return at
        at = bisect_left(self.entries, entry)
        return at if at < len(self.entries) and self.entries[at] == entry else None

    def row(self, at: int) -> Row:
        return Row(self.entries[at], self.positions[at], self.lengths[at])

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def to_bytes(self) -> bytes:
        return self.entries.tobytes() + self.positions.tobytes() + self.lengths.tobytes()

    @staticmethod
    def of(rows: Iterable[Row]) -> "Rows":
        made = Rows()
        for row in rows:
            made.add(row)
        return made

    @staticmethod
    def from_bytes(data: bytes, count: int) -> "Rows":
        rows = Rows()
        rows.entries.frombytes(data[: 8 * count])
        rows.positions.frombytes(data[8 * count : 12 * count])
        rows.lengths.frombytes(data[12 * count :])
        return rows


@dataclass(slots=True)
class Run:
    """Rows of one ledger in one segment; `rows` is None when they lie in the index file."""

    ledger: int
    segment: int
    first: int
    last: int
    count: int
    payload_bytes: int
    rows: Rows | None
    again: bool = False
    rows_at: int = 0
    rows_checksum: int = 0

    @property
    def what(self) -> tuple[int, int, int, int, bool]:
        """What it says of its entries, wherever they lie."""
        return self.first, self.last, self.count, self.payload_bytes, self.again


def new_run(ledger: int, segment: int, *, again: bool) -> Run:
    """An empty run; add rows to it."""
    return Run(ledger, segment, -1, -1, count=0, payload_bytes=0, rows=Rows(), again=again)


def add_row(run: Run, row: Row) -> None:
    """Adds a row whose entry is higher than all before it."""
    if run.rows is None or (run.count and row.entry <= run.last):
        raise AssertionError(f"row {row} does not continue run {run.first}..{run.last}")
    run.rows.add(row)
    run.first = row.entry if run.count == 0 else run.first
    run.last = row.entry
    run.count += 1
    run.payload_bytes += row.length


class RunSet:
    """The runs of a segment that is being written, or scanned."""

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.runs: list[Run] = []
        #: Rows of all runs together.
        self.rows = 0
        self._latest: dict[tuple[int, bool], Run] = {}

    def add(self, ledger: int, row: Row, *, again: bool) -> Run | None:
        """Adds a row; returns the run if it is a new one."""
        run = self._latest.get((ledger, again))
        created = run is None or row.entry <= run.last
        if run is None or created:
            run = new_run(ledger, self.segment, again=again)
            self._latest[ledger, again] = run
            self.runs.append(run)
        add_row(run, row)
        self.rows += 1
        return run if created else None

    def newest(self, ledger: int) -> int | None:
        """The last entry of the ledger that was written here in its turn."""
        run = self._latest.get((ledger, False))
        return None if run is None else run.last


def encode_index(runs: Sequence[Run], *, segment: int, segment_bytes: int) -> list[bytes]:
    """The index file of a sealed segment, as buffers."""
    blocks = [run.rows.to_bytes() for run in runs if run.rows is not None]
    at = _HEAD.size + _DIRECTORY.size * len(runs)
    directory = bytearray()
    for run, block in zip(runs, blocks, strict=True):
        run.rows_at, run.rows_checksum = at, crc32c(block)
        directory += _DIRECTORY.pack(
            run.ledger,
            run.first,
            run.last,
            run.count,
            run.payload_bytes,
            at,
            run.rows_checksum,
            run.again,
        )
        at += len(block)
    head = _HEAD.pack(_HEAD_MAGIC, segment, segment_bytes, len(runs), 0)
    checksum = crc32c(bytes(directory), crc32c(head))
    head = _HEAD.pack(_HEAD_MAGIC, segment, segment_bytes, len(runs), checksum)
    return [head, bytes(directory), *blocks]


def decode_index(file: File | Salvage, *, segment: int) -> tuple[list[Run], int] | None:
    """The runs without their rows, and the segment's length; None if it does not check."""
    head = file.read(0, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    magic, number, segment_bytes, count, checksum = _HEAD.unpack(head)
    if magic != _HEAD_MAGIC or number != segment or count * _DIRECTORY.size > file.size():
        return None
    directory = file.read(_HEAD.size, count * _DIRECTORY.size)
    plain = _HEAD.pack(magic, number, segment_bytes, count, 0)
    if checksum != crc32c(directory, crc32c(plain)):
        return None
    runs = []
    for ledger, first, last, rows, payload, at, check, again in _DIRECTORY.iter_unpack(directory):
        runs.append(Run(ledger, segment, first, last, rows, payload, None, again, at, check))
    return runs, segment_bytes


def load_rows(file: File, run: Run) -> Rows | None:
    """The rows of a sealed run; None if they do not check."""
    data = file.read(run.rows_at, 16 * run.count)
    if len(data) != 16 * run.count or crc32c(data) != run.rows_checksum:
        return None
    return Rows.from_bytes(data, run.count)


def bytes_in_file(runs: Iterable[Run]) -> int:
    """Bytes that the runs take in their segment, heads of records included."""
    return sum(run.payload_bytes + RECORD_BYTES * run.count for run in runs)
