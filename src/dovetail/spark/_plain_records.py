"""Kafka records to Arrow buffers and back, in Python: the reference and fallback of `_records.c`.

Both modules have these functions, return equal results and raise `ValueError` for the same
input. A column is a tuple of the buffers of an Arrow array of byte strings: offsets (32 bits,
native), data, validity bits or None, and the index of its first row; None is a column of nulls.
"""

import struct
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise, starmap
from typing import TypeAlias, TypeVar

from dovetail.kafka.client.partitioner import murmur2
from dovetail.record_batch import varint

Buffer: TypeAlias = bytes | bytearray | memoryview
#: offsets, data, validity or None.
Strings: TypeAlias = tuple[bytes, bytes, bytes | None]
#: records, count, base offset, base time in ms, whether one time holds for all, that time in ms.
Section: TypeAlias = tuple[Buffer, int, int, int, bool, int]
Headers: TypeAlias = tuple[bytes, Strings, Strings]
Decoded: TypeAlias = tuple[int, bytes, bytes, Strings, Strings, Headers | None]
Column: TypeAlias = tuple[Buffer, Buffer, Buffer | None, int]
#: list offsets, place of the first list, names, contents.
HeaderColumn: TypeAlias = tuple[Buffer, int, Column, Column]
#: The offset of its job, its name, key, value, headers.
TeamRow: TypeAlias = tuple[int, bytes, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]
Made = TypeVar("Made")

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_MS_MAX = _INT64_MAX // 1000
#: The seven numbers of a record take a byte each.
_RECORD_BYTES_MIN = 7


class _StringsBuilder:
    """A column of byte strings that is being filled."""

    def __init__(self) -> None:
        self._offsets = array("i", [0])
        self._data = bytearray()
        self._present: list[bool] = []

    def __len__(self) -> int:
        return len(self._present)

    def add(self, value: bytes | None) -> None:
        self._present.append(value is not None)
        self._data += value or b""
        self._offsets.append(len(self._data))

    def close(self) -> Strings:
        if all(self._present):
            return self._offsets.tobytes(), bytes(self._data), None
        bits = bytearray(b"\xff" * ((len(self._present) + 7) // 8))
        for row, present in enumerate(self._present):
            if not present:
                bits[row // 8] &= ~(1 << row % 8)
        return self._offsets.tobytes(), bytes(self._data), bytes(bits)


def decode(
    sections: list[Section], offset_min: int, offset_end: int, with_headers: bool
) -> Decoded:
    """The records of all sections whose offsets are in range, as the buffers of columns.

    Gives the number of rows, offsets (64 bits), times in microseconds (64 bits), keys, values,
    and headers if they are wanted. Times beyond what 64 bits of microseconds hold are moved to
    the nearest that is.
    """
    _measure(sections)

    offsets, times, header_ends = array("q"), array("q"), array("i", [0])
    keys, values, names, contents = (_StringsBuilder() for _ in range(4))
    for data, count, base_offset, base_ms, stamped, stamp_ms in sections:
        at, plain = 0, bytes(data)
        for _ in range(count):
            length, at = read_number(plain, at, len(plain))
            end = at + length
            if length < 1 or end > len(plain):
                raise ValueError("a record is longer than its batch")
            time_delta, here = read_number(plain, at + 1, end)
            offset_delta, here = read_number(plain, here, end)
            at = end

            if not 0 <= offset_delta <= _INT32_MAX:
                raise ValueError("an offset is out of range")
            offset = base_offset + offset_delta
            if not offset_min <= offset < offset_end:
                continue

            key, here = _read_bytes(plain, here, end)
            value, here = _read_bytes(plain, here, end)
            keys.add(key)
            values.add(value)
            if with_headers:
                _read_headers(plain, here, end, names, contents)
                header_ends.append(len(names))
            offsets.append(offset)
            ms = stamp_ms if stamped else base_ms + time_delta
            times.append(min(max(ms, -_MS_MAX), _MS_MAX) * 1000)
        if at != len(plain):
            raise ValueError("a batch is longer than its records")

    headers = (header_ends.tobytes(), names.close(), contents.close()) if with_headers else None
    return (
        len(offsets),
        offsets.tobytes(),
        times.tobytes(),
        keys.close(),
        values.close(),
        headers,
    )


def objects(
    sections: list[Section], offset_min: int, offset_end: int, kind: Callable[..., Made]
) -> list[Made]:
    """The same records, each made by `kind` (a named tuple) of its offset, time in milliseconds,
    key, value and headers.

    A name that is not UTF-8 has its bytes replaced; a header without a value has an empty one.
    """
    rows, offsets, times, keys, values, headers = decode(sections, offset_min, offset_end, True)
    assert headers is not None, "they were asked for"
    ends, names, contents = headers
    bounds = memoryview(ends).cast("i").tolist()
    texts = [(name or b"").decode(errors="replace") for name in _cells(names, bounds[-1])]
    pairs = list(zip(texts, (one or b"" for one in _cells(contents, bounds[-1])), strict=True))
    lists = [tuple(pairs[start:end]) for start, end in pairwise(bounds)]

    at_ms = [at_us // 1000 for at_us in memoryview(times).cast("q").tolist()]
    columns = (memoryview(offsets).cast("q").tolist(), at_ms, _cells(keys, rows))
    return list(starmap(kind, zip(*columns, _cells(values, rows), lists, strict=True)))


def _cells(column: Strings, rows: int) -> list[bytes | None]:
    offsets, data, valid = column
    bounds = memoryview(offsets).cast("i").tolist()
    cells: list[bytes | None] = [data[start:end] for start, end in pairwise(bounds)]
    if valid is not None:
        for row in range(rows):
            if not valid[row // 8] >> row % 8 & 1:
                cells[row] = None
    return cells


def _measure(sections: list[Section]) -> None:
    total = 0
    for data, count, base_offset, _, _, _ in sections:
        if not 0 <= count <= len(data) // _RECORD_BYTES_MIN:
            raise ValueError("a batch has fewer records than it says")
        if not 0 <= base_offset <= _INT64_MAX - _INT32_MAX:
            raise ValueError("an offset is out of range")
        total += len(data)
    if total > _INT32_MAX:
        raise ValueError("more than 2 GiB at once")


def _read_headers(
    data: bytes, at: int, end: int, names: _StringsBuilder, contents: _StringsBuilder
) -> None:
    count, at = read_number(data, at, end)
    if count < 0:
        raise ValueError("a count of headers is negative")
    for _ in range(count):
        name, at = _read_bytes(data, at, end)
        if name is None:
            raise ValueError("a length is negative")
        content, at = _read_bytes(data, at, end)
        names.add(name)
        contents.add(content)
    if at != end:
        raise ValueError("a record is longer than its fields")


def read_number(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A zigzag number of up to 64 bits, and the place behind it."""
    value = 0
    for shift in range(0, 64, 7):
        if at >= end:
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            break
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a number is too long")


def _read_bytes(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_number(data, at, end)
    if length == -1:
        return None, at
    if length < 0:
        raise ValueError("a length is negative")
    if length > end - at:
        raise ValueError("a field is longer than its record")
    return data[at : at + length], at + length


def encode(
    keys: Column | None,
    values: Column | None,
    headers: HeaderColumn | None,
    times: Buffer | None,
    now_ms: int,
    rows: Buffer,
    start: int,
    bytes_max: int,
) -> tuple[bytes, int, int, int]:
    """Records of the rows named by `rows` (32 bits each), from place `start` on.

    As many as fit into `bytes_max`, and at least one. Times are in microseconds (64 bits), by row;
    without them every record is of `now_ms`. Gives the records, their number, the first time and
    the highest, in milliseconds.
    """
    wanted = memoryview(rows).cast("B").cast("i")
    if not 0 <= start < len(wanted) or bytes_max < 1:
        raise ValueError("nothing to encode")
    made, count, base_ms, most_ms = bytearray(), 0, 0, 0
    for row in wanted[start:]:
        ms = now_ms
        if times is not None:
            if not 0 <= row < len(times) // 8:
                raise ValueError("a row is not in its column")
            ms = int(struct.unpack_from("=q", times, row * 8)[0]) // 1000
        if count == 0:
            base_ms = most_ms = ms

        record = (
            b"\0"
            + varint(ms - base_ms)
            + varint(count)
            + _with_length(_get(keys, row))
            + _with_length(_get(values, row))
            + _encode_headers(headers, row)
        )
        sized = varint(len(record)) + record
        most_ms = max(most_ms, ms)
        if count and len(made) + len(sized) > bytes_max:
            break
        made += sized
        count += 1
    return bytes(made), count, base_ms, most_ms


def _with_length(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def _encode_headers(headers: HeaderColumn | None, row: int) -> bytes:
    if headers is None:
        return varint(0)
    lists, first, names, contents = headers
    place = first + row
    if row < 0 or (place + 2) * 4 > len(lists):
        raise ValueError("a row is not in its column")
    start, end = struct.unpack_from("=ii", lists, place * 4)
    if not 0 <= start <= end:
        raise ValueError("headers are not in their column")
    made = bytearray(varint(end - start))
    for at in range(start, end):
        name = _get(names, at)
        if name is None:
            raise ValueError("a header has no name")
        made += _with_length(name) + _with_length(_get(contents, at))
    return bytes(made)


def _get(column: Column | None, row: int) -> bytes | None:
    if column is None:
        return None
    offsets, data, valid, first = column
    place = first + row
    if row < 0 or (place + 2) * 4 > len(offsets):
        raise ValueError("a row is not in its column")
    if valid is not None:
        if place // 8 >= len(valid):
            raise ValueError("a row is not in its column")
        if not valid[place // 8] >> place % 8 & 1:
            return None
    start, end = struct.unpack_from("=ii", offsets, place * 4)
    if not 0 <= start <= end <= len(data):
        raise ValueError("a value is not in its column")
    return bytes(data[start:end])


def encode_rows(
    rows: Sequence[TeamRow], id_name: bytes, prefix: bytes, rows_max: int, bytes_max: int
) -> tuple[bytes, int]:
    """Records of one time, of the rows of a team: of `rows_max` of them, and as many as fit into
    `bytes_max`, but at least one.

    The first header of each is the row's id: `prefix`, the number of its job, its name. Gives the
    records and their number.
    """
    if not rows or rows_max < 1 or bytes_max < 1:
        raise ValueError("nothing to encode")
    made, count = bytearray(), 0
    for job, name, key, value, headers in rows[:rows_max]:
        row_id = b"%b%d%b" % (prefix, job, name)
        pairs = [(id_name, row_id), *((name.encode(), content) for name, content in headers)]
        record = b"".join(
            (
                b"\0\0",
                varint(count),
                _with_length(key),
                _with_length(value),
                varint(len(pairs)),
                *(_with_length(part) for pair in pairs for part in pair),
            )
        )
        sized = varint(len(record)) + record
        if count and len(made) + len(sized) > bytes_max:
            break
        made += sized
        count += 1
    return bytes(made), count


def assign(keys: Column | None, rows: int, partitions: int, first: int, run: int) -> bytes:
    """The partition of each row (32 bits): by its key as Kafka's clients do, else in turn.

    Rows without a key go to a partition `run` at a time; the first row counts as number `first`.
    """
    if rows < 0 or not 1 <= partitions <= _INT32_MAX or first < 0 or run < 1:
        raise ValueError("no partitions to assign to")
    found = array("i")
    for row in range(rows):
        key = _get(keys, row)
        if key is None:
            found.append((first + row) // run % partitions)
        else:
            found.append((murmur2(key) & _INT32_MAX) % partitions)
    return found.tobytes()


def group(assigned: Buffer, partitions: int) -> tuple[bytes, bytes]:
    """Where the rows of each partition begin, and the rows in order of partition, then of row."""
    if not 1 <= partitions <= _INT32_MAX:
        raise ValueError("no partitions to group by")
    lists: list[list[int]] = [[] for _ in range(partitions)]
    for row, partition in enumerate(memoryview(assigned).cast("B").cast("i")):
        if not 0 <= partition < partitions:
            raise ValueError("a partition that is not there")
        lists[partition].append(row)
    starts, rows = array("i", [0]), array("i")
    for listed in lists:
        rows.extend(listed)
        starts.append(len(rows))
    return starts.tobytes(), rows.tobytes()
