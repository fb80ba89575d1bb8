"""Timelines in memory: the fake with which users test, and the model for the other stores.

It keeps every store's promises but one: nothing is on disk. Written for the reader: each command is
a loop over plain objects.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise

import msgspec

from dovetail.errors import NotFound
from dovetail.timeline.engine.lives import Allowance, Pace, Tokens, is_spent
from dovetail.timeline.engine.schedule import Firing, Schedule
from dovetail.timeline.message import (
    TIME_MS_MAX,
    BatchId,
    Counts,
    Extension,
    Handle,
    Inserted,
    KeyRule,
    Leased,
    MessageId,
    NewMessage,
    OnTaken,
    Release,
    Shown,
    State,
    Status,
    TimelineId,
)
from dovetail.timeline.stores._memory_row import Row
from dovetail.timeline.stores.outcomes import merged, reason_of_death
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult, TimelineStore, Trimmed


@dataclass(slots=True)
class MemoryStore:
    """A `TimelineStore`; see the module."""

    clock: Callable[[], int]
    _rows: dict[int, Row] = field(default_factory=dict)
    _dead: dict[int, Row] = field(default_factory=dict)
    _schedules: dict[str, Schedule] = field(default_factory=dict)
    _batches: dict[tuple[int, int], tuple[list[Inserted], int]] = field(default_factory=dict)
    #: Keys that stay taken by messages that are done: whose, and until when.
    _taken: dict[str, tuple[MessageId, int]] = field(default_factory=dict)
    _tokens: Tokens = field(default_factory=Tokens)
    _id_next: int = 1
    ordered: bool = False

    # Producers

    async def insert(
        self,
        messages: Sequence[NewMessage],
        *,
        buckets: Sequence[int],
        now_ms: int,
        batch: BatchId | None = None,
        refused: Mapping[int, Status] | None = None,
    ) -> list[Inserted]:
        name = None if batch is None else (batch.producer, batch.sequence)
        if name is not None and name in self._batches:
            return self._batches[name][0]
        pairs = zip(messages, buckets, strict=True)
        stored = [self._insert(message, bucket, now_ms) for message, bucket in pairs]
        outcomes = merged(stored, refused)
        if name is not None:
            self._batches[name] = (outcomes, now_ms)
        return outcomes

    def _insert(self, message: NewMessage, bucket: int, now_ms: int) -> Inserted:
        identity = MessageId(self._id_next)
        self._id_next += 1
        taken_by = self._taken_by(message, now_ms)
        if taken_by is not None:
            return Inserted(Status.EXISTS, taken_by)
        self._rows[identity] = Row(identity, message, bucket, message.due_ms, message.due_ms)
        self.ordered |= message.order_key is not None
        return Inserted(Status.OK, identity)

    def _taken_by(self, message: NewMessage, now_ms: int) -> MessageId | None:
        """Who has its key, after what its rule says was done; None if it may have it."""
        held = self._by_key(message.key)
        if held is None:
            done_by, until_ms = self._taken.get(message.key or "", (None, 0))
            return done_by if until_ms > now_ms else None

        rule = (message.key_rule or KeyRule()).on_taken
        if rule is OnTaken.REPLACE and held.free(now_ms):
            del self._rows[held.id]
            return None
        if rule is OnTaken.EARLIER and held.free(now_ms) and message.due_ms < held.due_ms:
            held.visible_ms = held.due_ms = message.due_ms
            held.version += 1
            held.holder = None
        return held.id

    def _by_key(self, key: str | None) -> Row | None:
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
        self,
        asks: Sequence[LeaseAsk],
        *,
        now_ms: int,
        attempts_max: int,
        pace: Pace | None = None,
    ) -> LeaseResult:
        died = 0
        leased = []
        allowance = self._allowance(pace or Pace(), now_ms)
        for ask in asks:
            taken, dead = self._take(ask, allowance.limit(ask.limit), now_ms, attempts_max)
            allowance.took(len(taken), wanted=ask.limit)
            died += dead
            leased.append(tuple(taken))

        horizon_ms = max((ask.horizon_ms for ask in asks), default=now_ms)
        rows = [row for row in self._rows.values() if not self._behind(row)]
        times = [row.visible_ms for row in rows if row.visible_ms > horizon_ms]
        times += [time_ms for time_ms in [allowance.look_ms()] if time_ms is not None]
        ends = [
            row.visible_ms
            for row in rows
            if row.holder is not None and now_ms < row.visible_ms <= horizon_ms
        ]
        return LeaseResult(tuple(leased), died, min(times, default=None), min(ends, default=None))

    def _allowance(self, pace: Pace, now_ms: int) -> Allowance:
        rows = self._rows.values()
        held = sum(row.holder is not None and row.visible_ms > now_ms for row in rows)
        return Allowance(pace, self._tokens, held=held, now_ms=now_ms)

    def _take(
        self, ask: LeaseAsk, limit: int, now_ms: int, attempts_max: int
    ) -> tuple[list[Leased], int]:
        """What is leased, the first first, and how many died: others are taken in their places."""
        taken: list[Leased] = []
        died = 0
        while True:
            ready = (row for row in self._in_order() if self._is_ready(row, ask, now_ms))
            picked = list(islice(ready, limit - len(taken)))
            spent = [row for row in picked if _spent(row, attempts_max, now_ms)]
            for row in picked:
                row.version += 1
                if row in spent:
                    self._bury(row, reason_of_death(row.due_ms, row.life.ttl_ms, now_ms), now_ms)
                    continue
                row.visible_ms = max(row.visible_ms, now_ms) + ask.lease_ms
                row.attempts += 1
                row.holder = ask.consumer
                taken.append(row.leased())
            died += len(spent)
            if not spent:
                taken.sort(key=lambda item: (-item.priority, item.due_ms, item.id))
                return taken, died

    def _is_ready(self, row: Row, ask: LeaseAsk, now_ms: int) -> bool:
        if row.visible_ms > ask.horizon_ms or not row.free(now_ms):
            return False
        return _in_buckets(ask, row.bucket) and not self._behind(row)

    def _behind(self, row: Row) -> bool:
        """Whether another one of its order key comes before it."""
        if row.message.order_key is None or row.holder is not None:
            return False
        return any(
            other.message.order_key == row.message.order_key
            and (other.holder is not None or other.place < row.place)
            for other in self._rows.values()
        )

    def _in_order(self) -> list[Row]:
        return sorted(self._rows.values(), key=lambda row: (row.visible_ms, row.id))

    def _bury(self, row: Row, reason: str, now_ms: int) -> None:
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
                most = item.attempts_max(row.life.attempts_max or attempts_max)
                if item.counted and row.attempts >= most:
                    self._bury(row, item.reason, now_ms)
                    status = Status.DEAD
            statuses.append(status)
        return statuses

    async def delete(self, handles: Sequence[Handle], *, now_ms: int = 0) -> list[Status]:
        statuses = [self._held(handle) for handle in handles]
        for handle, status in zip(handles, statuses, strict=True):
            if status is Status.OK and handle.id in self._rows:
                message = self._rows.pop(handle.id).message
                hold_ms = (message.key_rule or KeyRule()).hold_ms
                if message.key is not None and hold_ms:
                    self._taken[message.key] = (handle.id, now_ms + hold_ms)
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

    async def walk(self, *, after: MessageId, limit: int, dead: bool, now_ms: int) -> list[Shown]:
        rows, state = (self._dead, State.DEAD) if dead else (self._rows, None)
        wanted = sorted(identity for identity in rows if identity > after)[:limit]
        return [msgspec.structs.replace(rows[i].shown(now_ms, state), body=b"") for i in wanted]

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

    async def schedules(self, *, before_ms: int = TIME_MS_MAX) -> list[Schedule]:
        found = [self._schedules[name] for name in sorted(self._schedules)]
        return [schedule for schedule in found if schedule.next_ms < before_ms]

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
        fired = []
        for firing in firings:
            found = self._schedules.get(firing.name)
            there = found is not None and found.next_ms == firing.expected_ms
            if found is not None and there:
                self._schedules[found.name] = replace(found, next_ms=firing.following_ms)
                self._insert(firing.message, firing.bucket, now_ms)
            fired.append(there)
        return fired

    # Upkeep

    def heard(self, due_ms: int) -> None:
        """Everything is seen here."""

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

    news = None

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


def _spent(row: Row, attempts_max: int, now_ms: int) -> bool:
    return is_spent(
        row.attempts + 1,
        row.life.attempts_max,
        attempts_max=attempts_max,
        due_ms=row.due_ms,
        ttl_ms=row.life.ttl_ms,
        now_ms=now_ms,
    )


def _in_buckets(ask: LeaseAsk, bucket: int) -> bool:
    inside = ask.low <= bucket < ask.high
    return inside and (ask.mask is None or ask.mask[bucket - ask.low] == 1)
