"""What remains of a batch: the rules of compaction; pure.

First the keys of the dirty part go into a map, up to an offset `end`; then every batch of the log
from its start is cleaned by that map, in order:

    at `end` or behind it           stays as it is: the map does not know it
    of an aborted transaction       goes, whole
    a record without a key          goes
    a record whose key comes later  goes
    a tombstone                     stays until its horizon: first compaction + delete.retention.ms
    a marker                        stays while its transaction has records, then until its horizon
    everything else                 stays, with its offset

The horizon is in the batch, as Kafka writes it (KIP-534). A batch that keeps a record keeps its
first and last offset, so that a producer's numbers and a reader's next offset stay the same. A
batch that loses nothing keeps its bytes.

A tombstone may go because everything it deletes went before it: ledgers are replaced in order, and
a horizon is set by a pass that has removed all that the tombstone deletes.

Producers do not matter here: a ledger's last checkpoint knows them (`checkpoint.py`).
"""

from collections.abc import Iterable

from dovetail.buffers import Buffer
from dovetail.compression import deflate, inflate
from dovetail.errors import InvalidBatch
from dovetail.log.compaction.key_map import PlainKeyMap
from dovetail.log.producers import AbortedRange
from dovetail.record_batch import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
    resealed,
)

#: No horizon is later. A batch with a record whose time is further away gets none, and keeps the
#: highest time that its sender wrote: sums and differences must fit.
_TIME_MAX = 1 << 61


class AbortedTransactions:
    """Which batches belong to an aborted transaction."""

    def __init__(self, ranges: Iterable[AbortedRange]) -> None:
        self._ranges: dict[int, list[AbortedRange]] = {}
        for found in ranges:
            self._ranges.setdefault(found.producer_id, []).append(found)

    def has(self, header: BatchHeader) -> bool:
        """Whether the batch was aborted."""
        if not header.attributes & TRANSACTIONAL:
            return False
        ranges = self._ranges.get(header.producer_id, ())
        return any(r.first_offset <= header.base_offset < r.last_offset for r in ranges)


def note_keys(
    keys: PlainKeyMap, batch: Buffer, aborted: AbortedTransactions, *, first: int
) -> int | None:
    """Puts the batch's keys into the map; where the map was full, or None.

    Raises `InvalidBatch` if it cannot be read.
    """
    header = read_header(batch)
    if header.attributes & CONTROL or header.offset_end <= first or aborted.has(header):
        return None
    data, start = _records(batch, header)
    try:
        stopped = keys.put(data, start, header.record_count, header.base_offset, first)
    except ValueError as error:
        raise InvalidBatch(f"offset {header.base_offset}: {error}") from error
    return None if stopped < 0 else stopped


class Cleaning:
    """One pass over a log, from its start to `end`."""

    def __init__(
        self,
        keys: PlainKeyMap,
        aborted: AbortedTransactions,
        *,
        end: int,
        now_ms: int,
        tombstones_ms: int,
    ) -> None:
        self._keys = keys
        self._aborted = aborted
        self._end = end
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + tombstones_ms, _TIME_MAX)
        #: Producers with records since their last marker.
        self._in_transaction: set[int] = set()
        #: Records that went.
        self.removed = 0

    def clean(self, batch: Buffer) -> Buffer | None:
        """The batch as it stays; None if nothing of it does. Batches come in order.

        Raises `InvalidBatch` if it cannot be read.
        """
        header = read_header(batch)
        if header.base_offset >= self._end:
            return batch
        if not header.record_count or self._aborted.has(header):
            self.removed += header.record_count
            return None
        try:
            if header.attributes & CONTROL:
                return self._clean_marker(batch, header)
            return self._clean_records(batch, header)
        except ValueError as error:
            raise InvalidBatch(f"offset {header.base_offset}: {error}") from error

    def _clean_marker(self, batch: Buffer, header: BatchHeader) -> Buffer | None:
        if header.producer_id in self._in_transaction:
            self._in_transaction.discard(header.producer_id)
            return batch
        if not header.attributes & DELETE_HORIZON:
            return self._copied(batch, header, header.record_count, horizon=True)
        if self._now_ms < header.base_timestamp:
            return batch
        self.removed += 1
        return None

    def _clean_records(self, batch: Buffer, header: BatchHeader) -> Buffer | None:
        kept, tombstones, lowest, highest = self._keys.judge(
            *self._located(batch, header), self._tombstones_stay(header)
        )
        self.removed += header.record_count - kept
        if not kept:
            return None
        if header.attributes & TRANSACTIONAL:
            self._in_transaction.add(header.producer_id)

        base = header.base_timestamp
        fits = base + lowest > -_TIME_MAX and base + highest < _TIME_MAX > abs(base)
        horizon = bool(tombstones) and fits and not header.attributes & DELETE_HORIZON
        if kept == header.record_count and not horizon:
            return batch
        if fits and not header.attributes & APPEND_TIME:
            header = header._replace(timestamp_max=base + highest)
        return self._copied(batch, header, kept, horizon=horizon)

    def _copied(self, batch: Buffer, header: BatchHeader, kept: int, *, horizon: bool) -> Buffer:
        """The batch with the records that stay, and with a horizon if it is to get one."""
        shift = header.base_timestamp - self._horizon_ms if horizon else 0
        located, stay = self._located(batch, header), self._tombstones_stay(header)
        if header.attributes & CONTROL:  # Has no key that a map would know.
            located = (*located[:4], header.base_offset)
        records = self._keys.copy(*located, stay, shift)

        if horizon:
            attributes = header.attributes | DELETE_HORIZON
            header = header._replace(attributes=attributes, base_timestamp=self._horizon_ms)
        header = header._replace(record_count=kept)
        return resealed(header, deflate(records, header.attributes & CODEC_MASK))[0]

    def _tombstones_stay(self, header: BatchHeader) -> bool:
        return not header.attributes & DELETE_HORIZON or self._now_ms < header.base_timestamp

    def _located(self, batch: Buffer, header: BatchHeader) -> tuple[Buffer, int, int, int, int]:
        data, start = _records(batch, header)
        return data, start, header.record_count, header.base_offset, self._end


def _records(batch: Buffer, header: BatchHeader) -> tuple[Buffer, int]:
    """The plain records of a batch, and where they begin."""
    codec = header.attributes & CODEC_MASK
    if not codec:
        return batch, HEADER_BYTES
    return inflate(memoryview(batch)[HEADER_BYTES:], codec), 0
