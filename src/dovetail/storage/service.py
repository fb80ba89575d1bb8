"""The door of a storage node: private requests in, a `StorageNode` behind it.

Appends of one frame are all begun at once, so that they share a group commit, and are answered
together when each has its outcome. Everything is pipelined: the next frame is begun while one waits
for the disk. Appends are begun in the order in which they came; other requests have no order among
each other, because whoever needs one waits for the answer.

Bytes: the frame of appends counts as held until the last of its entries is down, also when who
asked is gone by then, because the payloads are slices of it. Answers to reads are bounded one by
one (`READ_BYTES_MAX`); the door bounds how many there are.

Promise: a frame that does not check has no effect at all, and its connection is closed.
Not here: which nodes may ask; the door asks for a login before it comes to this.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Unavailable
from dovetail.kafka.codec.headers import decode_header
from dovetail.storage import NO_ENTRY, Entry, EntryId, StorageNode
from dovetail.storage import calls as private
from dovetail.storage.calls import AppendHead, Failure, PrivateAnswer, PrivateKey, PrivateRequest
from dovetail.wire import Connection, PipelinedReply, Reply

_KEYS = frozenset(PrivateKey)
_API_KEY_BYTES = 2

_Outcome = tuple[PrivateAnswer, Sequence[Buffer]]


def is_private(frame: memoryview) -> bool:
    """Whether a frame is a private request, for whoever stands at the door."""
    return int.from_bytes(frame[:_API_KEY_BYTES], "big", signed=True) >= private.PRIVATE_KEY_FIRST


class StorageService:
    """A `Dispatch` for the private requests to one storage node."""

    def __init__(self, node: StorageNode, *, identity: str) -> None:
        """`identity` tells this node from any other that may listen here one day."""
        self._node = node
        self._identity = identity

    def __call__(self, connection: Connection, frame: memoryview) -> Reply:
        header, start = decode_header(frame)
        if header.api_key not in _KEYS:
            raise ProtocolViolation(f"private request {header.api_key} is not known here")
        key = PrivateKey(header.api_key)
        if header.api_version != private.VERSION and key is not PrivateKey.HELLO:
            raise ProtocolViolation(
                f"private request {key.name} in version {header.api_version}; "
                f"this node speaks {private.VERSION}"
            )
        message, payloads = private.decode_request(private.REQUESTS[key], frame[start:])
        if isinstance(message, private.Appends):
            return self._append(header.correlation_id, message.heads, payloads)
        if payloads:
            raise ProtocolViolation(f"{len(payloads)} bytes behind a request {key.name}")
        if isinstance(message, private.Hello):
            welcome = private.Welcome(private.VERSION, self._identity)
            return private.encode_answer(header.correlation_id, welcome)
        answer = self._answered(header.correlation_id, message)
        return PipelinedReply(asyncio.get_running_loop().create_task(answer))

    def _append(
        self, correlation_id: int, heads: list[AppendHead], payloads: memoryview
    ) -> PipelinedReply:
        cut = private.cut_payloads(payloads, [head.payload_bytes for head in heads])
        group = _Appending(correlation_id, len(heads))
        for at, (head, payload) in enumerate(zip(heads, cut, strict=True)):
            self._node.append(
                head.ledger,
                head.entry,
                term=head.term,
                confirmed=head.confirmed,
                payload=payload,
                answer=partial(group.settle, at),
            )
        return PipelinedReply(group.answered, group.released)

    async def _answered(self, correlation_id: int, message: PrivateRequest) -> list[Buffer]:
        try:
            answer, payloads = await self._handle(message)
        except DovetailError as error:
            return private.encode_answer(correlation_id, private.failure_of(error))
        except OSError as error:
            failure = private.failure_of(Unavailable(f"the disk of the storage node: {error}"))
            return private.encode_answer(correlation_id, failure)
        return private.encode_answer(correlation_id, answer, payloads)

    async def _handle(self, message: PrivateRequest) -> _Outcome:
        match message:
            case private.FenceLedger(ledger, term):
                state = await self._node.fence(ledger, term)
                return private.LedgerFenced(state.entry_last, state.confirmed, state.fenced), ()
            case private.ReadEntries(ledger, first, last, bytes_max):
                entries = await self._node.read(
                    ledger,
                    first,
                    last=EntryId(min(last, first + private.READ_ENTRIES_MAX - 1)),
                    bytes_max=min(bytes_max, private.READ_BYTES_MAX),
                )
                return _read(entries)
            case private.ReadForRecovery(ledger, entry, term):
                found = await self._node.read_for_recovery(ledger, entry, term)
                return _read([] if found is None else [found])
            case private.DeleteLedger(ledger):
                await self._node.delete(ledger)
                return private.LedgerDeleted(), ()
            case private.ListLedgers():
                return private.LedgersListed(sorted(await self._node.ledgers())), ()
            case private.AskHeld(ledger, first, last):
                held = await self._node.held(ledger, first=first, last=last)
                more = NO_ENTRY if held.next is None else held.next
                return private.HeldTold(list(held.spans), more), ()
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
            self._outcomes[at] = private.failure_of(error)
        self._left -= 1
        if self._left:
            return
        self.released.set_result(None)
        if not self.answered.done():  # The door cancels it when who asked is gone.
            outcomes = private.AppendOutcomes(self._outcomes)
            self.answered.set_result(private.encode_answer(self._correlation_id, outcomes))


def _read(entries: list[Entry]) -> _Outcome:
    heads = [
        private.EntryHead(entry.entry, entry.term, entry.confirmed, len(entry.payload))
        for entry in entries
    ]
    return private.EntriesRead(heads), [entry.payload for entry in entries]
