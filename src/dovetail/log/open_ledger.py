"""A ledger that a partition writes, and its entries in flight."""

import asyncio
from typing import NamedTuple

import msgspec

from dovetail.buffers import Buffer
from dovetail.log.checkpoint import LedgerIndex
from dovetail.storage import NO_ENTRY, EnsembleWriter, EntryId
from dovetail.storage.chain import LedgerInfo


class Appended(NamedTuple):
    """Where a batch lies; `append_time` is -1 unless the topic stamps its own time."""

    base_offset: int
    append_time: int


def copy_outcome(first: "asyncio.Future[Appended]", second: "asyncio.Future[Appended]") -> None:
    """Gives the second what the first has got."""
    if second.done():
        return
    error = first.exception()
    if error is not None:
        second.set_exception(error)
    else:
        second.set_result(first.result())


class OpenLedger:
    """A ledger that is being written."""

    def __init__(self, writer: EnsembleWriter, info: LedgerInfo, first_offset: int) -> None:
        self.writer = writer
        self.info = info
        self.first_offset = first_offset
        self.index = LedgerIndex()
        self.entry_confirmed = NO_ENTRY
        self.offset_confirmed = first_offset
        #: Set when the writer has gone on in another ledger: the last entry, and its confirmation.
        self.entry_last: EntryId | None = None
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note_confirmed(self, entry: EntryId, offset_end: int) -> None:
        """Counts an entry in; they come in order."""
        self.entry_confirmed = entry
        self.offset_confirmed = offset_end
        if entry == self.entry_last and not self.finished.done():
            self.finished.set_result(None)

    def finish(self) -> "asyncio.Future[None]":
        """No more appends come; done when all are confirmed, cancelled if one fails."""
        self.entry_last = EntryId(self.writer.entry_next - 1)
        if self.entry_confirmed == self.entry_last and not self.finished.done():
            self.finished.set_result(None)
        return self.finished

    def closed_info(self) -> LedgerInfo:
        """What the chain says of it once everything is confirmed."""
        return msgspec.structs.replace(
            self.info,
            placement=self.writer.placement,
            closed=True,
            first_offset=self.first_offset,
            entry_last=self.entry_confirmed,
            offset_end=self.offset_confirmed,
            payload_bytes=self.index.payload_bytes,
            timestamp_max=self.index.timestamp_max,
            checkpoint_last=self.index.checkpoint_last,
        )


class InFlight:
    """An entry on its way; `future` is None for a checkpoint."""

    __slots__ = (
        "append_time",
        "base_offset",
        "batch",
        "done",
        "entry",
        "future",
        "offset_end",
        "open_ledger",
    )

    def __init__(
        self,
        open_ledger: OpenLedger,
        base_offset: int,
        offset_end: int,
        batch: Buffer,
        future: "asyncio.Future[Appended] | None",
        append_time: int = -1,
    ) -> None:
        self.open_ledger = open_ledger
        self.entry = open_ledger.writer.entry_next
        self.base_offset = base_offset
        self.offset_end = offset_end
        self.batch = batch
        self.future = future
        self.append_time = append_time
        self.done = False
