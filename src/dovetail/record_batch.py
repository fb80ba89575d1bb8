"""Kafka's record batch, format 2: its header, and the records in it.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | checksum 4 | attributes 2 |
    last offset delta 4 | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 |
    base sequence 4 | count 4 | records ...

The checksum (CRC-32C) covers everything behind it, so the base offset and the leader epoch can be
set without touching the rest. A broker stores a batch as it came (K2): it writes only those two
fields and, for topics with log append time, the timestamp and the checksum.

The log opens a batch only where it must: its journals are batches, and a lookup by time needs the
records of one. Clients build batches under sequence numbers of their choice. Spark tables, which
read and write columns, have their own encoder and decoder (`spark.records`).
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from dovetail.buffers import Buffer
from dovetail.compression import deflate, inflate
from dovetail.errors import BatchTooLarge, ChecksumMismatch, InvalidBatch

_HEADER = struct.Struct(">qiibIhiqqqhii")
#: The header in two parts: up to the checksum, and what the checksum covers.
_FRONT = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")
HEADER_BYTES = _HEADER.size
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_EPOCH_AT = 12
_MAGIC_AT = 16
_CHECKSUM_AT = 17
_ATTRIBUTES_AT = 21
#: What the checksum covers begins here.
CHECKED_FROM = _ATTRIBUTES_AT
_TIMESTAMP_MAX_AT = 35
#: The length field counts what lies behind it.
_LENGTH_FROM = 12

#: Of the record in a control batch: version and type, version and coordinator's epoch and number.
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hiq")

CODEC_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
#: The base timestamp says when the batch's tombstones, or its marker, may go (KIP-534); times of
#: records are counted from it as from any other.
DELETE_HORIZON = 0x40

NO_PRODUCER = -1

#: These are of brokers' own producers. Those that brokers hand out are counted from 0 on, and above
#: are the ids that teams and Spark queries choose for themselves, which clients must send.
BROKER_PRODUCER_IDS = 1 << 62
_BROKER_PRODUCER_IDS_END = BROKER_PRODUCER_IDS + (1 << 10)

#: The producer of all records that became due (node/due).
DUE_PRODUCER_ID = BROKER_PRODUCER_IDS + 11

#: Sequence numbers are 31 bits and begin again at 0.
SEQUENCE_END = 1 << 31

Headers = Sequence[tuple[str, bytes | None]]


class NewRecord(NamedTuple):
    """A record that is to be written."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class StoredRecord(NamedTuple):
    """A record as it lies in a batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    #: As they lie there; `read_headers` reads them.
    raw_headers: bytes = b"\0"


class OpenRecord(NamedTuple):
    """A record with everything in it; `raw` are its bytes in the batch, with their length."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    raw: bytes


class Marker(NamedTuple):
    """The end of a transaction in one partition, as its coordinator decided."""

    producer_id: int
    producer_epoch: int
    commit: bool
    #: The term of the coordinator's journal: one that was replaced decides nothing any more.
    coordinator_epoch: int
    #: Which transaction of its transactional id. Kafka's clients do not look at it: it stands
    #: behind what they know of the value.
    number: int


class BatchHeader(NamedTuple):
    """The fields in front of the records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    timestamp_max: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def offset_end(self) -> int:
        """The offset behind the batch's last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return _LENGTH_FROM + self.length


def read_header(batch: bytes | bytearray | memoryview) -> BatchHeader:
    """The header of a batch that is known to be whole."""
    return BatchHeader._make(_HEADER.unpack_from(batch))


def check_batch(batch: memoryview, *, bytes_max: int) -> BatchHeader:
    """The header of a batch from outside. Raises `InvalidBatch` if it cannot be stored."""
    if len(batch) > bytes_max:
        raise BatchTooLarge(f"the batch has {len(batch)} bytes; the topic accepts {bytes_max}")
    if len(batch) < HEADER_BYTES or batch[_MAGIC_AT] != 2:
        if len(batch) > _MAGIC_AT and batch[_MAGIC_AT] < 2:
            raise InvalidBatch(f"record format {batch[_MAGIC_AT]} is not supported; it must be 2")
        raise InvalidBatch(f"{len(batch)} bytes are not a record batch")

    header = read_header(batch)
    if header.length != len(batch) - _LENGTH_FROM:
        raise InvalidBatch(
            f"batch length {header.length} in {len(batch)} bytes; send one batch per partition"
        )
    if header.checksum != crc32c(batch[CHECKED_FROM:]):
        raise ChecksumMismatch("the batch fails its checksum: it changed on its way")

    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidBatch(
            f"{header.record_count} records with last offset delta {header.last_offset_delta}"
        )
    if header.attributes & CONTROL:
        raise InvalidBatch("only brokers write control batches")
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
        raise InvalidBatch("a transactional batch without a producer id")
    if header.attributes & CODEC_MASK > 4:
        raise InvalidBatch(f"compression codec {header.attributes & CODEC_MASK} is unknown")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidBatch(f"producer {header.producer_id} sends no sequence or epoch")
    if BROKER_PRODUCER_IDS <= header.producer_id < _BROKER_PRODUCER_IDS_END:
        raise InvalidBatch(f"producer id {header.producer_id} is reserved for brokers; request one")
    return header


def stamp(batch: memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Sets the offset and the epoch, in place."""
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, _EPOCH_AT, leader_epoch)


def stamp_append_time(batch: memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Gives all records the time of their arrival, in place."""
    attributes = header.attributes | APPEND_TIME
    struct.pack_into(">h", batch, _ATTRIBUTES_AT, attributes)
    struct.pack_into(">q", batch, _TIMESTAMP_MAX_AT, now_ms)
    checksum = crc32c(batch[CHECKED_FROM:])
    struct.pack_into(">I", batch, _CHECKSUM_AT, checksum)
    return header._replace(attributes=attributes, timestamp_max=now_ms, checksum=checksum)


def recompressed(
    batch: memoryview, header: BatchHeader, codec: int, level: int | None
) -> tuple[memoryview, BatchHeader]:
    """The same records under another codec. Raises `InvalidBatch` if they do not inflate."""
    plain = bytes(inflate(batch[HEADER_BYTES:], header.attributes & CODEC_MASK))
    header = header._replace(attributes=header.attributes & ~CODEC_MASK | codec)
    made, header = resealed(header, deflate(plain, codec, level))
    return memoryview(made), header


def resealed(header: BatchHeader, records: bytes) -> tuple[bytearray, BatchHeader]:
    """A batch of this header and other records, as its codec has them."""
    header = header._replace(length=HEADER_BYTES - _LENGTH_FROM + len(records))
    covered = _COVERED.pack(*header[5:])
    header = header._replace(checksum=crc32c(records, crc32c(covered)))
    return bytearray(_FRONT.pack(*header[:5]) + covered + records), header


def empty_batch(first_offset: int, offset_end: int, *, leader_epoch: int) -> bytearray:
    """A batch without records, so that readers find the way across offsets that are gone."""
    delta = offset_end - first_offset - 1
    header = BatchHeader(first_offset, 0, leader_epoch, 2, 0, 0, delta, -1, -1, -1, -1, -1, 0)
    return resealed(header, b"")[0]


def seal(
    records: Buffer,
    count: int,
    *,
    base_timestamp: int,
    timestamp_max: int,
    codec: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """A batch with offsets from 0 of records that are encoded, and compressed with `codec`."""
    covered = _COVERED.pack(
        codec,
        count - 1,
        base_timestamp,
        timestamp_max,
        producer_id,
        producer_epoch,
        sequence,
        count,
    )
    checksum = crc32c(records, crc32c(covered))
    length = HEADER_BYTES - _LENGTH_FROM + len(records)
    return b"".join((_FRONT.pack(0, length, -1, 2, checksum), covered, records))


def build_batch(
    records: Sequence[NewRecord],
    *,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    sequence: int = -1,
    attributes: int = 0,
    codec: int = 0,
) -> bytes:
    """One batch. The same records, numbers and codec make the same bytes."""
    base = records[0].timestamp
    parts: list[bytes] = []
    for delta, (timestamp, key, value, headers) in enumerate(records):
        record = b"".join(
            (
                b"\0",
                varint(timestamp - base),
                varint(delta),
                _sized(key),
                _sized(value),
                varint(len(headers)),
                *(_sized(name.encode()) + _sized(content) for name, content in headers),
            )
        )
        parts += (varint(len(record)), record)

    return seal(
        deflate(b"".join(parts), codec),
        len(records),
        base_timestamp=base,
        timestamp_max=max(record.timestamp for record in records),
        codec=attributes | codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )


def encode_batch(
    pairs: Iterable[tuple[bytes | None, bytes | None]], *, timestamp: int
) -> bytearray:
    """A batch of (key, value) pairs, all of one time and of no producer; can be stamped."""
    return bytearray(build_batch([NewRecord(timestamp, key, value) for key, value in pairs]))


def build_marker(marker: "Marker", *, timestamp: int) -> bytearray:
    """The control batch that ends a transaction in a partition; can be stamped."""
    key = _MARKER_KEY.pack(0, int(marker.commit))
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch, marker.number)
    return bytearray(
        build_batch(
            [NewRecord(timestamp, key, value)],
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            attributes=TRANSACTIONAL | CONTROL,
        )
    )


def read_marker(batch: Buffer, header: BatchHeader) -> Marker | None:
    """What a control batch says of a transaction; None for any other batch."""
    if not header.attributes & CONTROL:
        return None
    data = bytes(memoryview(batch)[HEADER_BYTES:])
    at = read_varint(data, 0)[1] + 1
    at = read_varint(data, read_varint(data, at)[1])[1]
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    if key is None or value is None or len(value) != _MARKER_VALUE.size:
        raise InvalidBatch("a control batch that ends no transaction")
    _, coordinator_epoch, number = _MARKER_VALUE.unpack(value)
    commit = bool(_MARKER_KEY.unpack(key)[1])
    return Marker(header.producer_id, header.producer_epoch, commit, coordinator_epoch, number)


def decode_batch(batch: Buffer) -> Iterator[StoredRecord]:
    """The records of a batch, none of a control batch. Raises `InvalidBatch` if malformed."""
    header = read_header(batch)
    if header.attributes & CONTROL:
        return
    data = bytes(inflate(memoryview(batch)[HEADER_BYTES:], header.attributes & CODEC_MASK))
    stamped = header.attributes & APPEND_TIME
    at = 0

    for _ in range(header.record_count):
        length, at = read_varint(data, at)
        end = at + length
        if length < 0 or end > len(data):
            raise InvalidBatch(f"a record of {length} bytes at byte {at} of {len(data)}")
        timestamp_delta, at = read_varint(data, at + 1)
        offset_delta, at = read_varint(data, at)
        key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)

        timestamp = header.timestamp_max if stamped else header.base_timestamp + timestamp_delta
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise InvalidBatch(f"a record {offset_delta} behind the first of {header.record_count}")
        if not -(2**63) <= timestamp < 2**63:
            raise InvalidBatch(f"a record has the timestamp {timestamp}")
        yield StoredRecord(header.base_offset + offset_delta, timestamp, key, value, data[at:end])
        at = end


def read_headers(raw: bytes) -> list[tuple[str, bytes | None]]:
    """The headers of a record; a name that is not UTF-8 is made so. Raises `InvalidBatch`."""
    found = []
    count, at = read_varint(raw, 0)
    for _ in range(count):
        name, at = _read_bytes(raw, at)
        value, at = _read_bytes(raw, at)
        found.append(((name or b"").decode(errors="replace"), value))
    return found


def open_records(batch: Buffer, header: BatchHeader) -> Iterator[OpenRecord]:
    """The records of a batch that was checked, with their headers. Raises `InvalidBatch`, also for
    the name of a header that is not UTF-8: it could not be written again.

    Records in a row that have the same headers share one list of them, which is read once."""
    data = bytes(inflate(memoryview(batch)[HEADER_BYTES:], header.attributes & CODEC_MASK))
    at = 0
    raw_headers: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header.record_count):
        start = at
        length, at = read_varint(data, at)
        end = at + length
        _, at = read_varint(data, at + 1)
        _, at = read_varint(data, at)
        key, at = _read_bytes(data, at)
        value, at = _read_bytes(data, at)

        if data[at:end] != raw_headers:
            raw_headers = data[at:end]
            headers = read_headers(raw_headers)
            # ASCII is UTF-8.
            if not raw_headers.isascii() and any(
                "\N{REPLACEMENT CHARACTER}" in n for n, _ in headers
            ):
                raise InvalidBatch("the name of a header is not UTF-8")
        yield OpenRecord(key, value, headers, data[start:end])
        at = end


def _long_varint(value: int) -> bytes:
    """Zigzag, seven bits a byte."""
    value = (value << 1) ^ (value >> 63)
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


#: Nearly all numbers in a record are lengths and deltas of this size.
_SHORT = [_long_varint(value) for value in range(4096)]


def varint(value: int) -> bytes:
    """A number as records hold it: zigzag, seven bits a byte."""
    return _SHORT[value] if 0 <= value < 4096 else _long_varint(value)


def _sized(value: bytes | None) -> bytes:
    return b"\x01" if value is None else varint(len(value)) + value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number as records hold it, and where it ends. Raises `InvalidBatch` if it is cut off."""
    # Nearly all of them have one byte.
    if at < len(data) and (byte := data[at]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise InvalidBatch(f"the number at byte {at} has no end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise InvalidBatch(f"the number in front of byte {at} has more than 64 bits")
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    if at + length > len(data):
        raise InvalidBatch(f"{length} bytes at byte {at} of {len(data)}")
    return data[at : at + length], at + length
