"""`format("dovetail-team")`: how a team's query meets Spark, without passing jobs through it.

    source ─ ranges of offsets ─► mapInArrow(TeamRun) ─ ends of what was written ─► sink

Spark decides which records belong to which micro-batch and task, and runs tasks again; that is all
a team needs of it. The task that works on the records fetches them and writes the rows: on the way
through the JVM, from columns to rows and back, a job costs more than twenty microseconds of
processor time, twice what many functions take.

The argument for exactly one outcome stays the same: the sink's own writer (`writing`) runs in the
same task, with the same identity, and the driver commits positions as the sink does, when all
tasks are done. `exactly_once` and `task` have the argument.
"""

import gc
from collections.abc import Iterable, Iterator, MutableMapping

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from dovetail.errors import InvalidInput
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS
from dovetail.spark.exactly_once import Attempt, attempt_of_task
from dovetail.spark.offsets import OffsetRange
from dovetail.spark.options import ReadOptions, WriteOptions
from dovetail.spark.sink import TopicStreamWriter, Written
from dovetail.spark.source import RangePartition, TopicStreamReader, read_range
from dovetail.spark.writing import write_rows
from dovetail.teams.task import TeamTask

FORMAT = "dovetail-team"

_RANGES = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
    ]
)
_RANGES_SPARK = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("start", LongType()),
        StructField("end", LongType()),
    ]
)
_ENDS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("end", pa.int64()),
    ]
)
ENDS_SQL = "topic string, partition int, end long"


class TeamTable(DataSource):
    """The input of a team as ranges, and its outputs as ends."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return _RANGES_SPARK

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return RangeReader(ReadOptions.of(self.options))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        return EndsWriter(WriteOptions.of(self.options), by_id=True)


class RangeReader(TopicStreamReader):
    """Plans as the source does, but gives each task its range instead of the records in it."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        _settle()
        if isinstance(partition, RangePartition):
            one = partition.range
            cells = [[one.topic], [one.partition], [one.start], [one.end]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(cell, kind.type) for cell, kind in zip(cells, _RANGES, strict=True)],
                schema=_RANGES,
            )


class EndsWriter(TopicStreamWriter, DataSourceStreamArrowWriter):
    """Commits as the sink does; `TeamRun` has written the rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        _settle()
        ends = {
            (row["topic"], row["partition"]): row["end"]
            for batch in iterator
            for row in batch.to_pylist()
        }
        return Written(_attempt().query, ends)


class TeamRun:
    """What a task does: fetches the records of its range, runs the team, writes the rows."""

    def __init__(self, task: TeamTask, read: ReadOptions, write: WriteOptions) -> None:
        self._task, self._read, self._write = task, read, write

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Ranges in, ends out. For `mapInArrow`."""
        _settle()
        ranges = [OffsetRange(**row) for batch in batches for row in batch.to_pylist()]
        if ranges:
            yield self._run(ranges, _attempt())

    def _run(self, ranges: list[OffsetRange], attempt: Attempt) -> pa.RecordBatch:
        made = self._task(self._records(ranges))
        ends = write_rows(attempt, self._write, made, by_id=True)
        rows = [
            {"topic": topic, "partition": number, "end": end}
            for (topic, number), end in ends.items()
        ]
        return pa.RecordBatch.from_pylist(rows, schema=_ENDS)

    def _records(self, ranges: list[OffsetRange]) -> Iterator[pa.RecordBatch]:
        for one in ranges:
            yield from read_range(self._read, RangePartition(one), COLUMNS_WITH_HEADERS)


_settled = False


def _settle() -> None:
    """Hides what is loaded by now from the garbage collector, once a process.

    Spark's Python workers collect everything after every task; with Arrow and pandas loaded that
    takes 20 to 40 ms, three times in each task of a team.
    """
    global _settled  # noqa: PLW0603 - it is about the process
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()


def _attempt() -> Attempt:
    attempt = attempt_of_task()
    if attempt is None:
        raise InvalidInput("a team runs in tasks of a stream, and this process runs none")
    return attempt
