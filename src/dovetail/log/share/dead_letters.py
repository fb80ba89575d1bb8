"""Sends records that a share group has given up to a topic (KIP-1191).

A dead letter gives its record's topic, partition, offset, group and delivery count in headers with
Kafka's names. If the group is set so, it also has the record's key, value and headers. The dead
letter is stored before the record is archived, so a crash in between makes a second one, never
none.
"""

import asyncio
from collections.abc import Iterator, Sequence

from dovetail.buffers import Buffer
from dovetail.errors import InvalidBatch, OffsetOutOfRange
from dovetail.log.partition import Partition
from dovetail.log.reading import read_from_storage
from dovetail.log.share.types import Acquired, Place, ShareSettings
from dovetail.record_batch import (
    NewRecord,
    StoredRecord,
    build_batch,
    decode_batch,
    read_header,
    read_headers,
)

#: Kafka's own prefix of topics for dead letters; a group can have no other, so that nobody writes
#: to a topic by having records of another one rejected.
PREFIX = "dlq."

#: Bytes of the log that are read at once for dead letters.
_READ_BYTES = 1024 * 1024


async def letters(
    place: Place, partition: Partition, dying: Acquired, settings: ShareSettings, *, now_ms: int
) -> list[NewRecord]:
    """The dead letters of these records; none for those that the log does not have any more."""
    made = []
    offset = dying.first
    while offset <= dying.last:
        try:
            batches = await read_from_storage(partition, offset, _READ_BYTES)
        except OffsetOutOfRange:
            if offset >= partition.log_start:
                raise
            offset = partition.log_start
            continue
        # Beside the event loop: a batch may have a million records, of which one is given up.
        for record in await asyncio.to_thread(_within, batches, offset, dying.last):
            made.append(_letter(place, record, dying, settings, now_ms))
        offset = read_header(batches[-1]).offset_end
    return made


def _within(batches: Sequence[Buffer], first: int, last: int) -> list[StoredRecord]:
    return [
        record for batch in batches for record in _records(batch) if first <= record.offset <= last
    ]


def _records(batch: Buffer) -> Iterator[StoredRecord]:
    """The records of a batch; one that cannot be opened is told by its offsets alone."""
    header = read_header(batch)
    try:
        yield from [*decode_batch(batch)]
    except InvalidBatch:
        for offset in range(header.base_offset, header.offset_end):
            yield StoredRecord(offset, header.base_timestamp, None, None)


def _letter(
    place: Place, record: StoredRecord, dying: Acquired, settings: ShareSettings, now_ms: int
) -> NewRecord:
    told = {
        "topic": place.topic,
        "partition": str(place.number),
        "offset": str(record.offset),
        "group": place.group_id,
        "delivery.count": str(dying.deliveries),
        "message": "rejected, or delivered too often",
    }
    headers: list[tuple[str, bytes | None]] = [
        (f"__dlq.errors.{name}", value.encode()) for name, value in told.items()
    ]
    if not settings.dead_letters_whole:
        return NewRecord(now_ms, None, None, headers)
    return NewRecord(
        record.timestamp, record.key, record.value, [*read_headers(record.raw_headers), *headers]
    )


def batches_of(made: list[NewRecord], bytes_max: int) -> Iterator[bytes]:
    """The letters in batches that the topic takes; one that is too large alone goes as it is."""
    chunk: list[NewRecord] = []
    size = 0
    for letter in made:
        length = len(letter.key or b"") + len(letter.value or b"") + 512
        length += sum(len(name) + len(value or b"") + 8 for name, value in letter.headers)
        if chunk and size + length > bytes_max:
            yield build_batch(chunk)
            chunk, size = [], 0
        chunk.append(letter)
        size += length
    if chunk:
        yield build_batch(chunk)
