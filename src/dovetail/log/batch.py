"""The record batch: what the log must know of Kafka's batch format, version 2.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | checksum 4 | attributes 2 |
    last offset delta 4 | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 |
    base sequence 4 | count 4 | records ...

The checksum (CRC-32C) covers everything behind it, so the base offset and the leader epoch can be
set without touching the rest. A batch is stored as it came (K2): only those two fields are
written, and for topics that stamp their own time, the timestamp and the checksum.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from dovetail.errors import BatchTooLarge, ChecksumMismatch, InvalidBatch

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_EPOCH_AT = 12
_MAGIC_AT = 16
_CHECKSUM_AT = 17
_ATTRIBUTES_AT = 21
_TIMESTAMP_MAX_AT = 35
#: The length field counts what lies behind it.
_LENGTH_FROM = 12

CODEC_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

NO_PRODUCER = -1


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
        raise InvalidBatch(f"{len(batch)} bytes are no record batch")
    header = read_header(batch)
    if header.length != len(batch) - _LENGTH_FROM:
        raise InvalidBatch(
            f"batch length {header.length} in {len(batch)} bytes; one batch to a partition is taken"
        )
    if header.checksum != crc32c(batch[_ATTRIBUTES_AT:]):
        raise ChecksumMismatch("the batch fails its checksum: it changed on its way")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidBatch(
            f"{header.record_count} records with last offset delta {header.last_offset_delta}"
        )
    if header.attributes & (TRANSACTIONAL | CONTROL):
        raise InvalidBatch("transactional and control batches are not supported")
    if header.attributes & CODEC_MASK > 4:
        raise InvalidBatch(f"compression codec {header.attributes & CODEC_MASK} is unknown")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidBatch(f"producer {header.producer_id} sends no sequence or epoch")
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
    checksum = crc32c(batch[_ATTRIBUTES_AT:])
    struct.pack_into(">I", batch, _CHECKSUM_AT, checksum)
    return header._replace(attributes=attributes, timestamp_max=now_ms, checksum=checksum)
