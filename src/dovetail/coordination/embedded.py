"""A coordinator inside one process, on one SQLite file.

Promise: all of `protocol`, for the tasks of one process; no other service has to run.

One task decides and commits. It takes all waiting requests, decides each in order against what
those before it left (`_keyspace.Draft`), writes the result in one SQLite transaction on the file's
own thread, and only then shows it: to readers, to watches, to the callers. While one group syncs,
the next one gathers, so all requests that arrive meanwhile share a sync.

    waiting --decide--> drafted --COMMIT--> shown, answered
                           |
                           +--no space-----> dropped; each is tried alone, answered `DiskFull`
                           +--other error--> dropped; `Uncertain` or `CoordinationDown`, and the
                                             coordinator goes out of service

Leases run on the monotonic clock. They end with the process: the file belongs to one process at a
time. A holder in another process that outlives it has lost its lease, and hears so when it asks.

Survives: a crash at any point. Leaves to others: more processes (`service.py` answers their calls
out of this one), more than one machine (etcd).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dovetail.background import keep_task, start_task
from dovetail.clock import Clock
from dovetail.coordination._history import History, size_of
from dovetail.coordination._journal import Journal, Loaded
from dovetail.coordination._keyspace import Draft, Keyspace
from dovetail.coordination._leases import LeaseTable
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
    DiskFull,
    DovetailError,
    LeaseLost,
    Throttled,
    Uncertain,
)
from dovetail.logging import get_logger

_log = get_logger("coordination")

#: How often leases are looked at, so how late their keys can go. Short against any sensible lease.
EXPIRY_INTERVAL_MS = 100
#: Most transactions in one commit, so that the decisions of a group hold the loop for some 10 ms.
GROUP_TRANSACTIONS_MAX = 1024
#: Lease ids of one opening lie together; a process grants fewer than this.
_LEASES_PER_OPENING = 2**32
_CLOSED = "the coordinator is closed"


@dataclass(frozen=True, slots=True)
class EmbeddedLimits:
    """What an embedded coordinator keeps at most."""

    #: Events kept for watches. A reader that is this far behind does better to read again.
    history_events_max: int = 20_000
    #: Bytes of keys and values in these events.
    history_bytes_max: int = 64 * 1024 * 1024
    #: Requests that wait for the disk; more are refused with `Throttled`.
    waiting_max: int = 50_000
    #: Leases that are alive; a process needs a few for each of its roles.
    leases_max: int = 100_000
    #: Size of the file; the keys in memory follow it. Beyond it writes raise `DiskFull`.
    file_bytes_max: int = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    decide: Callable[[Draft], Outcome]
    answer: asyncio.Future[Outcome]


@dataclass(frozen=True, slots=True)
class _Decided:
    waiting: _Waiting
    result: Outcome | LeaseLost
    changed: bool

    def settle(self, result: Outcome | DovetailError) -> None:
        if self.waiting.answer.done():
            return
        if isinstance(result, Outcome):
            self.waiting.answer.set_result(result)
        else:
            self.waiting.answer.set_exception(result)


class EmbeddedCoordinator:
    """The `Coordinator` of one process; made by `open`, an async context manager."""

    def __init__(
        self,
        journal: Journal,
        loaded: Loaded,
        *,
        clock: Clock,
        limits: EmbeddedLimits,
        executor: ThreadPoolExecutor,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._limits = limits
        self._executor = executor
        self._keyspace = Keyspace(loaded.items, revision=loaded.revision)
        self._leases = LeaseTable(first=LeaseId(loaded.openings * _LEASES_PER_OPENING))
        self._history = History(
            revision=loaded.revision,
            events_max=limits.history_events_max,
            bytes_max=limits.history_bytes_max,
        )
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._down: str | None = None
        self._released = False
        self._commits = 0
        self._committer = start_task(self._commit_waiting(), name="coordination/commit", vital=True)
        self._expiry = keep_task(self._expire, name="coordination/expiry")

    @classmethod
    async def open(
        cls, path: Path, *, clock: Clock, limits: EmbeddedLimits | None = None
    ) -> "EmbeddedCoordinator":
        """Opens the file, or makes it, and ends all leases of the process that had it before.

        Raises `CoordinationDown` if another process has it, `Damaged` if it is not as it was
        written, `InvalidSetting` if there can be none at this path.
        """
        limits = limits or EmbeddedLimits()
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dovetail-coordination")
        opening = executor.submit(Journal.open, path, file_bytes_max=limits.file_bytes_max)
        try:
            journal, loaded = await asyncio.wrap_future(opening)
        except BaseException:
            executor.submit(_abandon, opening)
            executor.shutdown(wait=False)
            raise
        return cls(journal, loaded, clock=clock, limits=limits, executor=executor)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def commits(self) -> int:
        """How many groups were synced to disk since the opening."""
        return self._commits

    async def get(self, key: str) -> KeyValue | None:
        self._check_up()
        check_key(key)
        return self._keyspace.get(key)

    async def range(self, prefix: str) -> Snapshot:
        self._check_up()
        check_prefix(prefix)
        return self._keyspace.range(prefix)

    async def transact(
        self, changes: Sequence[Change], *, conditions: Sequence[Unchanged] = ()
    ) -> Outcome:
        """Applies all changes if all conditions hold, else none; on disk when it returns.

        Raises, beside what the protocol says, `DiskFull` (nothing stored) and `Throttled`.
        """
        changes, conditions = tuple(changes), tuple(conditions)
        check_transaction(changes, conditions)
        return await self._request(lambda draft: draft.transact(changes, conditions))

    @asynccontextmanager
    async def watch(
        self, prefix: str, *, after: Revision
    ) -> AsyncIterator[AsyncIterator[tuple[WatchEvent, ...]]]:
        self._check_up()
        check_prefix(prefix)
        with self._history.watching(prefix, after=after) as watch:
            yield watch

    async def changes(
        self, prefix: str, *, after: Revision, wait_ms: int, bytes_max: int
    ) -> tuple[Revision, list[tuple[WatchEvent, ...]]]:
        """What a watch would show, for readers that ask: waits until there is something.

        Returns whole revisions in order, about `bytes_max` of them and at least one, or none after
        `wait_ms`; and the revision up to which nothing else below the prefix has changed.

        Raises as a watch.
        """
        self._check_up()
        check_prefix(prefix)
        with self._history.watching(prefix, after=after) as watch:
            found: list[tuple[WatchEvent, ...]] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    found.append(await anext(watch))
            held_bytes = sum(map(size_of, found))
            while found and held_bytes < bytes_max and (events := watch.at_once()):
                found.append(events)
                held_bytes += size_of(events)
            return watch.position, found

    async def grant(self, *, ttl_ms: int) -> LeaseId:
        self._check_up()
        check_ttl(ttl_ms)
        if len(self._leases) >= self._limits.leases_max:
            raise Throttled(
                f"{len(self._leases)} leases are alive, the most that are granted; try again later"
            )
        return self._leases.grant(ttl_ms=ttl_ms, now_ms=self._clock.monotonic_ms())

    async def keep_alive(self, lease: LeaseId) -> None:
        self._check_up()
        if not self._leases.renew(lease, now_ms=self._clock.monotonic_ms()):
            raise LeaseLost(f"lease {lease} cannot be kept alive: it has ended")

    async def revoke(self, lease: LeaseId) -> None:
        await self._request(lambda draft: draft.end_lease(lease))

    async def end_expired(self) -> None:
        """Ends the leases whose time is up, each in one revision. A task calls it all the time."""
        expired = self._leases.expired(now_ms=self._clock.monotonic_ms())
        await asyncio.gather(*(self.revoke(lease) for lease in expired))

    async def close(self) -> None:
        """Finishes the commit under way, refuses what still waits, releases the file."""
        self._take_out(_CLOSED)
        self._expiry.cancel()
        await asyncio.wait({self._committer, self._expiry})
        if self._released:
            return
        self._released = True
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._journal.close)
        finally:
            self._executor.shutdown(wait=False)

    async def _request(self, decide: Callable[[Draft], Outcome]) -> Outcome:
        self._check_up()
        if len(self._waiting) >= self._limits.waiting_max:
            raise Throttled(f"{len(self._waiting)} requests already wait for the coordination file")
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(decide, answer))
        self._wake.set()
        return await answer

    async def _commit_waiting(self) -> None:
        group: list[_Waiting] = []
        try:
            while self._down is None:
                self._wake.clear()
                while self._waiting:
                    count = min(len(self._waiting), GROUP_TRANSACTIONS_MAX)
                    group = [self._waiting.popleft() for _ in range(count)]
                    await self._commit(group)
                if self._down is None:
                    await self._wake.wait()
            if self._down != _CLOSED:
                raise CoordinationDown(self._down)
        except BaseException as error:
            self._stop(group, error)
            raise

    async def _commit(self, group: Sequence[_Waiting]) -> None:
        """Decides the group, makes it durable, shows it, answers."""
        now_ms = self._clock.monotonic_ms()
        draft = Draft(self._keyspace, alive=lambda lease: self._leases.alive(lease, now_ms=now_ms))
        decided = [_decide(waiting, draft) for waiting in group if not waiting.answer.done()]

        try:
            await self._store(draft)
        except DiskFull as error:
            if len(decided) == 1:
                decided[0].settle(error)
                return
            for one in decided:
                if self._down is None:
                    await self._commit([one.waiting])
                else:
                    one.settle(CoordinationDown(self._down))
        except (CoordinationDown, Uncertain) as error:
            self._fail(decided, error)
        else:
            self._show(draft)
            for one in decided:
                one.settle(one.result)

    async def _store(self, draft: Draft) -> None:
        if not draft.events:
            return
        await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self._journal.commit(draft.rows, revision=draft.revision)
        )
        self._commits += 1

    def _show(self, draft: Draft) -> None:
        self._keyspace.absorb(draft)
        for lease in draft.ended:
            self._leases.remove(lease)
        for events in draft.events:
            self._history.append(events)

    def _fail(self, decided: Sequence[_Decided], error: CoordinationDown | Uncertain) -> None:
        """Answers as is true: only what would have changed something can be uncertain."""
        self._take_out(str(error))
        for one in decided:
            kind = type(error) if one.changed else CoordinationDown
            one.settle(kind(str(error)))

    def _stop(self, group: Sequence[_Waiting], error: BaseException) -> None:
        """A broken invariant, or a cancelled task: no caller may wait for it for ever."""
        reason = f"the coordinator stopped: {error!r}"
        self._take_out(reason)
        for waiting in group:
            if not waiting.answer.done():
                waiting.answer.set_exception(Uncertain(reason))

    def _take_out(self, reason: str) -> None:
        """From now on every call raises `CoordinationDown`, also those that wait."""
        if self._down is not None:
            return
        self._down = reason
        self._history.end(reason)
        for waiting in self._waiting:
            if not waiting.answer.done():
                waiting.answer.set_exception(CoordinationDown(reason))
        self._waiting.clear()
        self._wake.set()

    def _check_up(self) -> None:
        if self._down is not None:
            raise CoordinationDown(self._down)

    async def _expire(self) -> None:
        while self._down is None:
            await asyncio.sleep(EXPIRY_INTERVAL_MS / 1000)
            try:
                await self.end_expired()
            except DovetailError as error:
                _log.warning("cannot end expired leases yet", error=str(error))


def _abandon(opening: Future[tuple[Journal, Loaded]]) -> None:
    """Closes what a cancelled caller opened, so that the file is not left locked behind it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()


def _decide(waiting: _Waiting, draft: Draft) -> _Decided:
    before = draft.revision
    try:
        result: Outcome | LeaseLost = waiting.decide(draft)
    except LeaseLost as error:
        result = error
    return _Decided(waiting, result, changed=draft.revision != before)
