"""What one task writes: rows to partitions, numbered so that each is stored once (`identity`).

A `TaskWriter` is given Arrow batches. It chooses the partition of each row, encodes, sends, and
waits: after `write` returned, the rows are stored. How a row keeps its number across attempts is
the one difference between its two kinds, `by position` and `by id`.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.errors import InvalidInput, ProducerFenced, Uncertain
from dovetail.pipeline import records
from dovetail.pipeline.client import EARLIEST, LATEST, KafkaClient, Partition
from dovetail.pipeline.decoder import BatchView, to_arrow
from dovetail.pipeline.encoder import EncodedBatch, Rows, encode_batches
from dovetail.pipeline.fetching import fetch
from dovetail.pipeline.identity import ID_HEADER, Identity, group_of, term_of
from dovetail.pipeline.producer import Producer, SequenceTaken

#: Of a record batch before compression; brokers take 1 MiB by default, with a header of 61 bytes.
BATCH_BYTES = 950_000

#: Rows without a key stay together so far, then go to the next partition.
RUN_ROWS = 1024

#: A sync takes about so long.
_PAUSE_S = 0.005


@dataclass(frozen=True, slots=True)
class Lot:
    """Rows of one Arrow batch that go to one partition; the first has the number `sequence`."""

    rows: Rows
    chosen: memoryview
    sequence: int

    @property
    def count(self) -> int:
        return len(self.chosen) // 4

    def after(self, sequence: int) -> "Lot":
        """What is left when the numbers before `sequence` are taken."""
        skipped = min(max(sequence - self.sequence, 0), self.count)
        return Lot(self.rows, self.chosen[skipped * 4 :], self.sequence + skipped)


class _Patience:
    """How long an attempt stands still for what another one has under way.

    A number is taken as soon as the broker has begun to store it, and can be read back only when
    it is stored: until then nothing helps but waiting.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s

    def wait(self, error: SequenceTaken, *, progress: bool) -> None:
        """Raises `Uncertain` if nothing has moved for too long."""
        now = time.monotonic()
        if progress:
            self._deadline = now + self._timeout_s
        elif now > self._deadline:
            raise Uncertain(f"{error}; nothing of it can be read for {self._timeout_s:g} s")
        else:
            time.sleep(_PAUSE_S)


class TaskWriter:
    """Writes the rows of one task of one micro-batch."""

    def __init__(
        self,
        client: KafkaClient,
        identity: Identity,
        *,
        query: str,
        topic: str | None,
        codec: int,
        by_id: bool,
        term: int | None,
        alone: bool,
    ) -> None:
        """`alone`: no other attempt can be at the same rows; by id, saves a last look."""
        self._client = client
        self._identity = identity
        self._query = query
        self._topic = topic
        self._codec = codec
        self._by_id = by_id
        self._producer = Producer(client)
        self._partitions: dict[str, int] = {}
        #: The next number of each partition.
        self._next: dict[Partition, int] = {}
        self._bounds: dict[Partition, int] | None = None
        self._rows_done: dict[str, int] = {}
        #: By position: numbers below this were written by another attempt.
        self._taken: dict[Partition, int] = {}
        #: By id: another attempt may have written, so that an answer may have been meant for it.
        self._disturbed = not alone
        #: By id: what this micro-batch has written, whoever did.
        self._known: set[bytes] = set()
        self._mine: set[bytes] = set()
        if term is not None:
            self._check_term(term)

    def write(self, batch: pa.RecordBatch) -> None:
        """Returns when all rows are stored."""
        if not batch.num_rows:
            return
        for topic, rows in self._by_topic(batch):
            if self._by_id:
                self._write_by_id(topic, rows)
            else:
                self._write_lots(self._lots(topic, rows))

    def close(self) -> dict[Partition, int]:
        """The offsets behind what was written. Raises `Uncertain` if a row is not there."""
        if self._by_id and self._disturbed:
            self._known.clear()
            for partition in self._next:
                self._read_back(partition)
            missing = self._mine - self._known
            if missing:
                raise Uncertain(
                    f"{len(missing)} rows were taken for stored, and another attempt's were; "
                    "run the task again"
                )
        self._producer.close()
        return dict(self._producer.ends)

    def abandon(self) -> None:
        """Closes what is open after a failure."""
        self._producer.close()

    def _write_lots(self, lots: dict[Partition, Lot]) -> None:
        left = {key: lot.after(self._taken.get(key, 0)) for key, lot in lots.items()}
        patience = _Patience(self._client.timeout_s)
        while True:
            try:
                self._producer.send_all({key: self._encoded(lot) for key, lot in left.items()})
                break
            except SequenceTaken as error:
                partition = error.partition
                taken = self._read_back(partition)
                patience.wait(error, progress=taken > self._taken.get(partition, 0))
                self._taken[partition] = taken
                left = {partition: lots[partition].after(taken)}
        for partition, lot in lots.items():
            self._next[partition] = lot.sequence + lot.count

    def _write_by_id(self, topic: str, batch: pa.RecordBatch) -> None:
        patience = _Patience(self._client.timeout_s)
        ids = batch.column("id").cast(pa.binary())
        if ids.null_count:
            raise InvalidInput("a row has no id; the column 'id' must be set in every row")
        partitions = self._opened(topic)
        while True:
            known = pa.array(sorted(self._known), pa.binary())
            wanted = batch.filter(pc.invert(pc.is_in(ids, value_set=known))) if known else batch
            lots = self._lots(topic, _with_id_header(wanted)) if wanted.num_rows else {}
            try:
                self._producer.send_all({key: self._encoded(lot) for key, lot in lots.items()})
                break
            except SequenceTaken as error:
                self._producer.forget()
                before = len(self._known)
                for partition in partitions:
                    self._read_back(partition)
                patience.wait(error, progress=len(self._known) > before)
        for partition, lot in lots.items():
            self._next[partition] = lot.sequence + lot.count
        written = ids.to_pylist()
        self._known.update(written)
        self._mine.update(written)

    def _opened(self, topic: str) -> list[Partition]:
        """All partitions of a topic, read back once before the first row goes there."""
        partitions = [(topic, number) for number in range(self._count(topic))]
        for partition in partitions:
            if partition not in self._next:
                self._read_back(partition)
        return partitions

    def _encoded(self, lot: Lot) -> Iterator[EncodedBatch]:
        return encode_batches(
            lot.rows,
            lot.chosen,
            codec=self._codec,
            bytes_max=BATCH_BYTES,
            now_ms=time.time_ns() // 1_000_000,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            sequence=lot.sequence,
        )

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidInput(
                "a row has no topic; set the option 'topic' or the column in all rows"
            )
        for topic in pc.unique(topics).to_pylist():
            yield topic, batch.filter(pc.equal(topics, topic))

    def _lots(self, topic: str, batch: pa.RecordBatch) -> dict[Partition, Lot]:
        rows, count = Rows.of(batch), self._count(topic)
        if "partition" in batch.schema.names:
            assigned = self._named_partitions(topic, batch, count)
        else:
            # By the row's number in its topic: a later attempt may get other Arrow batches.
            done = self._rows_done.get(topic, 0)
            first = done + (self._identity.producer_id & 0xFFFFF) * RUN_ROWS
            assigned = records.assign(rows.keys, batch.num_rows, count, first, RUN_ROWS)
            self._rows_done[topic] = done + batch.num_rows
        starts, order = (memoryview(data) for data in records.group(assigned, count))
        bounds = starts.cast("i")
        lots = {}
        for number in range(count):
            low, high = bounds[number], bounds[number + 1]
            if low < high:
                sequence = self._next.get((topic, number), 0)
                lots[topic, number] = Lot(rows, order[low * 4 : high * 4], sequence)
        return lots

    def _named_partitions(self, topic: str, batch: pa.RecordBatch, count: int) -> bytes:
        named = batch.column("partition").cast(pa.int32())
        bounds = pc.min_max(named).as_py()
        if named.null_count or bounds["min"] < 0 or bounds["max"] >= count:
            raise InvalidInput(
                f"the column 'partition' has {bounds['min']} to {bounds['max']} and "
                f"{named.null_count} nulls; topic {topic!r} has partitions 0 to {count - 1}"
            )
        data: bytes = named.buffers()[1].to_pybytes()
        return data[named.offset * 4 : (named.offset + len(named)) * 4]

    def _count(self, topic: str) -> int:
        if topic not in self._partitions:
            found = self._client.partitions([topic], create=True)
            self._partitions[topic] = len(found[topic])
        return self._partitions[topic]

    def _read_back(self, partition: Partition) -> int:
        """The next free number in a partition; by id, also notes the ids that are there."""
        if self._bounds is None:
            stored = self._client.committed(group_of(self._query))
            self._bounds = {key: position for key, (position, _) in stored.items()}
        first = self._client.offsets({partition: EARLIEST})[partition]
        start = max(first, self._bounds.get(partition, first))
        end = self._client.offsets({partition: LATEST})[partition]
        following = 0
        for fetched in fetch(self._client, partition, start, end):
            for view in fetched.batches:
                who = {"producer_id": view.producer_id, "epoch": view.producer_epoch}
                if self._identity.wrote(**who):
                    following = view.base_sequence + view.record_count
                    self._disturbed = True
                if self._by_id and self._identity.shares_batch(**who):
                    self._known.update(_ids_in(view, partition))
        self._next[partition] = following
        return following

    def _check_term(self, term: int) -> None:
        stored = self._client.committed(group_of(self._query)).values()
        newest = term_of([text for _, text in stored])
        if newest > term:
            raise ProducerFenced(
                f"master of term {term} writes, and one of term {newest} has committed already"
            )


def _ids_in(view: BatchView, partition: Partition) -> Iterator[bytes]:
    columns = to_arrow(
        [view],
        topic=partition[0],
        partition=partition[1],
        offset_min=0,
        offset_end=1 << 62,
        with_headers=True,
    )
    for pairs in columns.column("headers").to_pylist():
        for pair in pairs:
            if pair["key"] == ID_HEADER:
                yield pair["value"] or b""


def _with_id_header(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with each row's id in front of its headers."""
    ids = batch.column("id").cast(pa.binary())
    names = pa.repeat(ID_HEADER, len(ids))
    element = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    kind = pa.list_(pa.field("element", element))
    if "headers" not in batch.schema.names:
        pairs = pa.StructArray.from_arrays([names, ids], fields=list(element))
        ends = pa.array(range(len(ids) + 1), pa.int32())
        lists = pa.ListArray.from_arrays(ends, pairs).cast(kind)
        return batch.append_column("headers", lists)
    given = batch.column("headers").to_pylist()
    together = [
        [{"key": ID_HEADER, "value": one}, *(pairs or [])]
        for one, pairs in zip(ids.to_pylist(), given, strict=True)
    ]
    at = batch.schema.get_field_index("headers")
    return batch.set_column(at, "headers", pa.array(together, kind))
