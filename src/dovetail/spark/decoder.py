"""Record batches to Arrow: turns the answer of a fetch into one `pyarrow.RecordBatch`.

It loops over batches, never over messages: it reads headers and compares checksums, C libraries
decompress the records, and `records` splits them. The resulting buffers are the columns; nothing is
copied once more.

Columns and types are those of Spark's Kafka source. Offsets may have gaps: compaction leaves them,
and control records of transactions are skipped. A batch that the end of an answer cuts off, which
Kafka allows, is left for the next fetch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from dovetail.buffers import Buffer
from dovetail.compression import inflate
from dovetail.errors import ChecksumMismatch, InvalidBatch
from dovetail.kafka.client.client import Partition, name_of
from dovetail.record_batch import (
    APPEND_TIME,
    CHECKED_FROM,
    CODEC_MASK,
    CONTROL,
    HEADER_BYTES,
    read_header,
)
from dovetail.spark import records
from dovetail.spark._plain_records import Decoded, Headers, Section, Strings

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
#: As Spark makes it of `SPARK_SCHEMA` in `source`; a batch must have exactly this.
COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
)
COLUMNS_WITH_HEADERS = COLUMNS.append(pa.field("headers", HEADERS_TYPE))
#: Behind every offset.
OFFSET_END = 1 << 62


class BatchView(NamedTuple):
    """A batch where it lies: its header's fields, and its records, still compressed."""

    base_offset: int
    offset_end: int
    attributes: int
    base_ms: int
    ms_max: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    records: memoryview

    @property
    def control(self) -> bool:
        """Whether it holds marks of transactions and no messages."""
        return bool(self.attributes & CONTROL)

    def records_checksum(self) -> int:
        """Of the records alone: a broker that sets the time rewrites the header."""
        return crc32c(self.records)

    def section(self) -> Section:
        """The records, inflated. Raises `InvalidBatch`."""
        stamped = bool(self.attributes & APPEND_TIME)
        plain = inflate(self.records, self.attributes & CODEC_MASK)
        return plain, self.record_count, self.base_offset, self.base_ms, stamped, self.ms_max


def batches_in(data: Buffer, *, where: str) -> Iterator[BatchView]:
    """The whole batches in what a fetch answered. Raises `InvalidBatch`."""
    view, at = memoryview(data), 0
    while at + HEADER_BYTES <= len(view):
        header = read_header(view[at:])
        what = f"{where}: the batch at offset {header.base_offset}"
        if header.magic != 2:
            raise InvalidBatch(f"{what} has record format {header.magic}, not 2")
        if header.size < HEADER_BYTES:
            raise InvalidBatch(f"{what} has length {header.length}")

        end = at + header.size
        if end > len(view):
            return
        if crc32c(view[at + CHECKED_FROM : end]) != header.checksum:
            raise ChecksumMismatch(f"{what} changed on its way: its checksum does not match")
        yield BatchView(
            header.base_offset,
            header.offset_end,
            header.attributes,
            *header[7:],
            view[at + HEADER_BYTES : end],
        )
        at = end


def decoded(
    batches: list[BatchView],
    partition: Partition,
    *,
    offset_min: int,
    offset_end: int,
    with_headers: bool,
) -> Decoded:
    """The records in range as the buffers of columns, control records left out. Raises
    `InvalidBatch`."""
    wanted = [batch for batch in batches if not batch.control]
    with refused(wanted, partition, offset_min):
        sections = [batch.section() for batch in wanted]
        return records.decode(sections, offset_min, offset_end, with_headers)


@contextmanager
def refused(wanted: list[BatchView], partition: Partition, offset_min: int) -> Iterator[None]:
    """Names the place of malformed records. Raises `InvalidBatch`."""
    try:
        yield
    except ValueError as error:
        first = wanted[0].base_offset if wanted else offset_min
        raise InvalidBatch(
            f"{name_of(partition)}: records from offset {first} on are malformed: {error}"
        ) from error


def to_arrow(
    batches: list[BatchView],
    partition: Partition,
    *,
    offset_min: int = 0,
    offset_end: int = OFFSET_END,
    columns: pa.Schema = COLUMNS,
) -> pa.RecordBatch:
    """The records with `offset_min` <= offset < `offset_end`, in order. Raises `InvalidBatch`.

    `columns` are all of `COLUMNS_WITH_HEADERS` or some; only these are made.
    """
    topic, number = partition
    rows, offsets, times, keys, values, headers = decoded(
        batches,
        partition,
        offset_min=offset_min,
        offset_end=offset_end,
        with_headers="headers" in columns.names,
    )
    makers: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: _strings(keys, rows, pa.binary()),
        "value": lambda: _strings(values, rows, pa.binary()),
        "topic": lambda: pa.repeat(topic, rows),
        "partition": lambda: pa.repeat(pa.scalar(number, pa.int32()), rows),
        "offset": lambda: pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)]),
        "timestamp": lambda: pa.Array.from_buffers(
            COLUMNS.field("timestamp").type, rows, [None, pa.py_buffer(times)]
        ),
        "timestampType": lambda: _timestamp_types(
            [batch for batch in batches if not batch.control], offset_min, offset_end, rows
        ),
        "headers": lambda: _headers(headers, rows),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in columns.names], schema=columns)


def times_ms(batch: pa.RecordBatch) -> list[int]:
    """The times of the records in milliseconds; a client may have given any number."""
    return [at_us // 1000 for at_us in batch.column("timestamp").cast(pa.int64()).to_pylist()]


def _headers(given: Headers | None, rows: int) -> pa.Array:
    assert given is not None, "they were asked for"
    ends, names, contents = given
    count = len(ends) and memoryview(ends).cast("i")[-1]
    pairs = pa.StructArray.from_arrays(
        [_texts(_strings(names, count, pa.binary())), _strings(contents, count, pa.binary())],
        fields=list(HEADERS_TYPE.value_type),
    )
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [None, pa.py_buffer(ends)], children=[pairs])


def _texts(names: pa.Array) -> pa.Array:
    """Names of headers as text. Kafka does not look at them: what is not UTF-8 is replaced, or
    nobody could read past its record."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())


def _timestamp_types(
    batches: list[BatchView], offset_min: int, offset_end: int, rows: int
) -> pa.Array:
    """0 where the producer gave the time, 1 where the broker did; a topic rarely mixes them."""
    kinds = {bool(batch.attributes & APPEND_TIME) for batch in batches}
    if len(kinds) < 2:
        return pa.repeat(pa.scalar(int(kinds == {True}), pa.int32()), rows)
    parts = []
    for batch in batches:
        inside = records.decode([batch.section()], offset_min, offset_end, False)[0]
        kind = int(bool(batch.attributes & APPEND_TIME))
        parts.append(pa.repeat(pa.scalar(kind, pa.int32()), inside))
    return pa.concat_arrays(parts)


def _strings(column: Strings, rows: int, kind: pa.DataType) -> pa.Array:
    offsets, data, valid = column
    bits = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(offsets), pa.py_buffer(data)])
