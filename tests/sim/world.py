"""A node's log in one thread: virtual time, a faulty disk, and a coordination service in memory.

The parts under test are the real ones (`Log`, `Partition`, `LedgerStore`); the edges are simulated:
time jumps to the next timer, the disk is a `FaultyDisk`, and a transaction of the coordination
service takes effect at once but its answer comes a little later, so that a crash can fall between.
"""

import asyncio
import contextlib
import random
import selectors
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from dovetail.coordination import protocol
from dovetail.errors import DovetailError, EntryUnknown, LeaseLost, LedgerUnknown
from dovetail.storage.disk.commands import Append, Command, DeleteLedger, Fence
from dovetail.storage.disk.commands import Outcome as StoreOutcome
from dovetail.storage.disk.store import LedgerStore
from dovetail.storage.held import Held
from dovetail.storage.identifiers import Entry, EntryId, LedgerId, LedgerState, Term


class PowerCut(Exception):
    """The lights go out in the middle of a system call."""


class _JumpingSelector(selectors.SelectSelector):
    """Does not wait: moves the clock to where the wait would have ended."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("the simulation waits for ever")
        self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only by waiting."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """What a thread would do is done at once: no real time may pass, and nothing may race."""
        done = self.create_future()
        done.set_result(func(*args))
        return done

    def time(self) -> float:
        return self._jumping.now


class VirtualClock:
    """The loop's time, for the parts under test."""

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)

    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


class MemoryCoordinator:
    """A coordination service in memory; it outlives the nodes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._keys: dict[str, protocol.KeyValue] = {}
        self._revision = 0
        self._history: list[tuple[protocol.WatchEvent, ...]] = []
        #: In order, so that a seed replays.
        self._watches: dict[asyncio.Event, None] = {}
        self._leases: dict[protocol.LeaseId, tuple[int, asyncio.TimerHandle]] = {}
        self._leases_given = 0

    async def get(self, key: str) -> protocol.KeyValue | None:
        await asyncio.sleep(0)
        return self._keys.get(key)

    async def range(self, prefix: str) -> protocol.Snapshot:
        await asyncio.sleep(0)
        found = sorted(k for k in self._keys if k.startswith(prefix))
        return protocol.Snapshot(
            protocol.Revision(self._revision), tuple(self._keys[k] for k in found)
        )

    async def transact(
        self, changes: Sequence[protocol.Change], *, conditions: Sequence[protocol.Unchanged] = ()
    ) -> protocol.Outcome:
        await asyncio.sleep(self._rng.random() * 0.002)
        outcome = self.apply(changes, conditions)
        await asyncio.sleep(self._rng.random() * 0.002)
        return outcome

    def apply(
        self, changes: Sequence[protocol.Change], conditions: Sequence[protocol.Unchanged]
    ) -> protocol.Outcome:
        """The transaction itself, at one moment."""
        for condition in conditions:
            known = self._keys.get(condition.key)
            if (known.revision if known else protocol.ABSENT) != condition.revision:
                return protocol.Outcome(False, protocol.Revision(self._revision))
        changes = [c for c in changes if isinstance(c, protocol.Put) or c.key in self._keys]
        for change in changes:
            if isinstance(change, protocol.Put) and change.lease not in (None, *self._leases):
                raise LeaseLost(f"lease {change.lease} has ended")
        if not changes:
            return protocol.Outcome(True, protocol.Revision(self._revision))
        self._revision += 1
        for change in changes:
            if isinstance(change, protocol.Delete):
                del self._keys[change.key]
            else:
                known = self._keys.get(change.key)
                created = known.created if known else protocol.Revision(self._revision)
                self._keys[change.key] = protocol.KeyValue(
                    change.key,
                    change.value,
                    protocol.Revision(self._revision),
                    created,
                    change.lease,
                )
        self._tell(changes)
        return protocol.Outcome(True, protocol.Revision(self._revision))

    def _tell(self, changes: Sequence[protocol.Change]) -> None:
        self._history.append(
            tuple(
                protocol.WatchEvent(
                    change.key,
                    change.value if isinstance(change, protocol.Put) else None,
                    protocol.Revision(self._revision),
                )
                for change in changes
            )
        )
        for watch in self._watches:
            watch.set()

    @contextlib.asynccontextmanager
    async def watch(
        self, prefix: str, *, after: protocol.Revision
    ) -> AsyncIterator[AsyncIterator[tuple[protocol.WatchEvent, ...]]]:
        yield self._events(prefix, after)

    async def _events(
        self, prefix: str, after: protocol.Revision
    ) -> AsyncIterator[tuple[protocol.WatchEvent, ...]]:
        woken = asyncio.Event()
        self._watches[woken] = None
        try:
            # Each change has one revision, from 1 on: its place in the history, plus one.
            at = int(after)
            while True:
                for events in self._history[at:]:
                    at += 1
                    await asyncio.sleep(self._rng.random() * 0.002)
                    mine = tuple(event for event in events if event.key.startswith(prefix))
                    if mine:
                        yield mine
                woken.clear()
                if at == len(self._history):
                    await woken.wait()
        finally:
            self._watches.pop(woken)

    async def grant(self, *, ttl_ms: int) -> protocol.LeaseId:
        await asyncio.sleep(0)
        self._leases_given += 1
        lease = protocol.LeaseId(self._leases_given)
        self._leases[lease] = (ttl_ms, self._end_in(lease, ttl_ms))
        return lease

    async def keep_alive(self, lease: protocol.LeaseId) -> None:
        await asyncio.sleep(0)
        if lease not in self._leases:
            raise LeaseLost(f"lease {lease} has ended")
        ttl_ms, ending = self._leases[lease]
        ending.cancel()
        self._leases[lease] = (ttl_ms, self._end_in(lease, ttl_ms))

    async def revoke(self, lease: protocol.LeaseId) -> None:
        await asyncio.sleep(0)
        self._end(lease)

    def _end_in(self, lease: protocol.LeaseId, ttl_ms: int) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(ttl_ms / 1000, self._end, lease)

    def _end(self, lease: protocol.LeaseId) -> None:
        """The lease and its keys go, in one revision."""
        if lease in self._leases:
            self._leases.pop(lease)[1].cancel()
            self.apply(
                [protocol.Delete(key) for key, v in self._keys.items() if v.lease == lease], []
            )

    async def close(self) -> None:
        pass


class SimStorageNode:
    """A `StorageNode` that commits groups after a random delay, until the power is cut."""

    def __init__(self, store: LedgerStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Command, Callable[[StoreOutcome], None]]] = []
        #: Done when the power is cut; nothing happens after that.
        self.dead: asyncio.Future[None] = self._loop.create_future()

    def append(self, command: Append, answer: Callable[[DovetailError | None], None]) -> None:
        self._submit(command, answer)  # type: ignore[arg-type]

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        state = await self._ask(Fence(ledger, term))
        assert isinstance(state, LedgerState)
        return state

    async def delete(self, ledger: LedgerId) -> None:
        await self._ask(DeleteLedger(ledger))

    async def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        await asyncio.sleep(0)
        return self._store.read(ledger, first, last=last, bytes_max=bytes_max)

    async def read_for_recovery(self, ledger: LedgerId, entry: EntryId, term: Term) -> Entry | None:
        await self.fence(ledger, term)
        try:
            return (await self.read(ledger, entry, last=entry, bytes_max=1))[0]
        except (EntryUnknown, LedgerUnknown):
            return None

    async def ledgers(self) -> set[LedgerId]:
        return self._store.ledgers()

    async def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        await asyncio.sleep(0)
        return self._store.held(ledger, first=first, last=last)

    def _submit(self, command: Command, answer: Callable[[StoreOutcome], None]) -> None:
        if not self._waiting:
            self._loop.call_later(self._rng.random() * 0.003, self._commit)
        self._waiting.append((command, answer))

    async def _ask(self, command: Command) -> StoreOutcome:
        future: asyncio.Future[StoreOutcome] = self._loop.create_future()
        self._submit(command, lambda o: None if future.done() else future.set_result(o))
        outcome = await future
        if isinstance(outcome, DovetailError):
            raise outcome
        return outcome

    def _commit(self) -> None:
        if self.dead.done():
            return
        group, self._waiting = self._waiting, []
        try:
            outcomes = self._store.commit([command for command, _ in group])
            if self._rng.random() < 0.2:
                self._store.compact_step()
        except PowerCut:
            self.dead.set_result(None)
            return
        for (_, answer), outcome in zip(group, outcomes, strict=True):
            answer(outcome)


async def end_all_tasks() -> None:
    """Ends what a dead node left running."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
