"""The records inside a batch: written and read only where the log itself has to.

The log's own journal is made of batches, and looking up a time needs the records of one batch.
Everything else passes batches on unopened.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

import cramjam
from crc32c import crc32c

from dovetail.buffers import Buffer
from dovetail.errors import InvalidBatch
from dovetail.log.batch import APPEND_TIME, CODEC_MASK, HEADER_BYTES, NO_PRODUCER, read_header

#: Largest batch that is inflated to look up a time; a bomb stops there.
INFLATED_BYTES_MAX = 64 * 1024 * 1024

#: Room that is tried for what does not say its size; most batches fit the first.
_INFLATE_STEPS = (2 * 1024 * 1024, 16 * 1024 * 1024, INFLATED_BYTES_MAX)

_BODY = struct.Struct(">hiqqqhii")
_FRONT = struct.Struct(">qiibI")
_XERIAL_MAGIC = b"\x82SNAPPY\x00"


class StoredRecord(NamedTuple):
    """A record as it lies in a batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def encode_batch(
    records: Sequence[tuple[bytes | None, bytes | None]], *, timestamp: int
) -> bytearray:
    """A batch of (key, value) pairs, uncompressed, all of one time, with offsets from 0."""
    body = bytearray(
        _BODY.pack(0, len(records) - 1, timestamp, timestamp, NO_PRODUCER, -1, -1, len(records))
    )
    for delta, (key, value) in enumerate(records):
        record = bytearray(b"\x00")
        record += _varint(0) + _varint(delta)
        for part in (key, value):
            record += _varint(-1) if part is None else _varint(len(part)) + part
        record += _varint(0)
        body += _varint(len(record)) + record
    front = _FRONT.pack(0, len(body) + 9, -1, 2, crc32c(bytes(body)))
    return bytearray(front + body)


def decode_batch(batch: Buffer) -> Iterator[StoredRecord]:
    """The records of a batch. Raises `InvalidBatch` if they are malformed."""
    header = read_header(batch)
    data = _inflate(memoryview(batch)[HEADER_BYTES:], header.attributes & CODEC_MASK)
    at = 0
    for _ in range(header.record_count):
        length, at = _read_varint(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise InvalidBatch(f"a record of {length} bytes at byte {at} of {len(data)}")
        timestamp_delta, at = _read_varint(data, at + 1)
        offset_delta, at = _read_varint(data, at)
        key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)

        stamped = header.attributes & APPEND_TIME
        timestamp = header.timestamp_max if stamped else header.base_timestamp + timestamp_delta
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise InvalidBatch(f"a record {offset_delta} behind the first of {header.record_count}")
        if not -(2**63) <= timestamp < 2**63:
            raise InvalidBatch(f"a record has the timestamp {timestamp}")
        yield StoredRecord(header.base_offset + offset_delta, timestamp, key, value)
        at = end


def _varint(value: int) -> bytes:
    """Zigzag, base 128."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise InvalidBatch(f"the number at byte {at} has no end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > len(data):
        raise InvalidBatch(f"{length} bytes at {at} in {len(data)}")
    return data[at : at + length], at + length


def _inflate(data: memoryview, codec: int) -> bytes:
    """The plain records. Raises `InvalidBatch` if they do not inflate, or to too much."""
    try:
        if codec == 0:
            return bytes(data)
        if codec == 1:
            inflater = zlib.decompressobj(wbits=31)
            plain = inflater.decompress(data, INFLATED_BYTES_MAX)
            if inflater.unconsumed_tail:
                raise InvalidBatch(f"a batch inflates to more than {INFLATED_BYTES_MAX} bytes")
            return plain
        if codec == 2:
            return _inflate_snappy(bytes(data))
        return _inflate_bounded(cramjam.lz4 if codec == 3 else cramjam.zstd, bytes(data))
    except (zlib.error, cramjam.DecompressionError, ValueError) as error:
        raise InvalidBatch(f"cannot decompress codec {codec}: {error}") from error


def _inflate_bounded(codec: ModuleType, data: bytes) -> bytes:
    """LZ4 and Zstandard, into rooms that grow: what is in front need not say how much there is."""
    for size in _INFLATE_STEPS:
        room = bytearray(size)
        try:
            return bytes(memoryview(room)[: codec.decompress_into(data, room)])
        except cramjam.DecompressionError:
            if size == _INFLATE_STEPS[-1]:
                raise
    raise InvalidBatch("no room to inflate")


def _inflate_snappy(data: bytes) -> bytes:
    """Snappy, plain or in the blocks that Java clients write."""
    if not data.startswith(_XERIAL_MAGIC):
        return _inflate_snappy_block(data, INFLATED_BYTES_MAX)
    plain, at = bytearray(), 16
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        block = data[at + 4 : at + 4 + length]
        plain += _inflate_snappy_block(block, INFLATED_BYTES_MAX - len(plain))
        at += 4 + length
    return bytes(plain)


def _inflate_snappy_block(block: bytes, bytes_max: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > bytes_max:
        raise InvalidBatch(f"a batch inflates to more than {INFLATED_BYTES_MAX} bytes")
    return bytes(cramjam.snappy.decompress_raw(block))
