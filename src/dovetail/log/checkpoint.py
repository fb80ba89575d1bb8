"""Checkpoints: what a ledger says about itself, inside itself.

Every ledger starts with a checkpoint entry, and another follows every so many entries. It holds the
producers and their open transactions at that point, sums, the rows of the sparse index and the
aborted transactions since the checkpoint before it, and the position of that one. So:

- An owner that takes over reads back to the last checkpoint, and from there forward: bounded work,
  however large the ledger.
- A reader gets the index of an old ledger by walking the checkpoints back; no file beside the
  ledger can be lost or differ.

A checkpoint takes an entry id but no offset. Its first eight bytes, where a batch has its base
offset, are all ones, which is no valid offset.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict

import msgspec

from dovetail.buffers import Buffer
from dovetail.errors import Damaged
from dovetail.log.producers import AbortedRange, OpenTransaction, Producer, ProducerTable
from dovetail.record_batch import BatchHeader
from dovetail.storage import NO_ENTRY, EntryId

_MARK = b"\xff" * 8

#: A row of the index for at least this many bytes: a seek reads so much too much at most.
INDEX_EVERY_BYTES = 64 * 1024

#: A checkpoint after so many entries or bytes: what a start has to read of a partition.
CHECKPOINT_ENTRIES = 1024
CHECKPOINT_BYTES = 8 * 1024 * 1024

#: Indexes of closed ledgers that a partition keeps in memory.
_INDEXES_KEPT = 4


class Checkpoint(msgspec.Struct, array_like=True):
    """Rows are (entry, base offset, highest timestamp from there to the next row)."""

    previous: int
    offset_next: int
    payload_bytes: int
    timestamp_max: int
    rows: list[tuple[int, int, int]]
    producers: dict[int, Producer]
    open_transactions: dict[int, OpenTransaction] = {}
    aborted: list[AbortedRange] = []


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The entry's payload."""
    return _MARK + msgspec.msgpack.encode(checkpoint)


def is_checkpoint(payload: Buffer) -> bool:
    """Whether an entry is a checkpoint and not a batch."""
    return bytes(payload[:8]) == _MARK


def decode_checkpoint(payload: Buffer) -> Checkpoint:
    """Raises `Damaged` if it is none, which the entry's checksum should have shown."""
    try:
        return msgspec.msgpack.decode(memoryview(payload)[8:], type=Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Damaged(f"cannot decode a checkpoint: {error}") from error


class LedgerIndex:
    """The sparse index of one ledger: from offsets and times to entries."""

    def __init__(self) -> None:
        self._entries = array("q")
        self._offsets = array("q")
        self._timestamps = array("q")
        self._bytes_since_row = INDEX_EVERY_BYTES
        self._rows_kept = 0
        #: Transactions whose abort is in this ledger, by their markers.
        self._aborted: list[AbortedRange] = []
        self._aborted_kept = 0
        #: The first offset of the oldest transaction that is open behind the ledger's end.
        self.open_behind: int | None = None
        self.checkpoint_last = NO_ENTRY
        self.payload_bytes = 0
        self.timestamp_max = -1
        self.entries_since_checkpoint = 0
        self.bytes_since_checkpoint = 0

    def note_batch(self, entry: EntryId, header: BatchHeader, size: int) -> None:
        """Counts a batch, and gives it a row if it is time for one."""
        if self._bytes_since_row >= INDEX_EVERY_BYTES:
            self._entries.append(entry)
            self._offsets.append(header.base_offset)
            self._timestamps.append(header.timestamp_max)
            self._bytes_since_row = 0
        elif header.timestamp_max > self._timestamps[-1]:
            self._timestamps[-1] = header.timestamp_max
        self._bytes_since_row += size
        self.payload_bytes += size
        self.timestamp_max = max(self.timestamp_max, header.timestamp_max)
        self.entries_since_checkpoint += 1
        self.bytes_since_checkpoint += size

    @property
    def wants_checkpoint(self) -> bool:
        return (
            self.entries_since_checkpoint >= CHECKPOINT_ENTRIES
            or self.bytes_since_checkpoint >= CHECKPOINT_BYTES
        )

    def note_aborted(self, aborted: AbortedRange | None) -> None:
        """Remembers an abort, if a batch was one."""
        if aborted is not None:
            self._aborted.append(aborted)

    @property
    def has_aborted(self) -> bool:
        """Whether a transaction was aborted in this ledger."""
        return bool(self._aborted)

    def aborted_within(self, first: int, end: int) -> tuple[list[AbortedRange], bool]:
        """Aborts here of transactions between two offsets, and whether no later ledger has more."""
        found = []
        at = bisect_left(self._aborted, first, key=lambda aborted: aborted.last_offset)
        for aborted in self._aborted[at:]:
            if aborted.first_offset < end:
                found.append(aborted)
            if aborted.stable_then >= end:
                return found, True
        return found, self.open_behind is None or self.open_behind >= end

    def take_checkpoint(
        self,
        entry: EntryId,
        producers: ProducerTable,
        *,
        offset_next: int,
        now_ms: int,
    ) -> Checkpoint:
        """The checkpoint to be stored as `entry`; the next batch starts a new row."""
        rows = [
            (self._entries[at], self._offsets[at], self._timestamps[at])
            for at in range(self._rows_kept, len(self._entries))
        ]
        checkpoint = Checkpoint(
            self.checkpoint_last,
            offset_next,
            self.payload_bytes,
            self.timestamp_max,
            rows,
            producers.snapshot(now_ms=now_ms),
            producers.open_transactions(),
            self._aborted[self._aborted_kept :],
        )
        self._note_checkpoint(entry)
        self.open_behind = producers.lowest_open
        return checkpoint

    def adopt(
        self,
        entry: EntryId,
        checkpoint: Checkpoint,
        rows: list[tuple[int, int, int]],
        aborted: list[AbortedRange],
    ) -> None:
        """Starts from a checkpoint that was read, with what all up to it say."""
        self._aborted += aborted
        for row_entry, offset, timestamp in rows:
            self._entries.append(row_entry)
            self._offsets.append(offset)
            self._timestamps.append(timestamp)
        self.payload_bytes = checkpoint.payload_bytes
        self.timestamp_max = checkpoint.timestamp_max
        self._note_checkpoint(entry)

    def _note_checkpoint(self, entry: EntryId) -> None:
        self.checkpoint_last = entry
        self._rows_kept = len(self._entries)
        self._aborted_kept = len(self._aborted)
        self._bytes_since_row = INDEX_EVERY_BYTES
        self.entries_since_checkpoint = 0
        self.bytes_since_checkpoint = 0

    def entry_for_offset(self, offset: int) -> EntryId:
        """An entry at or before the one with this offset, and not far before it."""
        at = bisect_right(self._offsets, offset) - 1
        return EntryId(self._entries[at]) if at >= 0 else EntryId(0)

    def entry_for_time(self, timestamp: int) -> EntryId | None:
        """Where the first stretch begins that has a record this young; None if none has."""
        for at, highest in enumerate(self._timestamps):
            if highest >= timestamp:
                return EntryId(self._entries[at])
        return None


class IndexCache:
    """The indexes of the closed ledgers that were read last."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[int, LedgerIndex] = OrderedDict()

    def get(self, ledger: int) -> LedgerIndex | None:
        """The index of a ledger, if it is here."""
        found = self._indexes.get(ledger)
        if found is not None:
            self._indexes.move_to_end(ledger)
        return found

    def keep(self, ledger: int, index: LedgerIndex) -> None:
        """Keeps the index of a closed ledger for a while."""
        self._indexes[ledger] = index
        self._indexes.move_to_end(ledger)
        while len(self._indexes) > _INDEXES_KEPT:
            self._indexes.popitem(last=False)

    def forget(self, ledger: int) -> None:
        """The ledger is gone."""
        self._indexes.pop(ledger, None)
