"""A timeline on PostgreSQL, shared by every broker: six tables.

Measured here, batches of 1,000 with 100-byte bodies, one connection, sync on (messages a second,
and microseconds of PostgreSQL's processor time for each):

                                                  insert        lease         delete
    one table for what waits and what is leased   122k, 5.8     82k, 11.3     162k, 4.0
    a queue beside the messages, as here          125k, 5.5     140k, 5.3     320k, 2.4

Each command is one statement over arrays, by asyncpg: with psycopg 3 inserts were half as fast, and
small statements 6,700 instead of 8,100 a second. COPY cannot tell which unique keys were taken.

Not here: the tables and what moves between them (`_postgres_statements`), connections and what
their errors mean (`_postgres_pool`).
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import astuple
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final

from dovetail.errors import Uncertain
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
    Status,
    TimelineId,
    Version,
)
from dovetail.timeline.stores import _postgres_statements as sql
from dovetail.timeline.stores import outcomes as shared
from dovetail.timeline.stores._postgres_pool import ATTEMPTS_MAX, Pool
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult, Trimmed

#: Messages whose leases are looked at in one go, some ten milliseconds' work, and how often at most
#: before a lease.
SETTLE_MESSAGES: Final = 2_000
SETTLES_MAX: Final = 5
#: Ends of leases are looked for so often, beside those that we know of. Of others' leases none ends
#: sooner after it began; one that was moved to an earlier end may come back so much later.
SETTLE_MS: Final = 250
#: A lease that is this old is looked at, to forget it if its message is gone. Most are by then.
LOOK_MS: Final = 5_000
#: Before the first message of all.
_NOTHING: Final = (-1, -1)


class PostgresStore:
    """A `TimelineStore` on the tables of one timeline."""

    def __init__(self, pool: "Pool", timeline: TimelineId) -> None:
        self._pool = pool
        self._prefix = pool.prefix(timeline)
        #: Between these two moments no lease ends that we know of.
        self._settled_ms = self._settle_ms = 0
        #: By whom and which buckets: time and id of the last message that a full lease took. Before
        #: it nothing is queued, for all that we know.
        self._passed: dict[tuple[object, ...], tuple[int, int]] = {}

    def _sql(self, statement: str) -> str:
        return statement.replace("{t}", self._prefix)

    async def _rows(self, statement: str, *values: Any, changes: bool = True) -> list[Any]:
        text = self._sql(statement)

        async def work(connection: Any) -> list[Any]:
            return list(await connection.fetch(text, *values))

        return await self._pool.run(work, changes=changes)

    async def close(self) -> None:
        """The pool belongs to `PostgresStores`."""

    # Producers

    async def insert(
        self,
        messages: Sequence[NewMessage],
        *,
        buckets: Sequence[int],
        now_ms: int,
        batch: BatchId | None = None,
    ) -> list[Inserted]:
        self._note_queued(message.due_ms for message in messages)

        async def work(connection: Any) -> list[Inserted]:
            if batch is None:
                return await self._insert(connection, messages, buckets)
            async with connection.transaction():
                named = (batch.producer, batch.sequence)
                new = await connection.fetchval(self._sql(sql.BATCH_NAME), *named, now_ms)
                if new is None:
                    known = await connection.fetchval(self._sql(sql.BATCH_KNOWN), *named)
                    return shared.decode_outcomes(known)
                outcomes = await self._insert(connection, messages, buckets)
                kept = shared.encode_outcomes(outcomes)
                await connection.execute(self._sql(sql.BATCH_KEEP), *named, kept)
                if batch.sequence % shared.BATCHES_KEPT == 0:
                    oldest = batch.settled - shared.BATCHES_KEPT
                    await connection.execute(self._sql(sql.BATCH_FORGET), batch.producer, oldest)
                return outcomes

        return await self._pool.run(work)

    async def _insert(
        self, connection: Any, messages: Sequence[NewMessage], buckets: Sequence[int]
    ) -> list[Inserted]:
        columns: list[Any] = [
            [message.due_ms for message in messages],
            list(buckets),
            [message.body for message in messages],
            [message.headers for message in messages],
            [message.priority for message in messages],
        ]
        keys = [message.key for message in messages]
        if not any(keys):
            rows = await connection.fetch(self._sql(sql.INSERT_PLAIN), *columns)

            return [Inserted(Status.OK, row[0]) for row in rows]

        rows = await connection.fetch(self._sql(sql.INSERT), *columns, keys)
        refused = [key for key, (_, stored) in zip(keys, rows, strict=True) if not stored]
        taken_by: dict[str, int] = {}
        if refused:
            taken_by = dict(await connection.fetch(self._sql(sql.BY_KEYS), refused))
        return [
            Inserted(Status.OK, identity)
            if stored
            # 0 if whoever had the key is gone by now.
            else Inserted(Status.EXISTS, MessageId(taken_by.get(key or "", 0)))
            for key, (identity, stored) in zip(keys, rows, strict=True)
        ]

    async def cancel(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Status]:
        async def act(left: list[MessageId]) -> list[Any]:
            return await self._rows(sql.CANCEL, left, now_ms)

        return await self._on_unheld(ids, act, now_ms=now_ms)

    async def move(self, moves: Sequence[tuple[MessageId, int]], *, now_ms: int) -> list[Status]:
        due_ms = dict(moves)
        self._note_queued(due_ms.values())

        async def act(left: list[MessageId]) -> list[Any]:
            times = [due_ms[identity] for identity in left]
            return await self._rows(sql.MOVE, left, times, now_ms)

        return await self._on_unheld([identity for identity, _ in moves], act, now_ms=now_ms)

    async def purge(self, *, now_ms: int, limit: int) -> int:
        async def work(connection: Any) -> int:
            # What is over counts as nobody's, and is queued first.
            self._settle_ms = 0
            await self._settle(connection, limit, now_ms)
            return len(await connection.fetch(self._sql(sql.PURGE), limit))

        return await self._pool.run(work)

    async def _on_unheld(
        self,
        ids: Sequence[MessageId],
        act: Callable[[list[MessageId]], Awaitable[list[Any]]],
        *,
        now_ms: int,
    ) -> list[Status]:
        """Does it to messages that are queued. What is over and still with its last holder is
        queued first."""
        done: set[int] = set()
        left = list(ids)
        for _ in range(ATTEMPTS_MAX):
            done |= {row[0] for row in await act(left)}
            missed = [identity for identity in ids if identity not in done]
            there = await self._lease_states(missed)
            left = [i for i in missed if i in there and _is_free(there[i], now_ms)]
            if not left:
                versions = {identity: row[0] for identity, row in there.items()}
                return [shared.status_of_unheld(identity, done, versions) for identity in ids]
            await self._rows(sql.GIVE_WAY, left, now_ms)
        raise Uncertain(f"{len(left)} messages change hands all the time; try again")

    # Consumers

    async def lease(
        self, asks: Sequence[LeaseAsk], *, now_ms: int, attempts_max: int
    ) -> LeaseResult:
        horizon_ms = max((ask.horizon_ms for ask in asks), default=now_ms)
        wanted = sum(ask.limit for ask in asks)

        async def work(connection: Any) -> tuple[list[Any], int, Any]:
            # Some statements, not one transaction: what is queued again is the next one's to lease,
            # and a message that is leased and not yet buried is delivered to nobody, and is buried
            # by the next lease if this is as far as we come.
            await self._settle(connection, wanted, now_ms)
            rows, died = await self._take(connection, asks, now_ms, attempts_max)
            if len(rows) == wanted:
                # There may be more at shared.once, and nobody has to know when there is more later.
                return rows, died, (now_ms + 1, now_ms + 1)
            return rows, died, await connection.fetchrow(self._sql(sql.NEXT), horizon_ms, now_ms)

        rows, died, times = await self._pool.run(work)
        # By priority, due time and id: three passes over what is nearly sorted, without a function
        # of ours for each row.
        rows.sort(key=itemgetter(1))
        rows.sort(key=itemgetter(3))
        # By due time, which is where it was queued, or before.
        last = {row[0]: (row[3], row[1]) for row in rows}
        rows.sort(key=itemgetter(6), reverse=True)

        leased: list[list[Leased]] = [[] for _ in asks]
        for row in rows:
            leased[row[0] - 1].append(Leased(*row[1:]))
        for at, (ask, taken) in enumerate(zip(asks, leased, strict=True), 1):
            if taken and len(taken) == ask.limit:
                self._passed[_whose(ask)] = last[at]
            else:
                self._passed.pop(_whose(ask), None)
        return LeaseResult(tuple(map(tuple, leased)), died, times[0], times[1])

    async def _take(
        self, connection: Any, asks: Sequence[LeaseAsk], now_ms: int, attempts_max: int
    ) -> tuple[list[Any], int]:
        """Rows for those who ask; how many died instead, in whose places others are taken."""
        first_end_ms = now_ms + min((ask.lease_ms for ask in asks), default=0)
        self._settle_ms = min(self._settle_ms, first_end_ms)
        limits = [ask.limit for ask in asks]
        passed = [self._passed.get(_whose(ask), _NOTHING) for ask in asks]

        taken: list[Any] = []
        died = 0
        while True:
            rows = await connection.fetch(
                self._sql(sql.LEASE),
                [ask.consumer for ask in asks],
                [ask.low for ask in asks],
                [ask.high for ask in asks],
                [ask.horizon_ms for ask in asks],
                limits,
                [ask.lease_ms for ask in asks],
                [ask.mask for ask in asks],
                now_ms,
                LOOK_MS,
                [time_ms for time_ms, _ in passed],
                [identity for _, identity in passed],
            )

            # An attempt beyond the last one is no attempt: that message had its chances.
            dying = [row for row in rows if row[5] > attempts_max]
            if not dying and len(rows) == sum(limits):
                return taken + rows, died
            found = Counter(row[0] for row in rows)
            places = Counter(row[0] for row in dying)

            if dying:
                handles = [Handle(row[1], row[2]) for row in dying]
                reasons = [shared.REASON_ENDED] * len(dying)
                values = (*_columns(handles), reasons, now_ms, 1)
                await connection.execute(self._sql(sql.BURY), *values)
                died += len(dying)
            taken += [row for row in rows if row[5] <= attempts_max]

            for at, limit in enumerate(limits):
                limits[at] = places[at + 1]
                if passed[at] != _NOTHING and found[at + 1] < limit:
                    # What came up behind us meanwhile is looked for before we say that this is all.
                    limits[at] += limit - found[at + 1]
                    passed[at] = _NOTHING
            if not any(limits):
                return taken, died

    async def _settle(self, connection: Any, wanted: int, now_ms: int) -> None:
        """Queues what is over, the first first, until there is enough for those who ask."""
        if self._settled_ms <= now_ms < self._settle_ms:
            return
        self._passed.clear()
        queued = 0
        for _ in range(SETTLES_MAX):
            values = (now_ms, SETTLE_MESSAGES)
            looked, over, look_ms = await connection.fetchrow(self._sql(sql.SETTLE), *values)
            queued += over
            if looked < SETTLE_MESSAGES:
                self._settled_ms = now_ms
                self._settle_ms = min(now_ms + SETTLE_MS, look_ms or now_ms + SETTLE_MS)
                return
            if queued >= wanted:
                return

    def _note_queued(self, times_ms: Iterable[int]) -> None:
        """Messages are queued at these times. What others queue is found at the next settling."""
        if self._passed:
            first_ms = min(times_ms, default=0)
            self._passed = {w: last for w, last in self._passed.items() if last[0] < first_ms}

    async def extend(self, extensions: Sequence[Extension]) -> list[Status]:
        until_ms = {item.handle: item.until_ms for item in extensions}
        self._settle_ms = min([self._settle_ms, *until_ms.values()])

        async def act(left: list[Handle]) -> set[Handle]:
            times = [until_ms[handle] for handle in left]
            return {Handle(*row) for row in await self._rows(sql.EXTEND, *_columns(left), times)}

        return await self._on_held([item.handle for item in extensions], act)

    async def release(
        self, releases: Sequence[Release], *, now_ms: int, attempts_max: int
    ) -> list[Status]:
        by_handle = {item.handle: item for item in releases}
        self._note_queued(item.due_ms for item in releases)
        dead: set[Handle] = set()

        async def act(left: list[Handle]) -> set[Handle]:
            due = [by_handle[handle].due_ms for handle in left]
            uncounted = [0 if by_handle[handle].counted else 1 for handle in left]
            most = [by_handle[handle].attempts_max(attempts_max) for handle in left]

            async def work(connection: Any) -> dict[Handle, bool]:
                values = (*_columns(left), due, uncounted, most)
                async with connection.transaction():
                    rows = await connection.fetch(self._sql(sql.RELEASE), *values)
                    queued = {Handle(row[0], row[1]): row[2] for row in rows}
                    dying = [handle for handle in queued if not queued[handle]]
                    if dying:
                        ids, versions = _columns(dying)
                        reasons = [by_handle[handle].reason for handle in dying]
                        after = [version + 1 for version in versions]
                        bury = self._sql(sql.BURY)
                        await connection.execute(bury, ids, after, reasons, now_ms, 0)
                return queued

            queued = await self._pool.run(work)
            dead.update(handle for handle in queued if not queued[handle])
            return set(queued)

        handles = [item.handle for item in releases]
        statuses = await self._on_held(handles, act)
        return [
            Status.DEAD if handle in dead else status
            for handle, status in zip(handles, statuses, strict=True)
        ]

    async def delete(self, handles: Sequence[Handle]) -> list[Status]:
        async def act(left: list[Handle]) -> set[Handle]:
            by_version: dict[Version, list[MessageId]] = defaultdict(list)
            for handle in left:
                by_version[handle.version].append(handle.id)
            done: set[Handle] = set()
            for version, ids in by_version.items():
                ((gone,),) = await self._rows(sql.DELETE, ids, version)
                if gone is not None and len(gone) == len(left):
                    return set(left)
                done.update(Handle(identity, version) for identity in gone or ())
            return done

        return await self._on_held(handles, act)

    async def _on_held(
        self, handles: Sequence[Handle], act: Callable[[list[Handle]], Awaitable[set[Handle]]]
    ) -> list[Status]:
        """Does it to messages that are leased. What is over and queued again, and nobody took
        since, is taken back first."""
        done: set[Handle] = set()
        left = list(handles)
        for _ in range(ATTEMPTS_MAX):
            done |= await act(left)
            if len(done) == len(handles):
                return [Status.OK] * len(handles)
            missed = [handle for handle in handles if handle not in done]
            there = await self._lease_states([handle.id for handle in missed])
            left = [h for h in missed if h.id in there and there[h.id][:2] == (h.version, True)]
            if not left:
                versions = {identity: row[0] for identity, row in there.items()}
                return [shared.status_of_miss(handle, done, versions) for handle in handles]
            self._settle_ms = 0
            await self._rows(sql.TAKE_BACK, *_columns(left))
        raise Uncertain(f"{len(left)} leases change all the time; try again")

    async def take_up(
        self, consumer: str, *, known: Collection[Handle], now_ms: int, limit: int
    ) -> list[Leased]:
        columns = _columns(list(known))
        rows = await self._rows(sql.TAKE_UP, consumer, now_ms, limit, *columns)
        return sorted((Leased(*row) for row in rows), key=lambda each: (each.until_ms, each.id))

    async def _lease_states(self, ids: Sequence[MessageId]) -> dict[int, tuple[int, bool, int]]:
        """Version, whether it has a holder, and visible time, of those that are there."""
        if not ids:
            return {}
        rows = await self._rows(sql.LEASE_STATES, list(ids), changes=False)
        return {identity: (version, held, visible) for identity, version, held, visible in rows}

    # Whoever looks

    async def look_up(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Shown | None]:
        rows = await self._rows(sql.LOOK_UP, list(ids), changes=False)
        found = {shown.id: shown for shown in shared.shown_of(rows, now_ms)}
        rows = await self._rows(sql.LOOK_UP_DEAD, list(ids), changes=False)
        found |= {shown.id: shown for shown in shared.dead_of(rows)}
        return [found.get(identity) for identity in ids]

    async def look_up_keys(self, keys: Sequence[str], *, now_ms: int) -> list[Shown | None]:
        rows = await self._rows(sql.LOOK_UP_KEYS, list(keys), changes=False)
        found = {shown.key: shown for shown in shared.shown_of(rows, now_ms)}
        return [found.get(key) for key in keys]

    async def peek(self, *, now_ms: int, limit: int) -> list[Shown]:
        return shared.shown_of(await self._rows(sql.PEEK, limit, changes=False), now_ms)

    async def counts(self, *, now_ms: int) -> Counts:
        rows = await self._rows(sql.COUNTS, now_ms, changes=False)
        total, waiting, due, dead, oldest = rows[0]
        return Counts(waiting, due, total - waiting - due, dead, oldest)

    async def histogram(self, edges_ms: Sequence[int]) -> list[int]:
        spans = list(pairwise(edges_ms))
        lows, highs = [low for low, _ in spans], [high for _, high in spans]
        return [row[0] for row in await self._rows(sql.HISTOGRAM, lows, highs, changes=False)]

    # Dead letters

    async def dead(self, *, after: MessageId, limit: int) -> list[Shown]:
        return shared.dead_of(await self._rows(sql.DEAD, after, limit, changes=False))

    async def replay(self, ids: Sequence[MessageId], *, due_ms: int) -> list[Status]:
        self._note_queued([due_ms])
        there = {row[0] for row in await self._rows(sql.DEAD_IDS, list(ids), changes=False)}
        done = {row[0] for row in await self._rows(sql.REVIVE, list(ids), due_ms)}
        return [
            Status.OK if i in done else Status.EXISTS if i in there else Status.GONE for i in ids
        ]

    async def drop_dead(self, ids: Sequence[MessageId]) -> list[Status]:
        return shared.once(ids, {row[0] for row in await self._rows(sql.DROP_DEAD, list(ids))})

    # Schedules

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._rows(sql.PUT_SCHEDULE, *astuple(schedule))

    async def drop_schedule(self, name: str) -> bool:
        return bool(await self._rows(sql.DROP_SCHEDULE, name))

    async def schedules(self) -> list[Schedule]:
        return [Schedule(*row) for row in await self._rows(sql.SCHEDULES, changes=False)]

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
        self._note_queued(firing.message.due_ms for firing in firings)

        async def work(connection: Any) -> list[bool]:
            async with connection.transaction():
                fired = []
                for firing in firings:
                    values = (firing.following_ms, firing.name, firing.expected_ms)
                    moved = await connection.fetchval(self._sql(sql.ADVANCE_SCHEDULE), *values)
                    if moved:
                        await self._insert(connection, [firing.message], [firing.bucket])
                    fired.append(bool(moved))
                return fired

        return await self._pool.run(work)

    # Upkeep

    async def trim(self, *, dead_max: int, batches_before_ms: int) -> Trimmed:
        dead = await self._rows(sql.TRIM_DEAD, dead_max)
        batches = await self._rows(sql.TRIM_BATCHES, batches_before_ms)
        return Trimmed(len(dead), len(batches))

    async def time_ms(self) -> int:
        ((now_ms,),) = await self._rows(sql.TIME, changes=False)
        return int(now_ms)


def _whose(ask: LeaseAsk) -> tuple[object, ...]:
    return ask.consumer, ask.low, ask.high, ask.mask


def _columns(handles: Sequence[Handle]) -> tuple[list[int], list[int]]:
    return [handle.id for handle in handles], [handle.version for handle in handles]


def _is_free(state: tuple[int, bool, int], now_ms: int) -> bool:
    """Whether nobody holds a live lease on it."""
    _, held, visible_ms = state
    return not held or visible_ms <= now_ms
