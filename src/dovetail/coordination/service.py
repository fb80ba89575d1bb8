"""Answers the calls of nodes that share this process's embedded coordination.

Each call is one call of the `EmbeddedCoordinator`, so all its promises hold for the callers too. A
watch is a chain of questions: each names the revision that its caller has come to and is answered
with what follows, so nothing is kept here between two of them, and a question whose answer was lost
can be asked again.

Not here: which nodes may call; the listener demands a login first.
"""

from dovetail.coordination import calls
from dovetail.coordination.embedded import EmbeddedCoordinator
from dovetail.coordination.protocol import LeaseId, Revision
from dovetail.wire.calls import Answer, Request
from dovetail.wire.service import CallService


class CoordinationService(CallService):
    """A `Dispatch` for the calls to one embedded coordinator."""

    def __init__(self, coordinator: EmbeddedCoordinator) -> None:
        super().__init__(calls.CALLS)
        self._coordinator = coordinator

    async def _handle(self, message: Request) -> Answer:
        match message:
            case calls.GetKey(key):
                item = await self._coordinator.get(key)
                return calls.KeyFound(None if item is None else calls.packed_item(item))
            case calls.RangeKeys(prefix):
                found = await self._coordinator.range(prefix)
                return calls.KeysFound(found.revision, list(map(calls.packed_item, found.items)))
            case calls.Transact(changes, conditions):
                outcome = await self._coordinator.transact(
                    [change.unpacked() for change in changes],
                    conditions=[condition.unpacked() for condition in conditions],
                )
                return calls.Transacted(outcome.applied, outcome.revision)
            case calls.AwaitChanges(prefix, after, wait_ms):
                return await self._changes(prefix, Revision(after), wait_ms)
        return await self._handle_lease(message)

    async def _handle_lease(self, message: Request) -> Answer:
        match message:
            case calls.GrantLease(ttl_ms):
                return calls.LeaseGranted(await self._coordinator.grant(ttl_ms=ttl_ms))
            case calls.KeepLease(lease):
                await self._coordinator.keep_alive(LeaseId(lease))
                return calls.Done()
            case calls.RevokeLease(lease):
                await self._coordinator.revoke(LeaseId(lease))
                return calls.Done()
        raise AssertionError(f"no handler for {message!r}")

    async def _changes(self, prefix: str, after: Revision, wait_ms: int) -> calls.Changed:
        position, revisions = await self._coordinator.changes(
            prefix, after=after, wait_ms=wait_ms, bytes_max=calls.CHANGES_BYTES_MAX
        )
        return calls.Changed(
            position,
            [
                [calls.Event(event.key, event.value, event.revision) for event in events]
                for events in revisions
            ],
        )
