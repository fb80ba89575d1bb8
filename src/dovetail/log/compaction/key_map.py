"""Where each key was seen last, and which records of a batch remain; compiled if possible.

A map holds hashes of keys, not keys: 24 bytes each, plus a third for its free slots, whatever the
length of the keys. Two keys with one hash would be confused; with 128 bits under a secret that is
drawn for each map, nobody can construct such keys or meet them by chance.

Measured in one process, batches of 1,000 records of 100 bytes with 10 % distinct keys: `put` takes
40 ns a record compiled, and 4 µs in Python.
"""

import hashlib
import secrets
from collections.abc import Iterator
from typing import NamedTuple

from dovetail.buffers import Buffer
from dovetail.errors import InvalidBatch
from dovetail.record_batch import read_varint, varint

#: Memory of one key in a compiled map, its part of the free places included.
KEY_BYTES = 32

_INT64 = 1 << 64
_INT64_MAX = (1 << 63) - 1


class _Record(NamedTuple):
    """A record in a batch, as far as it matters here."""

    whole: bytes
    attributes: int
    time_delta: int
    behind_time: bytes
    offset: int
    key: bytes | None
    is_tombstone: bool


class PlainKeyMap:
    """The last offset of each key, for so many keys at most."""

    def __init__(self, keys_max: int, secret: bytes) -> None:
        if len(secret) != 16 or not 1 <= keys_max <= 1 << 40:
            raise ValueError("a map has room for keys, and a secret of 16 bytes")
        self._keys_max = keys_max
        self._secret = secret
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, data: Buffer, start: int, count: int, base_offset: int, first: int, /) -> int:
        """Remembers the keys of `count` records from `start` on, those from offset `first` on.

        -1, or the offset of the first record whose key found no room. Raises `ValueError` for what
        is not a record.
        """
        for record in _records(data, start, count, base_offset):
            if record.key is None or record.offset < first:
                continue
            key = self._hash(record.key)
            if key not in self._offsets and len(self._offsets) >= self._keys_max:
                return record.offset
            self._offsets[key] = record.offset
        return -1

    def judge(
        self,
        data: Buffer,
        start: int,
        count: int,
        base_offset: int,
        end: int,
        tombstones_stay: bool,
        /,
    ) -> tuple[int, int, int, int]:
        """How many records stay, how many of them are tombstones below `end`, and the lowest and
        highest time of those that stay, behind the batch's.

        What lies at `end` or behind it stays; below it, what has a key and is the last of its key.
        """
        kept = tombstones = 0
        lowest, highest = _INT64_MAX, -_INT64_MAX - 1
        for record in self._staying(data, start, count, base_offset, end, tombstones_stay):
            kept += 1
            tombstones += record.is_tombstone and record.offset < end
            lowest, highest = min(lowest, record.time_delta), max(highest, record.time_delta)
        return kept, tombstones, lowest, highest

    def copy(
        self,
        data: Buffer,
        start: int,
        count: int,
        base_offset: int,
        end: int,
        tombstones_stay: bool,
        shift: int,
        /,
    ) -> bytes:
        """The records that stay, with times that are `shift` more."""
        made: list[bytes] = []
        for record in self._staying(data, start, count, base_offset, end, tombstones_stay):
            if not shift:
                made.append(record.whole)
                continue
            time_delta = (record.time_delta + shift + _INT64_MAX + 1) % _INT64 - _INT64_MAX - 1
            body = bytes([record.attributes]) + varint(time_delta) + record.behind_time
            made += (varint(len(body)), body)
        return b"".join(made)

    def _staying(
        self, data: Buffer, start: int, count: int, base_offset: int, end: int, tombstones: bool
    ) -> Iterator[_Record]:
        for record in _records(data, start, count, base_offset):
            if record.offset >= end:
                yield record
            elif record.key is None or (record.is_tombstone and not tombstones):
                continue
            elif record.offset >= self._offsets.get(self._hash(record.key), -1):
                yield record

    def _hash(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, digest_size=16, key=self._secret).digest()


def _records(data: Buffer, start: int, count: int, base_offset: int) -> Iterator[_Record]:
    view = bytes(data)
    if not 0 <= start <= len(view):
        raise ValueError("the records begin behind the end")
    at = start
    try:
        for _ in range(count):
            begin = at
            length, at = read_varint(view, at)
            if length < 1 or at + length > len(view):
                raise ValueError("not a record")
            record, body = view[at : at + length], view[begin : at + length]
            at += length
            yield _record(record, body, base_offset)
    except InvalidBatch as error:
        raise ValueError("not a record") from error


def _record(record: bytes, whole: bytes, base_offset: int) -> _Record:
    time_delta, behind_time = read_varint(record, 1)
    offset_delta, at = read_varint(record, behind_time)
    key_bytes, at = read_varint(record, at)
    if not 0 <= offset_delta < 1 << 31 or at + key_bytes > len(record):
        raise ValueError("not a record")
    key = None if key_bytes < 0 else record[at : at + key_bytes]
    value_bytes, _ = read_varint(record, at + max(key_bytes, 0))
    return _Record(
        whole,
        record[0],
        time_delta,
        record[behind_time:],
        base_offset + offset_delta,
        key,
        value_bytes < 0,
    )


try:
    from dovetail.log.compaction._key_map import KeyMap
except ImportError:
    KeyMap = PlainKeyMap  # type: ignore[misc]
    COMPILED = False
else:
    COMPILED = True


def new_map(keys_max: int) -> PlainKeyMap:
    """An empty map for so many keys, under a secret of its own."""
    return KeyMap(keys_max, secrets.token_bytes(16))
