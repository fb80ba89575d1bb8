"""Timelines in memory: the fake that users test with, and the model that the stores are held to.

The same promises as every store but one: nothing is on a disk. Written for the reader: each command
is a loop over plain objects.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from dovetail.errors import NotFound
from dovetail.timeline.engine.schedule import Firing, Schedule
from dovetail.timeline.message import (
    BatchId,
    Counts,
    Extension,
    Handle,
    Inserted,
    Leased,
    MessageId,
    NewMessage,
    Release,
    Shown,
    State,
    Status,
    TimelineId,
    Version,
)
from dovetail.timeline.stores.outcomes import REASON_ENDED
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult, TimelineStore, Trimmed


@dataclass(slots=True)
class _Row:
    """A message, or a dead letter (`died_ms` is set)."""

    id: MessageId
    message: NewMessage
    bucket: int
    visible_ms: int
    due_ms: int
    version: int = 0
    attempts: int = 0
    holder: str | None = None
    reason: str = ""
    died_ms: int = 0

    def free(self, now_ms: int) -> bool:
        return self.holder is None or self.visible_ms <= now_ms

    def shown(self, now_ms: int, state: State | None = None) -> Shown:
        if state is None:
            state = State.DUE
            if self.visible_ms > now_ms:
                state = State.WAITING if self.holder is None else State.LEASED

        message = self.message
        return Shown(
            self.id,
            Version(self.version),
            state,
            self.due_ms,
            self.visible_ms if state is not State.DEAD else self.died_ms,
            self.attempts,
            message.priority,
            self.bucket,
            message.body,
            message.headers,
            message.key,
            self.holder if state is not State.DEAD else None,
            self.reason,
            self.died_ms,
        )

    def leased(self) -> Leased:
        message = self.message
        return Leased(
            self.id,
            Version(self.version),
            self.due_ms,
            self.visible_ms,
            self.attempts,
            message.priority,
            self.bucket,
            message.body,
            message.headers,
            message.key,
        )


@dataclass(slots=True)
class MemoryStore:
    """A `TimelineStore`; see the module."""

    clock: Callable[[], int]
    _rows: dict[int, _Row] = field(default_factory=dict)
    _dead: dict[int, _Row] = field(default_factory=dict)
    _schedules: dict[str, Schedule] = field(default_factory=dict)
    _batches: dict[tuple[int, int], tuple[list[Inserted], int]] = field(default_factory=dict)
    _id_next: int = 1

    # Producers

    async def insert(
        self,
        messages: Sequence[NewMessage],
        *,
        buckets: Sequence[int],
        now_ms: int,
        batch: BatchId | None = None,
    ) -> list[Inserted]:
        name = None if batch is None else (batch.producer, batch.sequence)
        if name is not None and name in self._batches:
            return self._batches[name][0]
        outcomes = [self._insert(*pair) for pair in zip(messages, buckets, strict=True)]
        if name is not None:
            self._batches[name] = (outcomes, now_ms)
        return outcomes

    def _insert(self, message: NewMessage, bucket: int) -> Inserted:
        taken_by = self._by_key(message.key)
        identity = MessageId(self._id_next)
        self._id_next += 1
        if taken_by is not None:
            return Inserted(Status.EXISTS, taken_by.id)
        self._rows[identity] = _Row(identity, message, bucket, message.due_ms, message.due_ms)
        return Inserted(Status.OK, identity)

    def _by_key(self, key: str | None) -> _Row | None:
        if key is None:
            return None
        return next((row for row in self._rows.values() if row.message.key == key), None)

    async def cancel(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Status]:
        statuses = [self._unheld(identity, now_ms) for identity in ids]
        for identity, status in zip(ids, statuses, strict=True):
            if status is Status.OK:
                self._rows.pop(identity, None)
        return statuses

    async def move(self, moves: Sequence[tuple[MessageId, int]], *, now_ms: int) -> list[Status]:
        statuses = []
        for identity, due_ms in moves:
            status = self._unheld(identity, now_ms)
            if status is Status.OK:
                row = self._rows[identity]
                row.visible_ms = row.due_ms = due_ms
                row.version += 1
                row.holder = None
            statuses.append(status)
        return statuses

    def _unheld(self, identity: MessageId, now_ms: int) -> Status:
        row = self._rows.get(identity)
        if row is None:
            return Status.GONE
        return Status.OK if row.free(now_ms) else Status.LEASED

    async def purge(self, *, now_ms: int, limit: int) -> int:
        free = [row.id for row in self._in_order() if row.free(now_ms)][:limit]
        for identity in free:
            del self._rows[identity]
        return len(free)

    # Consumers

    async def lease(
        self, asks: Sequence[LeaseAsk], *, now_ms: int, attempts_max: int
    ) -> LeaseResult:
        died = 0
        leased = []
        for ask in asks:
            taken: list[Leased] = []
            for row in self._in_order():
                if len(taken) == ask.limit or row.visible_ms > ask.horizon_ms:
                    break
                if not _in_buckets(ask, row.bucket) or not row.free(now_ms):
                    continue
                if row.attempts >= attempts_max:
                    row.version += 1
                    self._bury(row, REASON_ENDED, now_ms)
                    died += 1
                    continue
                row.visible_ms = max(row.visible_ms, now_ms) + ask.lease_ms
                row.version += 1
                row.attempts += 1
                row.holder = ask.consumer
                taken.append(row.leased())
            taken.sort(key=lambda item: (-item.priority, item.due_ms, item.id))
            leased.append(tuple(taken))

        horizon_ms = max((ask.horizon_ms for ask in asks), default=now_ms)
        later = [row.visible_ms for row in self._rows.values() if row.visible_ms > horizon_ms]
        ends = [
            row.visible_ms
            for row in self._rows.values()
            if row.holder is not None and now_ms < row.visible_ms <= horizon_ms
        ]
        return LeaseResult(tuple(leased), died, min(later, default=None), min(ends, default=None))

    def _in_order(self) -> list[_Row]:
        return sorted(self._rows.values(), key=lambda row: (row.visible_ms, row.id))

    def _bury(self, row: _Row, reason: str, now_ms: int) -> None:
        row.holder, row.reason, row.died_ms = None, reason, now_ms
        self._dead[row.id] = self._rows.pop(row.id)

    async def extend(self, extensions: Sequence[Extension]) -> list[Status]:
        statuses = []
        for extension in extensions:
            status = self._held(extension.handle)
            if status is Status.OK:
                self._rows[extension.handle.id].visible_ms = extension.until_ms
            statuses.append(status)
        return statuses

    def _held(self, handle: Handle) -> Status:
        row = self._rows.get(handle.id)
        if row is None:
            return Status.GONE
        held = row.version == handle.version and row.holder is not None
        return Status.OK if held else Status.STALE

    async def release(
        self, releases: Sequence[Release], *, now_ms: int, attempts_max: int
    ) -> list[Status]:
        statuses = []
        for item in releases:
            status = self._held(item.handle)
            if status is Status.OK:
                row = self._rows[item.handle.id]
                row.visible_ms = item.due_ms
                row.version += 1
                row.holder = None
                row.attempts -= 0 if item.counted else 1
                if item.counted and row.attempts >= item.attempts_max(attempts_max):
                    self._bury(row, item.reason, now_ms)
                    status = Status.DEAD
            statuses.append(status)
        return statuses

    async def delete(self, handles: Sequence[Handle]) -> list[Status]:
        statuses = [self._held(handle) for handle in handles]
        for handle, status in zip(handles, statuses, strict=True):
            if status is Status.OK:
                self._rows.pop(handle.id, None)
        return statuses

    async def take_up(
        self, consumer: str, *, known: Collection[Handle], now_ms: int, limit: int
    ) -> list[Leased]:
        held = [row for row in self._in_order() if row.holder == consumer]
        new = [row for row in held if row.visible_ms > now_ms and row.leased().handle not in known]
        for row in new[:limit]:
            row.version += 1
        return [row.leased() for row in new[:limit]]

    # Whoever looks

    async def look_up(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Shown | None]:
        found: list[Shown | None] = []
        for identity in ids:
            row, dead = self._rows.get(identity), self._dead.get(identity)
            if row is not None:
                found.append(row.shown(now_ms))
            else:
                found.append(None if dead is None else dead.shown(now_ms, State.DEAD))
        return found

    async def look_up_keys(self, keys: Sequence[str], *, now_ms: int) -> list[Shown | None]:
        rows = [self._by_key(key) for key in keys]
        return [None if row is None else row.shown(now_ms) for row in rows]

    async def peek(self, *, now_ms: int, limit: int) -> list[Shown]:
        return [row.shown(now_ms) for row in self._in_order()[:limit]]

    async def counts(self, *, now_ms: int) -> Counts:
        states = [row.shown(now_ms).state for row in self._rows.values()]
        due = [row.visible_ms for row in self._rows.values() if row.visible_ms <= now_ms]
        return Counts(
            states.count(State.WAITING),
            states.count(State.DUE),
            states.count(State.LEASED),
            len(self._dead),
            min(due, default=0),
        )

    async def histogram(self, edges_ms: Sequence[int]) -> list[int]:
        visible = [row.visible_ms for row in self._rows.values()]
        return [
            sum(low <= time_ms < high for time_ms in visible) for low, high in pairwise(edges_ms)
        ]

    # Dead letters

    async def dead(self, *, after: MessageId, limit: int) -> list[Shown]:
        rows = [self._dead[identity] for identity in sorted(self._dead) if identity > after]
        return [row.shown(0, State.DEAD) for row in rows[:limit]]

    async def drop_dead(self, ids: Sequence[MessageId]) -> list[Status]:
        gone = [self._dead.pop(identity, None) for identity in ids]
        return [Status.GONE if row is None else Status.OK for row in gone]

    async def replay(self, ids: Sequence[MessageId], *, due_ms: int) -> list[Status]:
        statuses = []
        for identity in ids:
            row = self._dead.get(identity)
            if row is None:
                statuses.append(Status.GONE)
                continue
            if self._by_key(row.message.key) is not None:
                statuses.append(Status.EXISTS)
                continue

            row.visible_ms = row.due_ms = due_ms
            row.version += 1
            row.attempts = row.died_ms = 0
            row.reason = ""
            self._rows[identity] = self._dead.pop(identity)
            statuses.append(Status.OK)
        return statuses

    # Schedules

    async def put_schedule(self, schedule: Schedule) -> None:
        held = self._schedules.get(schedule.name)
        if held is not None and held.times == schedule.times:
            schedule = replace(schedule, next_ms=held.next_ms, start_ms=held.start_ms)
        self._schedules[schedule.name] = schedule

    async def drop_schedule(self, name: str) -> bool:
        return self._schedules.pop(name, None) is not None

    async def schedules(self) -> list[Schedule]:
        return [self._schedules[name] for name in sorted(self._schedules)]

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
        fired = []
        for firing in firings:
            found = self._schedules.get(firing.name)
            there = found is not None and found.next_ms == firing.expected_ms
            if found is not None and there:
                self._schedules[found.name] = replace(found, next_ms=firing.following_ms)
                self._insert(firing.message, firing.bucket)
            fired.append(there)
        return fired

    # Upkeep

    async def trim(self, *, dead_max: int, batches_before_ms: int) -> Trimmed:
        newest = sorted(self._dead.values(), key=lambda row: (row.died_ms, row.id), reverse=True)
        for row in newest[dead_max:]:
            del self._dead[row.id]
        old = [name for name, (_, at_ms) in self._batches.items() if at_ms < batches_before_ms]
        for name in old:
            del self._batches[name]
        return Trimmed(len(newest[dead_max:]), len(old))

    async def time_ms(self) -> int:
        return self.clock()

    async def close(self) -> None:
        """Nothing is held."""


class MemoryStores:
    """Timelines that live as long as this object."""

    shared = False

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._stores: dict[TimelineId, MemoryStore] = {}

    async def provision(self, timeline: TimelineId, label: bytes = b"") -> None:
        self._stores.setdefault(timeline, MemoryStore(self._clock))

    async def adopted(self) -> dict[TimelineId, bytes]:
        return {}

    async def adoption_done(self) -> None:
        """Nobody else's timelines are ever here."""

    async def open(self, timeline: TimelineId) -> TimelineStore:
        if timeline not in self._stores:
            raise NotFound(f"timeline {timeline} is not in memory")
        return self._stores[timeline]

    async def drop(self, timeline: TimelineId) -> None:
        self._stores.pop(timeline, None)

    async def existing(self) -> set[TimelineId]:
        return set(self._stores)

    async def close(self) -> None:
        """Nothing is held."""


def _in_buckets(ask: LeaseAsk, bucket: int) -> bool:
    if not ask.low <= bucket < ask.high:
        return False
    return ask.mask is None or ask.mask[bucket - ask.low] == 1
