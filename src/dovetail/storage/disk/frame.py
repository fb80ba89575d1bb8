"""The format of a segment file, and how a scan distinguishes torn from damaged.

    file    = head, record, record, ..., zeros (reserved space)
    head    = magic, segment number, salt, checksum                                    24 bytes
    record  = checksum, length, magic, kind, flags, ledger, entry, term, confirmed, group
              (52 bytes), then `length` bytes of payload
    flags   = 1: the last of its group; 2: an entry that is written again (`Record.again`)

The checksum is CRC-32C over everything behind it, seeded with the file's random salt: bytes copied
from a segment into a message cannot pass for a record of this file.

*Groups.* Records that share one sync carry one group number, and the last of them a flag. The node
begins group g + 1 only after group g is on disk. So when a record fails its checksum:
- if an intact record of a later group lies behind it, its own group was on disk once, and may have
  been acknowledged: it is **damaged**, and must not be cut;
- if not, it belongs to the last group, whose sync never finished, so nothing of it was
  acknowledged: it is **torn**, and is cut.

*Marks.* A group that was synced and has no successor yet looks like a torn one. So a store that
closes, or has nothing to write for a second, writes a mark: an empty record, a group of its own,
behind the group that is on disk. Damage before a mark is damage. A note beside the segments
(synced.py) proves the same where the mark is lost too.

Survives: any mixture of the last group's sectors reaching the disk.
Not here: what the records mean (store.py).
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from dovetail.buffers import Buffer
from dovetail.errors import Damaged

HEAD = struct.Struct("<8sIII4x")
HEAD_MAGIC = b"DVTLSEG1"
RECORD = struct.Struct("<IIHBBqqqqq")
RECORD_BYTES = RECORD.size
RECORD_MAGIC = 0xD07E
_AFTER_CHECKSUM = struct.Struct("<IHBBqqqqq")
_MAGIC_BYTES = RECORD_MAGIC.to_bytes(2, "little")
_MAGIC_AT = 8
_GROUP_LAST = 1
_AGAIN = 2

#: Bytes that a scan reads at once: large enough for sequential speed, small beside 300 MB.
SCAN_BYTES = 4 * 1024 * 1024

#: Largest payload of a record. Positions are 32 bits, and a group must fit into memory.
PAYLOAD_BYTES_MAX = 128 * 1024 * 1024


class Kind(IntEnum):
    """What a record says."""

    ENTRY = 1
    FENCE = 2
    DELETE = 3
    #: Everything a segment must know of earlier ones; the first record of each segment.
    STATE = 4
    #: Everything before it is on the disk.
    MARK = 5


class Record(NamedTuple):
    """A record's head, without its payload."""

    kind: Kind
    ledger: int
    entry: int
    term: int
    confirmed: int
    #: An entry below the newest of its ledger: it was moved, stored anew, or copied late. That it
    #: lies behind another says nothing about which of them its writer sent first.
    again: bool = False


class Scanned(NamedTuple):
    """A record that checked, where it lies, and its group."""

    record: Record
    position: int
    payload: memoryview
    group: int
    group_last: bool


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """How a scan ended: the end of what is intact, and what lies beyond.

    `torn_bytes` counts what a crash left behind the intact prefix; `damaged` is true if records
    that were on the disk once do not check any more.
    """

    position: int
    group_last_position: int
    group: int
    torn_bytes: int
    damaged_ranges: tuple[tuple[int, int], ...]


def encode_head(number: int, salt: int) -> bytes:
    """The first bytes of a segment file."""
    head = HEAD.pack(HEAD_MAGIC, number, salt, 0)
    return HEAD.pack(HEAD_MAGIC, number, salt, crc32c(head[:16]))


def decode_head(data: bytes, number: int) -> int:
    """The salt. Raises `Damaged` if this is not the head of segment `number`."""
    if len(data) < HEAD.size:
        raise Damaged(f"segment {number}: its head has {len(data)} of {HEAD.size} bytes")
    magic, found, salt, checksum = HEAD.unpack_from(data)
    if magic != HEAD_MAGIC or found != number or checksum != crc32c(data[:16]):
        raise Damaged(f"segment {number}: the head of the file fails its checksum")
    return int(salt)


def encode_record(
    record: Record, payload: Buffer, *, salt: int, group: int, group_last: bool
) -> bytes:
    """The head of a record; its payload is written behind it as it is."""
    rest = _AFTER_CHECKSUM.pack(
        len(payload),
        RECORD_MAGIC,
        record.kind,
        (_GROUP_LAST if group_last else 0) | (_AGAIN if record.again else 0),
        record.ledger,
        record.entry,
        record.term,
        record.confirmed,
        group,
    )
    checksum = crc32c(payload, crc32c(rest, salt))
    return checksum.to_bytes(4, "little") + rest


def decode_record(data: memoryview, at: int, salt: int, *, start: int = 0) -> Scanned | None:
    """The record at `at`, or None if it does not check or is not all there.

    `start` is where `data` begins in the file.
    """
    if at + RECORD_BYTES > len(data):
        return None
    checksum, length, magic, kind, flags, ledger, entry, term, confirmed, group = (
        RECORD.unpack_from(data, at)
    )
    end = at + RECORD_BYTES + length
    if magic != RECORD_MAGIC or not Kind.ENTRY <= kind <= Kind.MARK or end > len(data):
        return None
    if checksum != crc32c(data[at + 4 : end], salt):
        return None
    return Scanned(
        Record(_KINDS[kind], ledger, entry, term, confirmed, bool(flags & _AGAIN)),
        start + at,
        data[at + RECORD_BYTES : end],
        group,
        bool(flags & _GROUP_LAST),
    )


_KINDS = {int(kind): kind for kind in Kind}


class SegmentScan:
    """Reads a segment from its head to the end of what is intact.

    Iterate it to get the records, then ask `end`. Damage is skipped over and counted; a torn
    tail ends the scan.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int, salt: int) -> None:
        self._read = read
        self._size = size
        self._salt = salt
        self.end = ScanEnd(HEAD.size, HEAD.size, -1, 0, ())

    def __iter__(self) -> Iterator[Scanned]:
        position, group_start = HEAD.size, HEAD.size
        group, open_group = -1, False
        damaged: list[tuple[int, int]] = []
        window = _Window(self._read, self._size)
        while True:
            found = window.record_at(position, self._salt)
            if found is None:
                failing_group = group if open_group else group + 1
                resume = self._intact_beyond(window, position, failing_group)
                if resume is None:
                    torn = self._torn_bytes(position)
                    self.end = ScanEnd(position, group_start, group, torn, tuple(damaged))
                    return
                damaged.append((position, resume))
                position = resume
                continue
            if found.group != group:
                group, group_start = found.group, position
            open_group = not found.group_last
            yield found
            position += RECORD_BYTES + len(found.payload)

    def _intact_beyond(self, window: "_Window", position: int, failing_group: int) -> int | None:
        """Where the next intact record of a later group lies, if there is one."""
        first = None
        for at in window.candidates(position + 1):
            found = window.record_at(at, self._salt)
            if found is None:
                continue
            first = at if first is None else first
            if found.group > failing_group:
                return first
        return None

    def _torn_bytes(self, position: int) -> int:
        """Bytes up to the last that is not zero: what a crash left behind."""
        last = position
        for at in range(position, self._size, SCAN_BYTES):
            data = self._read(at, min(SCAN_BYTES, self._size - at)).rstrip(b"\0")
            if data:
                last = at + len(data)
        return last - position


class _Window:
    """A stretch of the file in memory that moves along with the scan."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._start = 0
        self._data = memoryview(b"")

    def record_at(self, position: int, salt: int) -> Scanned | None:
        if position >= self._start:
            # Nearly always it is all here.
            found = decode_record(self._data, position - self._start, salt, start=self._start)
            if found is not None:
                return found
        head = self._bytes(position, RECORD_BYTES)
        if len(head) < RECORD_BYTES:
            return None
        length = RECORD.unpack_from(head)[1]
        magic = RECORD.unpack_from(head)[2]
        if magic != RECORD_MAGIC or length > PAYLOAD_BYTES_MAX:
            return None
        whole = self._bytes(position, RECORD_BYTES + length)
        return decode_record(whole, 0, salt, start=position)

    def candidates(self, position: int) -> Iterator[int]:
        """Places from `position` on that may be the start of a record."""
        while position < self._size:
            data = bytes(self._bytes(position, SCAN_BYTES))
            at = data.find(_MAGIC_BYTES, _MAGIC_AT)
            while at >= 0:
                yield position + at - _MAGIC_AT
                at = data.find(_MAGIC_BYTES, at + 1)
            # The windows overlap, so that a magic on their border is seen.
            position += max(1, len(data) - _MAGIC_AT - 1)

    def _bytes(self, position: int, length: int) -> memoryview:
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            wanted = max(length, SCAN_BYTES)
            self._data = memoryview(self._read(position, min(wanted, self._size - position)))
            self._start, at = position, 0
        return self._data[at : at + length]
