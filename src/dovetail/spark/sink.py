"""`write` and `writeStream` of `format("dovetail")`.

Columns: `value`, and optionally `key`, `topic` (unless the option `topic` names one for all rows),
`partition` (otherwise chosen by the key, as Kafka's clients do), `headers`, `timestamp` and `id`.
Keys and values are strings or bytes.

A stream writes each row exactly once, whatever is run again (`exactly_once`): by position or, with
the column `id`, by id. A batch write does so too when Spark retries its tasks; a second `save()`
writes the rows again. A row is visible as soon as it is stored, so a reader sees the rows of a
micro-batch before it is complete.
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
from dovetail.spark.exactly_once import Attempt, attempt_of_task, group_of, marks_after
from dovetail.spark.options import WriteOptions
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
        self._run = uuid.uuid4().hex

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "TopicWriter":
        """Raises `InvalidInput`."""
        if overwrite:
            raise InvalidInput("a topic is appended to, never overwritten; use mode('append')")
        options = WriteOptions.of(given)
        return cls(options, by_id=check_columns(schema, options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        if task is None:
            raise InvalidInput("only tasks of Spark write rows, and this process runs none")

        attempt = Attempt(self._run, 0, task.partitionId())
        ends = write_rows(attempt, self._options, iterator, by_id=self._by_id)
        return Written(attempt.query, ends)


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
        attempt = attempt_of_task()
        if attempt is None:
            raise InvalidInput("only tasks of a stream write its rows, and this process runs none")

        ends = write_rows(attempt, self._options, iterator, by_id=self._by_id)
        return Written(attempt.query, ends)

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
