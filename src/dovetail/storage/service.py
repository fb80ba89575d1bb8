"""Answers the calls to a storage node: a `Dispatch` in front of a `StorageNode`.

The appends of one frame start together, so that they share a group commit, and are answered
together when each has its outcome. All requests are pipelined: the next frame starts while one
waits for the disk. Appends start in the order of arrival. Other requests have no order among
themselves; a client that needs one waits for the answer.

Memory: a frame of appends stays in the budget until its last entry is stored, even if the client
has gone, because the payloads are slices of it. Each answer to a read is bounded
(`READ_BYTES_MAX`); the connection bounds their number.

Promise: a malformed frame has no effect at all, and closes its connection.
Not here: which nodes may call; the listener demands a login first.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Unavailable
from dovetail.storage import NO_ENTRY, Entry, EntryId, StorageNode, calls
from dovetail.storage.disk.commands import Append
from dovetail.wire import Connection, PipelinedReply, Reply
from dovetail.wire.calls import Answer, Failure, Request, cut_payloads, encode_answer, failure_of

_Outcome = tuple[Answer, Sequence[Buffer]]


class StorageService:
    """A `Dispatch` for the calls to one storage node."""

    def __init__(self, node: StorageNode) -> None:
        self._node = node

    def __call__(self, connection: Connection, frame: memoryview) -> Reply:
        correlation_id, _, message, payloads = calls.CALLS.decode(frame)
        if isinstance(message, calls.Appends):
            return self._append(correlation_id, message.heads, payloads)
        if payloads:
            raise ProtocolViolation(
                f"{len(payloads)} unexpected bytes after a {type(message).__name__}"
            )
        return PipelinedReply.of(self._answered(correlation_id, message))

    def _append(
        self, correlation_id: int, heads: list[calls.AppendHead], payloads: memoryview
    ) -> PipelinedReply:
        cut = cut_payloads(payloads, [head.payload_bytes for head in heads])
        group = _Appending(correlation_id, len(heads))
        for at, (head, payload) in enumerate(zip(heads, cut, strict=True)):
            command = Append(head.ledger, head.entry, head.term, head.confirmed, payload)
            self._node.append(command, partial(group.settle, at))
        return PipelinedReply(group.answered, group.released)

    async def _answered(self, correlation_id: int, message: Request) -> list[Buffer]:
        try:
            answer, payloads = await self._handle(message)
        except DovetailError as error:
            return encode_answer(correlation_id, failure_of(error))
        except OSError as error:
            failure = failure_of(Unavailable(f"the disk of the storage node: {error}"))
            return encode_answer(correlation_id, failure)
        return encode_answer(correlation_id, answer, payloads)

    async def _handle(self, message: Request) -> _Outcome:
        match message:
            case calls.FenceLedger(ledger, term):
                state = await self._node.fence(ledger, term)
                return calls.LedgerFenced(state.entry_last, state.confirmed, state.fenced), ()
            case calls.ReadEntries(ledger, first, last, bytes_max):
                entries = await self._node.read(
                    ledger,
                    first,
                    last=EntryId(min(last, first + calls.READ_ENTRIES_MAX - 1)),
                    bytes_max=min(bytes_max, calls.READ_BYTES_MAX),
                )
                return _read(entries)
            case calls.ReadForRecovery(ledger, entry, term):
                found = await self._node.read_for_recovery(ledger, entry, term)
                return _read([] if found is None else [found])
            case calls.DeleteLedger(ledger):
                await self._node.delete(ledger)
                return calls.LedgerDeleted(), ()
            case calls.ListLedgers():
                return calls.LedgersListed(sorted(await self._node.ledgers())), ()
            case calls.AskHeld(ledger, first, last):
                held = await self._node.held(ledger, first=first, last=last)
                more = NO_ENTRY if held.next is None else held.next
                return calls.HeldFound(list(held.spans), more), ()
        raise AssertionError(f"no handler for {message!r}")


class _Appending:
    """The appends of one frame, until each has its outcome."""

    __slots__ = ("_correlation_id", "_left", "_outcomes", "answered", "released")

    def __init__(self, correlation_id: int, count: int) -> None:
        loop = asyncio.get_running_loop()
        self._correlation_id = correlation_id
        self._left = count
        self._outcomes: list[Failure | None] = [None] * count
        self.answered: asyncio.Future[list[Buffer] | None] = loop.create_future()
        self.released: asyncio.Future[None] = loop.create_future()

    def settle(self, at: int, error: DovetailError | None) -> None:
        if error is not None:
            self._outcomes[at] = failure_of(error)
        self._left -= 1
        if self._left:
            return
        self.released.set_result(None)
        if not self.answered.done():  # The connection cancels it when it ends.
            outcomes = calls.AppendOutcomes(self._outcomes)
            self.answered.set_result(encode_answer(self._correlation_id, outcomes))


def _read(entries: list[Entry]) -> _Outcome:
    heads = [
        calls.EntryHead(entry.entry, entry.term, entry.confirmed, len(entry.payload))
        for entry in entries
    ]
    return calls.EntriesRead(heads), [entry.payload for entry in entries]
