"""`write` and `writeStream` of `format("dovetail")`.

Columns: `value`, and if wanted `key`, `topic` (unless the option `topic` holds for all),
`partition` (else chosen by the key as Kafka's clients do), `headers`, `timestamp`, `id`. Strings
and bytes are taken for keys and values.

A stream writes each row exactly once whatever is run again (`identity`), by position or, with the
column `id`, by id. A batch job does so too against retries of its tasks; a job that is submitted
again is another job. A row is visible as soon as it is stored: the broker has no transactions, and
a reader sees the rows of a micro-batch before it is complete.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from dovetail.errors import InvalidInput
from dovetail.kafka.client.client import Partition, client_of
from dovetail.spark.identity import group_of, marks_after
from dovetail.spark.options import WriteOptions
from dovetail.spark.writing import TaskWriter

#: Local properties that Spark sets for the tasks of a micro-batch.
_BATCH_PROPERTY = "streaming.sql.batchId"
_QUERY_PROPERTY = "sql.streaming.queryId"

_TEXT = (StringType, BinaryType)
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_COLUMNS: Mapping[str, tuple[type[DataType], ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "partition": _WHOLE,
    "headers": (ArrayType,),
    "timestamp": (TimestampType,),
    "id": _TEXT,
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task wrote: the offset behind its last row in each partition."""

    query: str
    ends: dict[Partition, int] = field(default_factory=dict)


class TopicWriter(DataSourceArrowWriter):
    """Writes a table once."""

    def __init__(self, options: WriteOptions, *, by_id: bool) -> None:
        self._options = options
        self._by_id = by_id
        #: Made on the driver: all attempts of all tasks of this job have the same.
        self._job = uuid.uuid4().hex

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "TopicWriter":
        """Raises `InvalidInput`."""
        if overwrite:
            raise InvalidInput("a topic is appended to, never overwritten; use mode('append')")
        options = WriteOptions.of(given)
        return cls(options, by_id=check_columns(schema, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task().partitionId()
        return _write(self._options, self._job, 0, task, by_id=self._by_id, batches=iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches, each of them once."""

    def __init__(self, options: WriteOptions, *, by_id: bool) -> None:
        self._options = options
        self._by_id = by_id

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType) -> "TopicStreamWriter":
        """Raises `InvalidInput`."""
        options = WriteOptions.of(given)
        return cls(options, by_id=check_columns(schema, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query = task.getLocalProperty(_QUERY_PROPERTY)
        batch = task.getLocalProperty(_BATCH_PROPERTY)
        if query is None or batch is None:
            raise InvalidInput(f"this is no task of a stream: query {query!r}, batch {batch!r}")
        return _write(
            self._options,
            query,
            int(batch),
            task.partitionId(),
            by_id=self._by_id,
            batches=iterator,
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Notes where the micro-batch ended: whoever reads back later begins there.

        Raises `ProducerFenced` if another master was faster.
        """
        written = [message for message in messages if isinstance(message, Written)]
        ends: dict[Partition, int] = {}
        for message in written:
            for partition, end in message.ends.items():
                ends[partition] = max(end, ends.get(partition, 0))
        if ends:
            client, group = client_of(self._options.brokers), group_of(written[0].query)
            stored = client.committed(group)
            marks = marks_after(stored, ends, batch=batchId, term=self._options.term)
            texts = {partition: str(one) for partition, one in marks.items()}
            client.commit(group, ends, metadata=texts)


def check_columns(schema: StructType, options: WriteOptions) -> bool:
    """Whether the rows have ids. Raises `InvalidInput` for columns that cannot be written."""
    names = schema.fieldNames()
    for one in schema.fields:
        allowed = _COLUMNS.get(one.name)
        if allowed is None:
            raise InvalidInput(
                f"column {one.name!r} cannot be written to a topic; there are "
                f"{', '.join(_COLUMNS)}. Put it into the value, e.g. to_json(struct('*'))"
            )
        if not isinstance(one.dataType, allowed):
            kinds = " or ".join(kind.typeName() for kind in allowed)
            raise InvalidInput(
                f"column {one.name!r} is {one.dataType.simpleString()}; it must be {kinds}"
            )
    if "value" not in names:
        raise InvalidInput("no column 'value'; it is what a record holds")
    if options.topic is None and "topic" not in names:
        raise InvalidInput("no topic to write to; set the option 'topic' or add a column 'topic'")
    if options.topic is not None and "topic" in names:
        raise InvalidInput(
            "the option 'topic' and the column 'topic' contradict each other; drop one of them"
        )
    return "id" in names


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InvalidInput("rows are written by Spark's tasks, and this is none")
    return task


def _write(
    options: WriteOptions,
    query: str,
    batch: int,
    task: int,
    *,
    by_id: bool,
    batches: Iterator[pa.RecordBatch],
) -> Written:
    writer = TaskWriter(
        client_of(options.brokers),
        query=query,
        batch=batch,
        task=task,
        topic=options.topic,
        codec=options.codec,
        by_id=by_id,
        term=options.term,
        conflicts_fail=options.conflicts_fail,
    )
    try:
        for one in batches:
            writer.write(one)
        return Written(query, writer.close())
    except BaseException:
        writer.abandon()
        raise
