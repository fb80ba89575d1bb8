"""Writes the rows of one task to partitions, numbered so that each is stored once (`exactly_once`).

A `TaskWriter` takes Arrow batches. It chooses the partition of each row, encodes, sends, and waits:
once `write` returns, the rows are stored. Its two kinds, `by position` and `by id`, differ only in
how a row keeps its number across attempts.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.errors import InvalidInput, TopicUnknown, Unavailable, Uncertain
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient, Partition
from dovetail.kafka.client.producer import EncodedBatch, Producer, SequenceTaken, Stored
from dovetail.spark import records
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, HEADERS_TYPE, BatchView, to_arrow
from dovetail.spark.encoder import Rows, encode_batches
from dovetail.spark.exactly_once import (
    ID_HEADER,
    Attempt,
    Mark,
    begin_of,
    check_current,
    group_of,
    identity_of,
)
from dovetail.spark.fetching import fetch
from dovetail.spark.options import WriteOptions
from dovetail.spark.runtime import prepare_worker
from dovetail.spark.tables import check_rows

#: A broker that creates topics by itself has done so within this time; Kafka can be told not to.
CREATE_S_MAX = 10.0

#: Rows without a key stay together so far, then go to the next partition.
RUN_ROWS = 1024

#: A sync takes about so long.
_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """Rows of one Arrow batch that go to one partition; the first has the number `sequence`."""

    rows: Rows
    chosen: memoryview
    sequence: int

    @property
    def count(self) -> int:
        return len(self.chosen) // 4

    def after(self, sequence: int) -> "PartitionRows":
        """What is left when the numbers before `sequence` are taken."""
        skipped = min(max(sequence - self.sequence, 0), self.count)
        return PartitionRows(self.rows, self.chosen[skipped * 4 :], self.sequence + skipped)


class _Patience:
    """How long an attempt stands still for what another one has under way.

    A number is taken as soon as the broker has begun to store it, and can be read back only when
    it is stored: until then nothing helps but waiting.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def wait(self, reason: str, *, progress: bool) -> None:
        """Raises `Uncertain` if nothing has moved for too long."""
        now = time.monotonic()
        if progress:
            self._deadline = now + self._timeout_s
        elif now > self._deadline:
            raise Uncertain(f"{reason}; nothing of it can be read for {self._timeout_s:g} s")
        else:
            time.sleep(_PAUSE_S)


class TaskWriter:
    """Writes the rows of one task of one micro-batch."""

    def __init__(
        self, client: KafkaClient, attempt: Attempt, options: WriteOptions, *, by_id: bool
    ) -> None:
        """Raises `ProducerFenced`."""
        self._client, self._attempt, self._options = client, attempt, options
        self._identity = identity_of(attempt)
        self._by_id = by_id
        self._producer = Producer(client)
        self._partitions: dict[str, int] = {}
        #: The next number of each partition.
        self._next: dict[Partition, int] = {}
        #: Where the last micro-batches ended, as it was when this attempt first asked.
        self._positions: dict[Partition, tuple[int, str]] | None = None
        self._rows_done: dict[str, int] = {}
        #: By position: numbers below this were written by another attempt.
        self._taken: dict[Partition, int] = {}
        #: By id: what other attempts and tasks have written of this micro-batch, with the hashes
        #: of the values.
        self._known: dict[bytes, int] = {}
        self._mine: set[bytes] = set()
        if options.term is not None:
            self._stored()

    def write(self, batch: pa.RecordBatch) -> None:
        """Returns when all rows are stored."""
        if not batch.num_rows:
            return
        if self._options.of_table:
            check_rows(batch)
        for topic, rows in self._by_topic(batch):
            if self._by_id:
                self._write_by_id(topic, rows)
            else:
                self._write_by_position(self._split(topic, rows))

    def close(self) -> dict[Partition, int]:
        """The offsets behind what was written."""
        self._producer.close()
        return dict(self._producer.ends)

    def _write_by_position(self, split: dict[Partition, PartitionRows]) -> None:
        left = {key: rows.after(self._taken.get(key, 0)) for key, rows in split.items()}
        patience = _Patience(self._client.timeout_s)
        while True:
            try:
                self._producer.send_all({key: self._encoded(rows) for key, rows in left.items()})
                break
            except SequenceTaken as error:
                partition = error.partition
                self._read_back([partition])
                taken = self._next[partition]
                patience.wait(str(error), progress=taken > self._taken.get(partition, 0))
                self._taken[partition] = taken
                left = {partition: split[partition].after(taken)}

        for partition, rows in split.items():
            self._next[partition] = rows.sequence + rows.count

    def _write_by_id(self, topic: str, batch: pa.RecordBatch) -> None:
        ids = batch.column("id").cast(pa.binary())
        if ids.null_count:
            raise InvalidInput("a row has no id; the column 'id' must be set in every row")
        listed = ids.to_pylist()
        partitions = [(topic, number) for number in range(self._count(topic))]
        self._read_back([one for one in partitions if one not in self._next])

        patience = _Patience(self._client.timeout_s)
        while split := self._unwritten(topic, batch, listed):
            # One batch to a partition, and no other before it is compared: one that follows might
            # follow another attempt's rows, and hold some of them again (F3c).
            first = {key: next(self._encoded(rows)) for key, rows in split.items()}
            try:
                self._producer.send_all({key: iter([one]) for key, one in first.items()})
                if self._is_as_sent():
                    self._note_written(split, first)
                    continue
                reason = f"writing to {topic!r}: another attempt got the acknowledged offsets"
            except SequenceTaken as error:
                reason = str(error)
            self._producer.forget()
            before = len(self._known)
            self._read_back(partitions)
            patience.wait(reason, progress=len(self._known) > before)

    def _note_written(
        self, split: dict[Partition, PartitionRows], sent: dict[Partition, EncodedBatch]
    ) -> None:
        for partition, encoded in sent.items():
            rows = split[partition]
            self._next[partition] = rows.sequence + encoded.count
            chosen = pa.Array.from_buffers(
                pa.int32(), encoded.count, [None, pa.py_buffer(rows.chosen[: encoded.count * 4])]
            )
            written = rows.rows.batch.column("id").cast(pa.binary()).take(chosen)
            self._mine.update(written.to_pylist())

    def _unwritten(
        self, topic: str, batch: pa.RecordBatch, ids: list[bytes]
    ) -> dict[Partition, PartitionRows]:
        """The rows that nobody has written yet. Raises `Uncertain` for a conflict."""
        known, mine = self._known, self._mine
        if self._options.conflicts_fail and known:
            values = batch.column("value").cast(pa.binary()).to_pylist()
            others = sum(
                1
                for one, value in zip(ids, values, strict=True)
                if one not in mine and one in known and known[one] != hash(value)
            )
            if others:
                raise Uncertain(
                    f"another attempt has stored other values for {others} rows of this "
                    f"micro-batch in {topic!r}; the next run of the task goes on from those"
                )

        first_at: dict[bytes, int] = {}
        for at, one in enumerate(ids):
            first_at.setdefault(one, at)
        fresh = [
            first_at[one] == at and one not in known and one not in mine
            for at, one in enumerate(ids)
        ]
        wanted = batch if all(fresh) else batch.filter(pa.array(fresh))
        return self._split(topic, _with_id_header(wanted)) if wanted.num_rows else {}

    def _is_as_sent(self) -> bool:
        """Whether what was acknowledged lies there as it was sent, and no other attempt's rows."""
        sent: dict[Partition, dict[int, Stored]] = {}
        for one in self._producer.stored:
            sent.setdefault(one.partition, {})[one.base_offset] = one
        for partition, batches in sent.items():
            start = min(batches)
            if start < 0:
                # Kafka does not know any more where an old batch lies that it stored before.
                return False
            end = max(one.base_offset + one.count for one in batches.values())
            for fetched in fetch(self._client, partition, start, end):
                for view in fetched.batches:
                    expected = batches.pop(view.base_offset, None)
                    if expected and expected.records_checksum != view.records_checksum():
                        return False
            if batches:
                return False
        return True

    def _encoded(self, rows: PartitionRows) -> Iterator[EncodedBatch]:
        return encode_batches(
            rows.rows,
            rows.chosen,
            codec=self._options.codec,
            level=self._options.level,
            bytes_max=self._options.batch_bytes_max,
            now_ms=time.time_ns() // 1_000_000,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            sequence=rows.sequence,
        )

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._options.topic is not None:
            yield self._options.topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidInput(
                "a row has no topic; set the option 'topic' or the column in all rows"
            )
        for topic in pc.unique(topics).to_pylist():
            yield topic, batch.filter(pc.equal(topics, topic))

    def _split(self, topic: str, batch: pa.RecordBatch) -> dict[Partition, PartitionRows]:
        rows, count = Rows.of(batch), self._count(topic)
        # By the row's number in its topic: a later attempt may get other Arrow batches.
        done = self._rows_done.get(topic, 0)
        first = done + (self._identity.producer_id & 0xFFFFF) * RUN_ROWS
        keys = None if self._options.ignore_keys else rows.keys
        assigned = records.assign(keys, batch.num_rows, count, first, RUN_ROWS)
        self._rows_done[topic] = done + batch.num_rows
        if "partition" in batch.schema.names:
            assigned = _named_partitions(topic, batch, count, assigned)

        starts, order = (memoryview(data) for data in records.group(assigned, count))
        bounds = starts.cast("i")
        split = {}
        for number in range(count):
            low, high = bounds[number], bounds[number + 1]
            if low < high:
                sequence = self._next.get((topic, number), 0)
                split[topic, number] = PartitionRows(rows, order[low * 4 : high * 4], sequence)
        return split

    def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            found = self._partitions_of(topic)
            self._partitions[topic] = len(found[topic])
        return self._partitions[topic]

    def _partitions_of(self, topic: str) -> dict[str, list[int]]:
        """Raises `TopicUnknown` if it is not there, and the broker does not create it."""
        timeout_s = min(CREATE_S_MAX, self._client.timeout_s)
        try:
            return self._client.partitions([topic], create=True, timeout_s=timeout_s)
        except Unavailable as error:
            if "is being created" not in str(error):
                raise
            raise TopicUnknown(
                f"topic {topic!r} does not exist, and the broker has not created it within "
                f"{timeout_s:g} s; create it first"
            ) from error

    def _read_back(self, partitions: list[Partition]) -> None:
        """Finds the next free number in partitions; by id, also the rows that are there."""
        if not partitions:
            return
        earliest = self._client.offsets(dict.fromkeys(partitions, EARLIEST))
        latest = self._client.offsets(dict.fromkeys(partitions, LATEST))
        for partition in partitions:
            begin = begin_of(self._stored().get(partition), batch=self._attempt.batch)
            start = max(begin, earliest[partition])

            following = 0
            for fetched in fetch(self._client, partition, start, latest[partition]):
                for view in fetched.batches:
                    who = {"producer_id": view.producer_id, "epoch": view.producer_epoch}
                    if self._identity.wrote(**who):
                        records = view.offset_end - view.base_offset  # Some may be compacted away.
                        following = view.base_sequence + records
                    if self._by_id and self._identity.shares_batch(**who):
                        self._known.update(_rows_in(view, partition))
            self._next[partition] = following

    def _stored(self) -> dict[Partition, tuple[int, str]]:
        """The positions of the last micro-batch, asked for once. Raises `ProducerFenced`."""
        if self._positions is None:
            found = self._client.committed(group_of(self._attempt.query))
            marks = [Mark.of(text) for _, text in found.values()]
            check_current(marks, batch=self._attempt.batch, term=self._options.term)
            self._positions = found
        return self._positions


def write_rows(
    attempt: Attempt, options: WriteOptions, batches: Iterable[pa.RecordBatch], *, by_id: bool
) -> dict[Partition, int]:
    """Writes all rows of one task; returns the offsets behind them."""
    prepare_worker()
    writer = TaskWriter(options.client(), attempt, options, by_id=by_id)
    try:
        for batch in batches:
            writer.write(batch)
    finally:
        ends = writer.close()
    return ends


def _named_partitions(topic: str, batch: pa.RecordBatch, count: int, otherwise: bytes) -> bytes:
    """The partition of each row: what its column says; where that is null, `otherwise`."""
    named = batch.column("partition").cast(pa.int32())
    if named.null_count == len(named):
        return otherwise
    bounds = pc.min_max(named).as_py()
    if bounds["min"] < 0 or bounds["max"] >= count:
        raise InvalidInput(
            f"the column 'partition' has {bounds['min']} to {bounds['max']}; topic {topic!r} has "
            f"partitions 0 to {count - 1}"
        )
    chosen = pa.Array.from_buffers(pa.int32(), len(named), [None, pa.py_buffer(otherwise)])
    data: bytes = pc.coalesce(named, chosen).buffers()[1].to_pybytes()
    return data[: len(named) * 4]


def _rows_in(view: BatchView, partition: Partition) -> Iterator[tuple[bytes, int]]:
    """Id and hash of the value of the rows in a batch."""
    columns = to_arrow([view], partition, columns=COLUMNS_WITH_HEADERS)
    cells = (columns.column(name).to_pylist() for name in ("headers", "value"))
    for pairs, value in zip(*cells, strict=True):
        for pair in pairs:
            if pair["key"] == ID_HEADER:
                yield pair["value"] or b"", hash(value)


def _with_id_header(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with each row's id in front of its headers."""
    ids = batch.column("id").cast(pa.binary())
    names = pa.repeat(ID_HEADER, len(ids))
    at = batch.schema.get_field_index("headers")
    if at < 0 or not len(batch.column(at).flatten()):
        pairs = pa.StructArray.from_arrays([names, ids], fields=list(HEADERS_TYPE.value_type))
        ends = pa.array(range(len(ids) + 1), pa.int32())
        lists = pa.ListArray.from_arrays(ends, pairs).cast(HEADERS_TYPE)
        if at < 0:
            return batch.append_column("headers", lists)
        return batch.set_column(at, "headers", lists)

    given = batch.column(at).to_pylist()
    together = [
        [{"key": ID_HEADER, "value": one}, *(pairs or [])]
        for one, pairs in zip(ids.to_pylist(), given, strict=True)
    ]
    return batch.set_column(at, "headers", pa.array(together, HEADERS_TYPE))
