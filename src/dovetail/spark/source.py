"""`format("dovetail")`: topics as Spark tables, in batches and as streams.

The *driver* decides which offsets a batch has: it asks the brokers for the ends, cuts them to the
limit, and splits them into ranges (`offsets`, pure). The *workers* read their ranges: fetch after
fetch, each answer one Arrow batch (`fetching`, `decoder`). They keep connections from task to task.

Promise: a range is read completely and in order, or the task fails. If records that a query still
had to read are gone (retention, or a topic that was deleted and created again), the query fails;
with `failOnDataLoss=false` the worker logs it and continues with the next record.

Not here: the position of a query. Spark keeps it in its checkpoint; the group named by
`kafka.group.id` gets the positions too, for lag tools, but nothing reads them back.
"""

import time
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

from dovetail.errors import InvalidInput, OffsetOutOfRange
from dovetail.kafka.client.client import EARLIEST, LATEST, Partition
from dovetail.logging import get_logger
from dovetail.spark.decoder import COLUMNS, COLUMNS_WITH_HEADERS, to_arrow
from dovetail.spark.fetching import fetch
from dovetail.spark.offsets import (
    Bound,
    OffsetRange,
    enough,
    from_document,
    limited,
    to_document,
)
from dovetail.spark.options import ReadOptions
from dovetail.spark.planning import (
    check_ends,
    check_loss,
    offsets_at,
    offsets_of_tasks,
    partitions_of,
    ranges,
    report_loss,
    resolved,
    since,
)
from dovetail.spark.pushdown import EVERYTHING, narrowed
from dovetail.spark.runtime import prepare_worker
from dovetail.spark.tables import (
    check_named,
    created_options,
    options_in,
    overlaid,
    with_options,
)
from dovetail.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

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
        created = created_options(self.options)
        given = self.options if created is None else created
        options = ReadOptions.of(given, of_table=created is not None)
        schema = SPARK_SCHEMA_WITH_HEADERS if options.include_headers else SPARK_SCHEMA
        return schema if created is None else with_options(schema, created)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._reading(schema)
        options.check_batch()
        return TopicReader(options, columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._reading(schema)
        options.check_streaming()
        return TopicStreamReader(options, columns_of(schema))

    def _reading(self, schema: StructType) -> ReadOptions:
        """The table's options, and over them those of the query."""
        of_table = options_in(schema)
        given = overlaid(of_table, self.options)
        check_named(given, to="read")
        return ReadOptions.of(given, of_table=bool(of_table))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from dovetail.spark.sink import TopicWriter

        return TopicWriter.of(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from dovetail.spark.sink import TopicStreamWriter

        return TopicStreamWriter.of(self.options, schema, complete=overwrite)


class RangePartition(InputPartition):
    """A range of offsets for one task."""

    def __init__(self, value: OffsetRange) -> None:
        super().__init__(value)
        self.range = value


class Pushing:
    """`TopicReader.pushFilters`.

    Where the setting `spark.sql.python.filterPushdown.enabled` is off, which it is by itself, Spark
    refuses every query to a reader with a `pushFilters` of its own. A query should work in any
    session; so this says that it is the one of the base class, and is called where it is on.
    """

    #: What Spark compares; 4.0 has none.
    __func__: Any

    def __init__(self, reader: "TopicReader") -> None:
        self._reader = reader
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> list[Any]:
        """Those that Spark still has to evaluate."""
        self._reader.wanted, left = narrowed(filters)
        return left


class TopicReader(DataSourceReader):
    """Reads what a topic has, once."""

    def __init__(self, options: ReadOptions, columns: pa.Schema = COLUMNS) -> None:
        self._options, self._columns = options, columns
        self.wanted = EVERYTHING

    @property
    def pushFilters(self) -> "Pushing":  # noqa: N802
        return Pushing(self)

    def partitions(self) -> list[InputPartition]:
        options = self._options
        known = partitions_of(options)
        start = resolved(options, known, options.starting or Bound(everywhere=EARLIEST), "starting")
        end = resolved(options, known, options.ending or Bound(everywhere=LATEST), "ending")
        latest = offsets_at(options, known, LATEST)
        check_loss(options, start, latest)
        check_ends(end, latest)

        start, end = self.wanted.within(start, end)
        if self.wanted.since_ms is not None:
            start = since(options, start, end, self.wanted.since_ms)
        most = offsets_of_tasks(options, start, end)
        return [RangePartition(one) for one in ranges(options, start, end, most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, self._columns)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream; lives on the driver as long as its query, and on workers for one range.

    Spark 4.0 and 4.1 ask `latestOffset` without saying where the query is: a micro-batch then has
    all that is there, and what is gone is found when its tasks are planned.
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema = COLUMNS) -> None:
        self._options, self._columns = options, columns
        self._latest: dict[Partition, int] = {}
        #: Whether Spark says where the query is.
        self._told = True
        #: With AvailableNow: the ends at the start; the stream stops there.
        self._target: dict[Partition, int] | None = None
        #: When it last read something; None: not yet.
        self._read_at_s: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        bound = self._options.starting or Bound(everywhere=LATEST)
        known = partitions_of(self._options)
        return to_document(resolved(self._options, known, bound, "starting"))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = offsets_at(self._options, partitions_of(self._options), LATEST)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        options = self._options
        if self._target is None:
            self._latest = offsets_at(options, partitions_of(options), LATEST)
        else:
            self._latest = dict(self._target)
        if start is None:
            if self._told and (options.rows_max or options.rows_min):
                _log.warning("maxOffsetsPerTrigger and minOffsetsPerTrigger need Spark 4.2")
            self._told = False
            return to_document(self._latest)
        begin = self._begin(from_document(start), self._latest)
        check_loss(options, begin, self._latest)

        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends = limited(begin, self._latest, rows_max)
        if not self._reads_now(sum(ends.values()) - sum(begin[key] for key in ends)):
            return start
        # A partition that is gone keeps its position: it may come back.
        return to_document({**from_document(start), **ends})

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return to_document(self._latest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ends = from_document(end)
        begin = self._begin(from_document(start), ends)
        if not self._told:
            check_loss(self._options, begin, ends)
        return [RangePartition(one) for one in ranges(self._options, begin, ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.group is not None:
            self._options.client().commit(self._options.group, from_document(end))

    def _reads_now(self, waiting: int) -> bool:
        """Whether there is enough, or it has waited long enough; AvailableNow waits for nothing."""
        options, now_s = self._options, time.monotonic()
        waited_ms = None if self._read_at_s is None else int((now_s - self._read_at_s) * 1000)
        reads = self._target is not None or enough(
            waiting,
            rows_min=options.rows_min,
            waited_ms=waited_ms,
            delay_ms_max=options.delay_ms_max,
        )
        if reads and waiting:
            self._read_at_s = now_s
        return reads

    def _begin(
        self, start: dict[Partition, int], ends: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """Where each partition of `ends` is read from: new ones from their first record."""
        new = [partition for partition in ends if partition not in start]
        if new:
            start = {**start, **offsets_at(self._options, new, EARLIEST)}
        return start


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

    prepare_worker()
    wanted = partition.range
    place = (wanted.topic, wanted.partition)
    client = options.client()
    position = wanted.start
    while position < wanted.end:
        try:
            committed, sizes = options.committed, options.sizes
            answers = fetch(client, place, position, wanted.end, committed=committed, sizes=sizes)
            for fetched in answers:
                bounds = {"offset_min": position, "offset_end": wanted.end}
                batch = to_arrow(fetched.batches, place, columns=columns, **bounds)
                position = fetched.batches[-1].offset_end
                if batch.num_rows:
                    yield batch
        except OffsetOutOfRange as error:
            report_loss(options, [str(error)])
            first = client.offsets({place: EARLIEST})[place]
            position = wanted.end if first <= position else first
