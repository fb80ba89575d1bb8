"""`format("dovetail")`: topics as Spark tables, in batches and as streams.

The *driver* decides which offsets a batch has: it asks the brokers for the ends, cuts them to the
limit, and splits them into ranges (`offsets`, pure). The *workers* read their ranges: fetch after
fetch, each answer one Arrow batch (`fetching`, `decoder`). They keep connections from task to task.

Promise: a range is read completely and in order, or the task fails. If records that a query still
had to read are gone (retention, or a topic that was deleted and created again), the query fails;
with `failOnDataLoss=false` the worker logs it and continues with the next record.

Not here: the position of a query. Spark keeps it in its checkpoint; the group named by
`kafka.group.id` gets the positions too, for lag tools, and nobody reads them back.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dovetail.errors import Damaged, InvalidInput, OffsetOutOfRange, TopicUnknown
from dovetail.kafka.client.client import EARLIEST, LATEST, Partition, client_of
from dovetail.logging import get_logger
from dovetail.spark.decoder import COLUMNS, COLUMNS_WITH_HEADERS, to_arrow
from dovetail.spark.fetching import fetch
from dovetail.spark.offsets import (
    OffsetRange,
    from_document,
    limited,
    lost,
    split,
    to_document,
)
from dovetail.spark.options import Bound, ReadOptions

_log = get_logger("spark")

SPARK_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
SPARK_SCHEMA_WITH_HEADERS = StructType(
    [*SPARK_SCHEMA.fields, StructField("headers", ArrayType(_HEADER))]
)


class DovetailSource(DataSource):
    """Topics of Dovetail or Kafka, to read from and to write to."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "dovetail"

    def schema(self) -> StructType:
        options = ReadOptions.of(self.options)
        return SPARK_SCHEMA_WITH_HEADERS if options.include_headers else SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options)
        options.check_batch()
        return TopicReader(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = ReadOptions.of(self.options)
        options.check_streaming()
        return TopicStreamReader(options, columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from dovetail.spark.sink import TopicWriter

        return TopicWriter.of(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from dovetail.spark.sink import TopicStreamWriter

        return TopicStreamWriter.of(self.options, schema)


class RangePartition(InputPartition):
    """A range of offsets for one task."""

    def __init__(self, value: OffsetRange) -> None:
        super().__init__(value)
        self.range = value


class TopicReader(DataSourceReader):
    """Reads what a topic has, once."""

    def __init__(self, options: ReadOptions, columns: pa.Schema) -> None:
        self._options, self._columns = options, columns

    def partitions(self) -> list[InputPartition]:
        options = self._options
        known = partitions_of(options)
        start = resolved(options, known, options.starting or Bound(everywhere=EARLIEST), "starting")
        end = resolved(options, known, options.ending or Bound(everywhere=LATEST), "ending")
        _check_loss(options, start, _offsets(options, known, LATEST))
        return [RangePartition(one) for one in split(start, end, options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, self._columns)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream; lives on the driver as long as its query, and on workers for one range."""

    def __init__(self, options: ReadOptions, columns: pa.Schema = COLUMNS) -> None:
        self._options, self._columns = options, columns
        self._latest: dict[Partition, int] = {}
        #: With AvailableNow: the ends at the start; the stream stops there.
        self._target: dict[Partition, int] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        bound = self._options.starting or Bound(everywhere=LATEST)
        known = partitions_of(self._options)
        return to_document(resolved(self._options, known, bound, "starting"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = _offsets(self._options, partitions_of(self._options), LATEST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        options = self._options
        if self._target is None:
            self._latest = _offsets(options, partitions_of(options), LATEST)
        else:
            self._latest = dict(self._target)
        begin = self._begin(from_document(start), self._latest)
        _check_loss(options, begin, self._latest)

        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = limited(begin, self._latest, rows_max)
        # A partition that is gone keeps its position: it may come back.
        return to_document({**from_document(start), **ends})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_document(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ends = from_document(end)
        begin = self._begin(from_document(start), ends)
        ranges = split(begin, ends, self._options.partitions_min)
        return [RangePartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.group is not None:
            client_of(self._options.brokers).commit(self._options.group, from_document(end))

    def _begin(
        self, start: dict[Partition, int], ends: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Where each partition of `ends` is read from: new ones from their first record."""
        new = [partition for partition in ends if partition not in start]
        if new:
            start = {**start, **_offsets(self._options, new, EARLIEST)}
        return start


def partitions_of(options: ReadOptions) -> list[Partition]:
    """The partitions that the options name now. Raises `TopicUnknown`."""
    client = client_of(options.brokers)
    if options.assigned:
        known = client.partitions({topic for topic, _ in options.assigned})
        for topic, number in options.assigned:
            if number not in known[topic]:
                raise TopicUnknown(
                    f"topic {topic!r} has no partition {number}; it has {len(known[topic])}"
                )
        return sorted(set(options.assigned))

    if options.pattern is not None:
        found = client.partitions(None)
        matching = {name: n for name, n in found.items() if re.fullmatch(options.pattern, name)}
        return [(topic, number) for topic in sorted(matching) for number in matching[topic]]
    found = client.partitions(options.topics)
    return [(topic, number) for topic in sorted(found) for number in found[topic]]


def resolved(
    options: ReadOptions, partitions: list[Partition], bound: Bound, role: str
) -> dict[Partition, int]:
    """The offsets of a bound. Raises `InvalidInput`."""
    if bound.each and set(bound.each) != set(partitions):
        missing = sorted(set(partitions) - set(bound.each))
        surplus = sorted(set(bound.each) - set(partitions))
        raise InvalidInput(
            f"the {role} offsets must name exactly the partitions that are read: "
            f"missing {_names(missing)}, unknown {_names(surplus)}"
        )

    asked = dict(bound.each) or dict.fromkeys(partitions, bound.everywhere or 0)
    if not bound.by_time:
        named = {key: value for key, value in asked.items() if value < 0}
        return (
            asked | client_of(options.brokers).offsets(named, committed=options.committed)
            if named
            else asked
        )

    found = client_of(options.brokers).offsets(asked, committed=options.committed)
    late = sorted(key for key, offset in found.items() if offset < 0)
    if late and role == "starting" and options.time_without_record == "error":
        raise InvalidInput(
            f"{_names(late)}: no record at or after {asked[late[0]]}; begin earlier, or set "
            "startingOffsetsByTimestampStrategy to latest"
        )
    return found | _offsets(options, late, LATEST) if late else found


def _offsets(options: ReadOptions, partitions: list[Partition], at: int) -> dict[Partition, int]:
    wanted = dict.fromkeys(partitions, at)
    return client_of(options.brokers).offsets(wanted, committed=options.committed)


def _check_loss(
    options: ReadOptions, start: Mapping[Partition, int], latest: Mapping[Partition, int]
) -> None:
    """Raises `Damaged` if records that were to be read are gone, unless that is allowed."""
    first = _offsets(options, list(latest), EARLIEST)
    _report(options, lost(start, first, latest))


def _report(options: ReadOptions, reasons: list[str]) -> None:
    if not reasons:
        return
    text = (
        f"records that were to be read are gone: {'; '.join(reasons)}. Retention removed them, or "
        "the topic was deleted and created again"
    )
    if options.fail_on_data_loss:
        raise Damaged(f"{text}. To continue without them, set failOnDataLoss to false")
    _log.warning("records are gone", reasons="; ".join(reasons))


def columns_of(schema: StructType) -> pa.Schema:
    """The columns that a query reads: those of `schema`. Raises `InvalidInput`."""
    known = {one.name: one for one in SPARK_SCHEMA_WITH_HEADERS.fields}
    for one in schema.fields:
        if one.name not in known or one.dataType != known[one.name].dataType:
            names = ", ".join(
                f"{name} {had.dataType.simpleString()}" for name, had in known.items()
            )
            raise InvalidInput(
                f"a topic has no column {one.name!r} of type {one.dataType.simpleString()}; a "
                f"schema names some of: {names}"
            )
    return pa.schema([COLUMNS_WITH_HEADERS.field(name) for name in schema.names])


def read_range(
    options: ReadOptions, partition: InputPartition, columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The records of a range, on a worker."""
    if not isinstance(partition, RangePartition):
        # Spark's placeholder for "no partitions".
        return

    wanted = partition.range
    place = (wanted.topic, wanted.partition)
    client = client_of(options.brokers)
    position = wanted.start
    while position < wanted.end:
        try:
            committed = options.committed
            for fetched in fetch(client, place, position, wanted.end, committed=committed):
                batch = to_arrow(
                    fetched.batches,
                    place,
                    offset_min=position,
                    offset_end=wanted.end,
                    columns=columns,
                )
                position = fetched.batches[-1].offset_end
                if batch.num_rows:
                    yield batch
        except OffsetOutOfRange as error:
            _report(options, [str(error)])
            first = client.offsets({place: EARLIEST})[place]
            position = wanted.end if first <= position else first


def _names(partitions: list[Partition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions) or "none"
