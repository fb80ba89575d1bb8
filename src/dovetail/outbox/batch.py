"""Batches: which messages go together, to which partition, under which sequence numbers; pure.

A batch is written down before it is sent: the ids of its messages in order, the number of
partitions, the producer, and the first sequence number in each partition. From that and the rows
any relay can build the same record batches again. The broker remembers the last batches of a
producer by their sequence numbers, so it stores them once, however often they are sent.

For that to hold, a batch makes at most one record batch in each partition, and at most `OPEN_MAX`
batches are written down and not yet done: a broker remembers five.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from dovetail.kafka.client.partitioner import Partitioner
from dovetail.record_batch import SEQUENCE_END

#: Batches that may be open at once: one on its way while the next is being written down.
OPEN_MAX = 2

#: What a record costs beside key, value and headers: lengths, time and offset as varints, and the
#: header with the message id.
RECORD_OVERHEAD_BYTES = 100


class Row(NamedTuple):
    """A message as it lies in the table; headers are still text."""

    id: int
    key: bytes | None
    partition_key: bytes | None
    headers: str | None
    payload: bytes | None
    message_id: str
    created_ms: int

    @property
    def order_key(self) -> bytes | None:
        """What decides the partition and the order."""
        return self.partition_key if self.partition_key is not None else self.key

    @property
    def size_bytes(self) -> int:
        """About as much as it takes in a record batch."""
        _, key, _, headers, payload, _, _ = self
        size = RECORD_OVERHEAD_BYTES
        if key is not None:
            size += len(key)
        if payload is not None:
            size += len(payload)
        return size if headers is None else size + len(headers)


class Identity(msgspec.Struct, frozen=True):
    """The producer of a (topic, shard), and the next sequence number of each partition."""

    producer_id: int
    epoch: int
    next_by_partition: dict[int, int] = {}

    def next_of(self, partition: int) -> int:
        return self.next_by_partition.get(partition, 0)

    def moved(self, changes: dict[int, int]) -> "Identity":
        """The same producer with other next numbers for some partitions."""
        return Identity(self.producer_id, self.epoch, {**self.next_by_partition, **changes})


class Batch(msgspec.Struct, frozen=True):
    """One batch as it is written down: its rows in the order in which they were read.

    `dropped` are ids that compaction left out.
    """

    ids: list[int]
    partitions: int
    producer_id: int
    epoch: int
    first_by_partition: dict[int, int]
    dropped: list[int] = []


class _WrittenBatch(msgspec.Struct):
    """As it is stored: ids mostly follow each other, so their runs are short."""

    runs: list[tuple[int, int]]
    partitions: int
    producer_id: int
    epoch: int
    first_by_partition: dict[int, int]
    dropped: list[tuple[int, int]]


def encode_batches(batches: Sequence[Batch]) -> str | None:
    """As it is stored; None for none."""
    if not batches:
        return None
    written = [
        _WrittenBatch(
            _runs(batch.ids),
            batch.partitions,
            batch.producer_id,
            batch.epoch,
            batch.first_by_partition,
            _runs(batch.dropped),
        )
        for batch in batches
    ]
    return msgspec.json.encode(written).decode()


def decode_batches(text: str | None) -> list[Batch]:
    """What `encode_batches` has made."""
    if text is None:
        return []
    return [
        Batch(
            _ids(found.runs),
            found.partitions,
            found.producer_id,
            found.epoch,
            found.first_by_partition,
            _ids(found.dropped),
        )
        for found in msgspec.json.decode(text, type=list[_WrittenBatch])
    ]


def _runs(ids: Sequence[int]) -> list[tuple[int, int]]:
    """First and length of each stretch of ids that follow each other."""
    runs: list[tuple[int, int]] = []
    first = length = 0
    for row_id in ids:
        if length and row_id != first + length:
            runs.append((first, length))
            length = 0
        if not length:
            first = row_id
        length += 1
    if length:
        runs.append((first, length))
    return runs


def _ids(runs: Sequence[tuple[int, int]]) -> list[int]:
    return [row_id for first, length in runs for row_id in range(first, first + length)]


def encode_identity(identity: Identity) -> str:
    return msgspec.json.encode(identity).decode()


def decode_identity(text: str | None) -> Identity | None:
    return None if text is None else msgspec.json.decode(text, type=Identity)


def spread(rows: Iterable[Row], partitions: int, partitioner: Partitioner) -> dict[int, list[Row]]:
    """The rows by partition, in order. Without a key the row's id decides, the same each time."""
    if partitions == 1:
        return {0: listed} if (listed := list(rows)) else {}
    parts: list[list[Row]] = [[] for _ in range(partitions)]
    for row in rows:
        key = row.partition_key
        if key is None:
            key = row.key
        parts[row.id % partitions if key is None else partitioner(key, partitions)].append(row)
    return {partition: part for partition, part in enumerate(parts) if part}


def compact(rows: Sequence[Row]) -> tuple[list[Row], list[int]]:
    """Only the last row of each key, in order, and the ids of the others; all without a key."""
    last = {row.key: row.id for row in rows if row.key is not None}
    kept = [row for row in rows if row.key is None or last[row.key] == row.id]
    kept_ids = {row.id for row in kept}
    return kept, [row.id for row in rows if row.id not in kept_ids]


def plan(
    rows: Sequence[Row],
    sets: dict[int, list[Row]],
    identity: Identity,
    *,
    partitions: int,
    dropped: Sequence[int] = (),
) -> tuple[Batch, Identity]:
    """The batch to write down for these rows, and the producer's numbers after it."""
    first = {partition: identity.next_of(partition) for partition in sets}
    after = {
        partition: (first[partition] + len(part)) % SEQUENCE_END for partition, part in sets.items()
    }
    batch = Batch(
        ids=[row.id for row in rows],
        partitions=partitions,
        producer_id=identity.producer_id,
        epoch=identity.epoch,
        first_by_partition=first,
        dropped=list(dropped),
    )
    return batch, identity.moved(after)


def remaining(batch: Batch, sets: dict[int, list[Row]]) -> Batch:
    """The batch with only these sets left; what was dropped goes when the last of it is done."""
    return Batch(
        ids=[row.id for rows in sets.values() for row in rows],
        partitions=batch.partitions,
        producer_id=batch.producer_id,
        epoch=batch.epoch,
        first_by_partition={partition: batch.first_by_partition[partition] for partition in sets},
        dropped=batch.dropped,
    )


def cut(rows: Sequence[Row], *, bytes_max: int) -> list[list[Row]]:
    """Groups of at most `bytes_max` each, in order; a larger row is a group of its own."""
    if not rows or sum([row.size_bytes for row in rows]) <= bytes_max:
        return [list(rows)] if rows else []
    groups: list[list[Row]] = []
    size = bytes_max + 1
    for row in rows:
        weight = row.size_bytes
        size += weight
        if size > bytes_max:
            group: list[Row] = []
            groups.append(group)
            size = weight
        group.append(row)
    return groups
