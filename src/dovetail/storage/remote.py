"""A storage node in another process: the `StorageNode` protocol over private calls.

It uses two connections: one for appends, fences and deletes, one for reads. A node answers each
connection in order, and a read of old data must not delay the answers to appends.

Appends made in one turn of the event loop leave together in one frame. So the busier the broker,
the more entries share a frame, and no timer delays an append. They are answered in the order in
which they were made. The exceptions are appends refused on this side, because too much is in flight
(`Throttled`) or because they cannot be sent at all: these are answered in the next turn.

What a broken connection means to a caller:

    append, fence, delete      sent: `Uncertain`        not sent: `Unavailable`
    reads, ledgers, held       sent: `Unavailable`      not sent: `Unavailable`

A lost recovery read may have fenced the ledger; that harms nobody but the old writer, whether the
read is repeated or not. All calls are safe to repeat: the storage node ensures that.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from dovetail.addresses import Address
from dovetail.buffers import Buffer
from dovetail.errors import (
    DovetailError,
    InvalidInput,
    ProtocolViolation,
    Unavailable,
    Uncertain,
)
from dovetail.storage import NO_ENTRY, Entry, EntryId, LedgerId, LedgerState, Term, calls
from dovetail.storage.calls import CALLS, AppendHead
from dovetail.storage.disk.commands import Append
from dovetail.storage.held import Held
from dovetail.storage.node import Answer
from dovetail.wire.calls import (
    Request,
    Welcome,
    cut_payloads,
    decode_answer,
    decode_answer_with_payloads,
    error_of,
    greeting,
)
from dovetail.wire.peer import Peer, PeerSettings

Result = TypeVar("Result")


class RemoteStorageNode:
    """See the module; `LocalStorageNode` is the same nearby."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        identity: str | None = None,
        settings: PeerSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Connects when first used; call it inside the event loop.

        `identity` is who must answer there, if that is known: an address can change hands.
        """
        self._loop = asyncio.get_running_loop()
        self.address = str(Address(host, port))
        self._identity = identity

        def connect() -> Peer:
            return Peer(
                host,
                port,
                greeting=greeting(self.address, CALLS.service, self._judge),
                client_id=client_id,
                settings=settings or PeerSettings(),
                rng=rng or random.SystemRandom(),
            )

        self._writes, self._reads = connect(), connect()
        #: The next frame of appends.
        self._heads: list[AppendHead] = []
        self._payloads: list[Buffer] = []
        self._answers: list[Answer] = []
        self._payload_bytes = 0

    @property
    def connected(self) -> bool:
        """Whether an append would leave at once; false before the first one."""
        return self._writes.connected

    # Appends

    def append(self, command: Append, answer: Answer) -> None:
        ledger, entry, size = command.ledger, command.entry, len(command.payload)
        if ledger < 0 or entry < 0 or command.term < 0 or command.confirmed < -1:
            error = _bad_numbers(
                f"entry {entry} of ledger {ledger}, term {command.term}, "
                f"confirmed {command.confirmed}"
            )
            self._loop.call_soon(answer, error)
            return
        if self._heads and self._payload_bytes + size > calls.APPEND_BYTES_MAX:
            self._send_appends()
        self._heads.append(AppendHead(ledger, entry, command.term, command.confirmed, size))
        self._payloads.append(command.payload)
        self._answers.append(answer)
        self._payload_bytes += size
        if len(self._heads) == calls.APPENDS_MAX:
            self._send_appends()
        elif len(self._heads) == 1:
            self._loop.call_soon(self._send_appends)

    def _send_appends(self) -> None:
        if not self._heads:  # A full frame has left before its turn.
            return
        request = CALLS.request(calls.Appends(self._heads), self._payloads, lost=Uncertain)
        answers = self._answers
        self._heads, self._payloads, self._answers = [], [], []
        self._payload_bytes = 0

        def resolve(data: memoryview) -> None:
            self._settle(answers, _outcomes(data, count=len(answers)))

        def reject(error: DovetailError) -> None:
            self._settle(answers, [error] * len(answers))

        try:
            self._writes.call(request, on_answer=resolve, on_error=reject)
        except DovetailError as error:
            self._loop.call_soon(reject, error)

    def _settle(self, answers: list[Answer], outcomes: list[DovetailError | None]) -> None:
        """Answers all; a defect of one caller does not touch the others."""
        for answer, outcome in zip(answers, outcomes, strict=True):
            try:
                answer(outcome)
            except Exception as error:  # noqa: BLE001 - the others must have their answers
                context = {"message": "the answer to an append met a defect", "exception": error}
                self._loop.call_exception_handler(context)

    # The others

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        if ledger < 0 or term < 0:
            raise _bad_numbers(f"ledger {ledger}, term {term}")

        message, kind = calls.FenceLedger(ledger, term), calls.LedgerFenced
        found = await self._ask(self._writes, message, Uncertain, partial(decode_answer, kind))
        return LedgerState(found.entry_last, found.confirmed, found.fenced)

    async def delete(self, ledger: LedgerId) -> None:
        if ledger < 0:
            raise _bad_numbers(f"ledger {ledger}")

        message, kind = calls.DeleteLedger(ledger), calls.LedgerDeleted
        await self._ask(self._writes, message, Uncertain, partial(decode_answer, kind))

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        """As the protocol says; one answer has at most `READ_BYTES_MAX`, whatever is asked for."""
        if ledger < 0 or first < 0 or last < -1:
            raise _bad_numbers(f"ledger {ledger}, entries {first} to {last}")

        def decode(data: memoryview) -> list[Entry] | DovetailError:
            entries = _entries(data, first)
            if isinstance(entries, list) and not 0 < len(entries) <= last - first + 1:
                raise ProtocolViolation(f"{len(entries)} entries, asked from {first} to {last}")
            return entries

        bytes_max = min(max(bytes_max, 0), calls.READ_BYTES_MAX)
        message = calls.ReadEntries(ledger, first, last, bytes_max)
        return await self._ask(self._reads, message, Unavailable, decode)

    async def read_for_recovery(self, ledger: LedgerId, entry: EntryId, term: Term) -> Entry | None:
        if ledger < 0 or entry < 0 or term < 0:
            raise _bad_numbers(f"entry {entry} of ledger {ledger}, term {term}")

        def decode(data: memoryview) -> list[Entry] | DovetailError:
            entries = _entries(data, entry)
            if isinstance(entries, list) and len(entries) > 1:
                raise ProtocolViolation(f"{len(entries)} entries, asked for entry {entry}")
            return entries

        message = calls.ReadForRecovery(ledger, entry, term)
        found = await self._ask(self._reads, message, Unavailable, decode)
        return found[0] if found else None

    async def ledgers(self) -> set[LedgerId]:
        message, kind = calls.ListLedgers(), calls.LedgersListed
        found = await self._ask(self._reads, message, Unavailable, partial(decode_answer, kind))
        return set(found.ledgers)

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        if ledger < 0 or first < 0 or last < -1:
            raise _bad_numbers(f"ledger {ledger}, entries {first} to {last}")

        def decode(data: memoryview) -> Held | DovetailError:
            found = decode_answer(calls.HeldFound, data)
            return found if isinstance(found, DovetailError) else _held(found, first, last)

        message = calls.AskHeld(ledger, first, last)
        return await self._ask(self._reads, message, Unavailable, decode)

    async def close(self) -> None:
        """Ends both connections; what is on its way is lost, later calls are `Unavailable`."""
        self._send_appends()
        await self._writes.close()
        await self._reads.close()

    async def _ask(
        self,
        peer: Peer,
        message: Request,
        lost: type[DovetailError],
        decode: Callable[[memoryview], Result | DovetailError],
    ) -> Result:
        return await peer.ask(CALLS.request(message, lost=lost), decode)

    def _judge(self, welcome: Welcome) -> DovetailError | None:
        """Why the node that answered is not to be talked to, if so."""
        if self._identity is None or welcome.identity == self._identity:
            return None
        return Unavailable(
            f"{self.address} is storage node {welcome.identity!r}, not {self._identity!r}"
        )


def _outcomes(data: memoryview, *, count: int) -> list[DovetailError | None]:
    found = decode_answer(calls.AppendOutcomes, data)
    if isinstance(found, DovetailError):
        return [found] * count
    if len(found.outcomes) != count:
        raise ProtocolViolation(f"{len(found.outcomes)} outcomes of {count} appends")
    return [None if failed is None else error_of(failed) for failed in found.outcomes]


def _entries(data: memoryview, first: EntryId) -> list[Entry] | DovetailError:
    """The entries of an answer, which must be those from `first` on."""
    found = decode_answer_with_payloads(calls.EntriesRead, data)
    if isinstance(found, DovetailError):
        return found
    message, payloads = found
    cut = cut_payloads(payloads, [head.payload_bytes for head in message.heads])
    entries: list[Entry] = []
    for expected, (head, payload) in enumerate(zip(message.heads, cut, strict=True), first):
        if head.entry != expected:
            raise ProtocolViolation(f"entry {head.entry} where {expected} was asked for")
        entries.append(Entry(head.entry, head.term, head.confirmed, payload))
    return entries


def _held(found: calls.HeldFound, first: EntryId, last: EntryId) -> Held:
    """The spans of an answer, which must be in order, apart, and of what was asked."""
    border = first - 2
    for span in found.spans:
        if not border + 2 <= span.first <= span.last <= last:
            raise ProtocolViolation(f"entries {span.first} to {span.last} out of order")
        border = span.last
    if found.next == NO_ENTRY:
        return Held(tuple(found.spans))
    if not max(border, first) < found.next <= last:
        raise ProtocolViolation(f"more entries from {found.next} on, asked from {first} to {last}")
    return Held(tuple(found.spans), found.next)


def _bad_numbers(what: str) -> InvalidInput:
    return InvalidInput(f"{what}: ids and terms cannot be negative")
