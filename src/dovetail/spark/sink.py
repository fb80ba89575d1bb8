"""`write` and `writeStream` of `format("dovetail")`.

Columns: `value`, and optionally `key`, `topic` (unless the option `topic` names one for all rows),
`partition` (otherwise, and where it is null, chosen by the key, as Kafka's clients do), `headers`,
`timestamp` and `id`. Keys and values are strings or bytes. Other columns are left out, as Spark's
Kafka sink leaves them out.

A stream writes each row exactly once, whatever is run again (`exactly_once`): by position or, with
the column `id`, by id. A batch write does so too when Spark retries its tasks; a second `save()`
writes the rows again, unless `txnAppId` and `txnVersion` say that it is the same write. A row is
visible as soon as it is stored, so a reader sees the rows of a micro-batch before it is complete.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from dovetail.errors import InvalidInput
from dovetail.kafka.client.client import Partition
from dovetail.spark.exactly_once import Attempt, attempt_of_task, group_of, marks_after
from dovetail.spark.options import WriteOptions
from dovetail.spark.tables import check_named, names_brokers, options_in, overlaid
from dovetail.spark.versions import StreamArrowWriter
from dovetail.spark.writing import write_rows

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
        #: Made on the driver: all attempts of all tasks of this write have the same.
        self._run, self._version = options.transaction or (uuid.uuid4().hex, 0)

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "TopicWriter":
        """Raises `InvalidInput`."""
        if overwrite:
            raise InvalidInput("a topic is appended to, never overwritten; use mode('append')")
        of_table = {} if names_brokers(given) else options_in(schema)
        given = overlaid(of_table, given)
        check_named(given, to="write")
        options = WriteOptions.of(given, of_table=bool(of_table))
        return cls(options, by_id=check_columns(schema, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        if task is None:
            raise InvalidInput("only tasks of Spark write rows, and this process runs none")

        attempt = Attempt(self._run, self._version, task.partitionId())
        ends = write_rows(attempt, self._options, iterator, by_id=self._by_id)
        return Written(attempt.query, ends)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Notes where the write ended, if it can come again. Raises `ProducerFenced`."""
        if self._options.transaction is not None:
            note_ends(self._options, messages, self._version)


class TopicStreamWriter(StreamArrowWriter):
    """Writes micro-batches, each of them once."""

    def __init__(self, options: WriteOptions, *, by_id: bool) -> None:
        self._options = options
        self._by_id = by_id

    @classmethod
    def of(
        cls, given: Mapping[str, str], schema: StructType, *, complete: bool
    ) -> "TopicStreamWriter":
        """`complete` is an output mode: all rows of a result in every micro-batch.

        Raises `InvalidInput`.
        """
        check_named(given, to="write")
        options = WriteOptions.of(given)
        if options.transaction is not None:
            raise InvalidInput("txnAppId and txnVersion name a batch; Spark names micro-batches")
        by_id = check_columns(schema, options)
        if complete and not by_id:
            raise InvalidInput(
                "the output mode complete writes rows of an aggregation, which come in another "
                "order when they are computed again; add a column 'id' that names the row"
            )
        return cls(options, by_id=by_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        attempt = attempt_of_task()
        if attempt is None:
            raise InvalidInput("only tasks of a stream write its rows, and this process runs none")

        ends = write_rows(attempt, self._options, iterator, by_id=self._by_id)
        return Written(attempt.query, ends)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Notes where the micro-batch ended: whoever reads back later begins there.

        Raises `ProducerFenced` if another master was faster.
        """
        note_ends(self._options, messages, batchId)


def note_ends(
    options: WriteOptions, messages: list[WriterCommitMessage | None], batch: int
) -> None:
    """Notes where a batch ended, beside its number. Raises `ProducerFenced`."""
    written = [message for message in messages if isinstance(message, Written)]
    ends: dict[Partition, int] = {}
    for message in written:
        for partition, end in message.ends.items():
            ends[partition] = max(end, ends.get(partition, 0))

    if ends:
        client, group = options.client(), group_of(written[0].query)
        stored = client.committed(group)
        marks = marks_after(stored, ends, batch=batch, term=options.term)
        texts = {partition: str(one) for partition, one in marks.items()}
        client.commit(group, ends, metadata=texts)


def check_columns(schema: StructType, options: WriteOptions) -> bool:
    """Whether the rows have ids. Raises `InvalidInput` for columns that cannot be written."""
    names = schema.fieldNames()
    for one in schema.fields:
        allowed = _COLUMNS.get(one.name)
        if allowed is not None and not isinstance(one.dataType, (*allowed, NullType)):
            kinds = " or ".join(kind.typeName() for kind in allowed)
            raise InvalidInput(
                f"column {one.name!r} is {one.dataType.simpleString()}; it must be {kinds}"
            )

    if "value" not in names:
        raise InvalidInput("the rows have no column 'value', which becomes the record's value")
    if options.topic is None and "topic" not in names:
        raise InvalidInput("no topic to write to; set the option 'topic' or add a column 'topic'")
    return "id" in names
