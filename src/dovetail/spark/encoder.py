"""Arrow columns to record batches: from the rows of a sink to the body of a Produce request.

It loops over batches, never over rows: `records` writes the records, C libraries compress them.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from crc32c import crc32c

from dovetail.buffers import Buffer
from dovetail.compression import deflate
from dovetail.kafka.client.producer import EncodedBatch
from dovetail.record_batch import SEQUENCE_END, seal
from dovetail.spark import records
from dovetail.spark._plain_records import Column, HeaderColumn


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of the rows to write, as buffers; `batch` keeps them alive."""

    batch: pa.RecordBatch
    keys: Column | None
    values: Column | None
    headers: HeaderColumn | None
    times: Buffer | None

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Rows":
        """From a batch with the column `value` and optionally `key`, `headers`, `timestamp`."""
        names = batch.schema.names
        times = None
        if "timestamp" in names:
            stamps = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
            if stamps.null_count == len(stamps):
                stamps = None
            elif stamps.null_count:
                stamps = stamps.fill_null(time.time_ns() // 1000)
            if stamps is not None:
                times = memoryview(stamps.buffers()[1])[stamps.offset * 8 :]
        return cls(
            batch,
            _column(batch.column("key")) if "key" in names else None,
            _column(batch.column("value")),
            _headers(batch.column("headers")) if "headers" in names else None,
            times,
        )


def encode_batches(
    rows: Rows,
    chosen: Buffer,
    *,
    codec: int,
    level: int | None = None,
    bytes_max: int,
    now_ms: int,
    producer_id: int,
    producer_epoch: int,
    sequence: int,
) -> Iterator[EncodedBatch]:
    """Batches of the rows named by `chosen` (32 bits each), each of up to `bytes_max` bytes.

    A row that is larger makes a batch of its own; the broker judges it.
    """
    start, count_all = 0, len(memoryview(chosen).cast("B")) // 4
    while start < count_all:
        body, count, base_ms, ms_max = records.encode(
            rows.keys, rows.values, rows.headers, rows.times, now_ms, chosen, start, bytes_max
        )
        body = deflate(body, codec, level)
        data = seal(
            body,
            count,
            base_timestamp=base_ms,
            timestamp_max=ms_max,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence % SEQUENCE_END,
        )
        yield EncodedBatch(data, sequence, count, crc32c(body))
        start += count
        sequence += count


def _column(given: pa.Array) -> Column:
    array = given if given.type == pa.binary() else given.cast(pa.binary())
    valid, offsets, data = array.buffers()
    # An array of nulls alone may have no data.
    return offsets, data if data is not None else b"", valid, array.offset


def _headers(given: pa.Array) -> HeaderColumn:
    if given.null_count:
        # A null list may point anywhere.
        given = pa.array([pairs or [] for pairs in given.to_pylist()], given.type)
    pairs = given.values
    return (
        given.buffers()[1],
        given.offset,
        _column(pairs.field(0)),
        _column(pairs.field(1)),
    )
