"""Checkpoints: what a ledger says about itself, inside itself.

Every ledger starts with a checkpoint entry, and every so many entries comes another. It holds the
producers as of now, sums, the rows of the sparse index since the checkpoint before it, and where
that one is. So:

- An owner that takes over reads back to the last checkpoint, and from there forward: bounded work,
  however large the ledger.
- The index of an old ledger is read by walking the checkpoints back; nothing lies beside the
  ledger that could be lost or differ.

A checkpoint takes an entry id and no offset. Its first eight bytes, where a batch has its base
offset, are all ones, which no offset is.
"""

from array import array
from bisect import bisect_right

import msgspec

from dovetail.buffers import Buffer
from dovetail.errors import Damaged
from dovetail.log.producers import Producer
from dovetail.record_batch import BatchHeader
from dovetail.storage import NO_ENTRY, EntryId

_MARK = b"\xff" * 8

#: A row of the index for at least this many bytes: a seek reads so much too much at most.
INDEX_EVERY_BYTES = 64 * 1024

#: A checkpoint after so many entries or bytes: what a start has to read of a partition.
CHECKPOINT_ENTRIES = 1024
CHECKPOINT_BYTES = 8 * 1024 * 1024


class Checkpoint(msgspec.Struct, array_like=True):
    """Rows are (entry, base offset, highest timestamp from there to the next row)."""

    previous: int
    offset_next: int
    payload_bytes: int
    timestamp_max: int
    rows: list[tuple[int, int, int]]
    producers: dict[int, Producer]


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

    def take_checkpoint(
        self, entry: EntryId, *, offset_next: int, producers: dict[int, Producer]
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
            producers,
        )
        self._note_checkpoint(entry)
        return checkpoint

    def adopt(
        self, entry: EntryId, checkpoint: Checkpoint, rows: list[tuple[int, int, int]]
    ) -> None:
        """Starts from a checkpoint that was read, with the rows of all up to it."""
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
