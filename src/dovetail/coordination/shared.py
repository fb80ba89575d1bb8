"""A coordinator that another process of this machine shares: its embedded one, over private calls.

Promise: all of `protocol`, for every process that uses the same node. That node decides; this
module adds the way there, and an honest answer when something was lost:

- `Uncertain` when a transaction was sent and its answer did not come; `CoordinationDown` when
  certainly nothing was changed, or a read or a lease call was not answered.
- A watch asks for what follows its position, again and again. A question that was lost is asked
  again, so a watch outlives its connection; a node that was away for longer ends it.

A node answers each connection in order. So questions that wait have connections of their own: each
watch, and the leases, which must not wait behind a transaction that waits for the disk.

Survives: a lost connection. Leaves to others: the end of that node, which ends what it has granted;
whoever starts a node with this coordinator also ends it with the other one.
"""

import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from dovetail.addresses import Address
from dovetail.coordination import calls
from dovetail.coordination._limits import check_key, check_prefix, check_transaction, check_ttl
from dovetail.coordination.protocol import (
    Change,
    KeyValue,
    LeaseId,
    Outcome,
    Revision,
    Snapshot,
    Unchanged,
    WatchEvent,
)
from dovetail.errors import (
    CoordinationDown,
    DovetailError,
    Unavailable,
    Uncertain,
    Unreachable,
)
from dovetail.wire.calls import Answered, Request, decode_answer, greeting
from dovetail.wire.login import NOBODY, ClientLogin
from dovetail.wire.peer import Peer, PeerSettings

#: Largest answer: everything that the file of an embedded coordinator can hold.
ANSWER_BYTES_MAX = 640 * 1024 * 1024

#: Questions of a watch in a row that nobody answered; after them its reader has to read again.
_LOST_MAX = 3

_CLOSED = "the coordinator is closed"


class SharedCoordinator:
    """The `Coordinator` of a process beside the one that has the file."""

    def __init__(self, address: Address, *, client_id: str, login: ClientLogin = NOBODY) -> None:
        """Connects when first used; call it inside the event loop."""
        self._address = address
        self._client_id = client_id
        self._settings = PeerSettings(answer_bytes_max=ANSWER_BYTES_MAX, login=login)
        self._closed = False
        self._reads, self._writes, self._leases = (self.connect() for _ in range(3))
        self._watches: set[_Watch] = set()

    @classmethod
    async def open(
        cls, address: Address, *, client_id: str, login: ClientLogin = NOBODY
    ) -> "SharedCoordinator":
        """As the constructor, and reads once. Raises `CoordinationDown` without an answer."""
        coordinator = cls(address, client_id=client_id, login=login)
        try:
            await coordinator.get("/")
        except BaseException:
            await coordinator.close()
            raise
        return coordinator

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def connect(self) -> Peer:
        """A connection of its own, made when it is first used."""
        return Peer(
            self._address.host,
            self._address.port,
            greeting=greeting(str(self._address), calls.CALLS.service),
            client_id=self._client_id,
            settings=self._settings,
            rng=random.SystemRandom(),
        )

    async def get(self, key: str) -> KeyValue | None:
        check_key(key)
        found = await self._ask(self._reads, calls.GetKey(key), calls.KeyFound)
        return None if found.item is None else found.item.unpacked()

    async def range(self, prefix: str) -> Snapshot:
        check_prefix(prefix)
        found = await self._ask(self._reads, calls.RangeKeys(prefix), calls.KeysFound)
        return Snapshot(Revision(found.revision), tuple(item.unpacked() for item in found.items))

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        """Applies all changes if all conditions hold, else none; on disk when it returns.

        Raises, beside what the protocol says, `DiskFull` (nothing stored) and `Throttled`.
        """
        changes, conditions = tuple(changes), tuple(conditions)
        check_transaction(changes, conditions)
        message = calls.Transact(
            list(map(calls.packed_change, changes)),
            [calls.Guard(condition.key, condition.revision) for condition in conditions],
        )
        found = await self._ask(self._writes, message, calls.Transacted, lost=Uncertain)
        return Outcome(found.applied, Revision(found.revision))

    @asynccontextmanager
    async def watch(
        self, prefix: str, *, after: Revision
    ) -> AsyncIterator[AsyncIterator[tuple[WatchEvent, ...]]]:
        self._check_open()
        check_prefix(prefix)
        watch = _Watch(self, prefix, after=after)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            await watch.end()

    async def grant(self, *, ttl_ms: int) -> LeaseId:
        """A new lease. One whose answer is lost is used by nobody, and ends by itself."""
        check_ttl(ttl_ms)
        found = await self._ask(self._leases, calls.GrantLease(ttl_ms), calls.LeaseGranted)
        return LeaseId(found.lease)

    async def keep_alive(self, lease: LeaseId) -> None:
        await self._ask(self._leases, calls.KeepLease(lease), calls.Done)

    async def revoke(self, lease: LeaseId) -> None:
        await self._ask(self._writes, calls.RevokeLease(lease), calls.Done)

    async def close(self) -> None:
        """Ends the connections; leases live on."""
        self._closed = True
        for watch in tuple(self._watches):
            await watch.end()
        for peer in (self._reads, self._writes, self._leases):
            await peer.close()

    async def _ask(
        self,
        peer: Peer,
        message: Request,
        kind: type[Answered],
        *,
        lost: type[DovetailError] = CoordinationDown,
    ) -> Answered:
        self._check_open()
        return await ask(peer, message, kind, lost=lost)

    def _check_open(self) -> None:
        if self._closed:
            raise CoordinationDown(_CLOSED)


async def ask(
    peer: Peer, message: Request, kind: type[Answered], *, lost: type[DovetailError]
) -> Answered:
    """The answer; what was certainly not sent raises `CoordinationDown`."""
    try:
        return await peer.ask(calls.CALLS.request(message, lost=lost), partial(decode_answer, kind))
    except Unavailable as error:
        if type(error) in (Unavailable, Unreachable):
            raise CoordinationDown(str(error)) from error
        raise


class _Watch:
    """The iterator that a watch gives its reader; it asks when its reader does."""

    def __init__(self, coordinator: SharedCoordinator, prefix: str, *, after: Revision) -> None:
        self._prefix = prefix
        self._position = after
        self._peer = coordinator.connect()
        self._ready: deque[tuple[WatchEvent, ...]] = deque()
        self._lost = 0
        self._ended = False

    def __aiter__(self) -> "_Watch":
        return self

    async def __anext__(self) -> tuple[WatchEvent, ...]:
        while not self._ready:
            await self._ask()
        return self._ready.popleft()

    async def end(self) -> None:
        """The reader gets `CoordinationDown`."""
        self._ended = True
        self._ready.clear()
        await self._peer.close()

    async def _ask(self) -> None:
        if self._ended:
            raise CoordinationDown(_CLOSED)
        message = calls.AwaitChanges(self._prefix, self._position, calls.WAIT_MS_MAX)
        try:
            found = await ask(self._peer, message, calls.Changed, lost=Unavailable)
        except CoordinationDown:
            self._lost += 1
            if self._ended or self._lost >= _LOST_MAX:
                raise
            return

        # Both in one turn: a reader that is cancelled while it waits has lost nothing.
        self._lost = 0
        self._position = Revision(found.position)
        self._ready.extend(
            tuple(event.unpacked() for event in events) for events in found.revisions
        )
