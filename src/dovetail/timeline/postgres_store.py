"""Timelines on PostgreSQL, shared by every carrier: five tables for each timeline.

Measured here, batches of 1,000 with 100-byte bodies, one connection, sync on (messages a second):

                       insert                            lease     delete
    asyncpg            142k one statement with unnest    66k       112k
                       121k COPY into both tables
    psycopg 3          64k one statement, 107k COPY      70k       70k

and small statements 8,100 against 6,700 a second: asyncpg, one statement over arrays. COPY can not
tell which unique keys were taken.

Tables for each timeline, not one for all: a deleted timeline goes in milliseconds whatever its
size, vacuum follows each one's own pace, and the index on time holds nothing of its neighbours.

An error on the way means: not sent → `Unavailable`; sent and not answered → `Uncertain`. A deadlock
or a serialisation failure has changed nothing, and is tried again here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dovetail.errors import InvalidSetting, NotFound, Unavailable, Uncertain
from dovetail.timeline import _postgres_statements as sql
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
)
from dovetail.timeline.outcomes import (
    BATCHES_KEPT,
    REASON_ENDED,
    dead_of,
    decode_outcomes,
    encode_outcomes,
    once,
    shown_of,
    status_of_miss,
    status_of_unheld,
)
from dovetail.timeline.schedule import Firing, Schedule
from dovetail.timeline.store import LeaseAsk, LeaseResult, TimelineStore, Trimmed

if TYPE_CHECKING:
    import asyncpg

#: Attempts of a command that PostgreSQL ended for the sake of another.
ATTEMPTS_MAX: Final = 5
#: Connections of one carrier: one leases while others insert, delete and look.
CONNECTIONS_MAX: Final = 8
#: Longest time for a statement. A healthy server needs milliseconds; minutes would hide a dead one.
STATEMENT_S_MAX: Final = 30.0

#: Every statement here is to follow an index in its order. Left to itself, the planner believes
#: that a lease finds one row, gathers all that is due, and sorts it: with a million due, a million
#: rows for each lease.
PLANNER: Final = {
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "jit": "off",
}

Result = TypeVar("Result")


class PostgresStore:
    """A `TimelineStore` on the tables of one timeline."""

    def __init__(self, pool: "Pool", timeline: TimelineId) -> None:
        self._pool = pool
        self._prefix = pool.prefix(timeline)

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
        async def work(connection: Any) -> list[Inserted]:
            if batch is None:
                return await self._insert(connection, messages, buckets)
            async with connection.transaction():
                named = (batch.producer, batch.sequence)
                new = await connection.fetchval(self._sql(sql.BATCH_NAME), *named, now_ms)
                if new is None:
                    known = await connection.fetchval(self._sql(sql.BATCH_KNOWN), *named)
                    return decode_outcomes(known)
                outcomes = await self._insert(connection, messages, buckets)
                kept = encode_outcomes(outcomes)
                await connection.execute(self._sql(sql.BATCH_KEEP), *named, kept)
                if batch.sequence % BATCHES_KEPT == 0:
                    oldest = batch.sequence - BATCHES_KEPT
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
        done = {row[0] for row in await self._rows(sql.CANCEL, list(ids), now_ms)}
        return await self._unheld_statuses(ids, done)

    async def move(self, moves: Sequence[tuple[MessageId, int]], *, now_ms: int) -> list[Status]:
        ids = [identity for identity, _ in moves]
        times = [due_ms for _, due_ms in moves]
        done = {row[0] for row in await self._rows(sql.MOVE, ids, times, now_ms)}
        return await self._unheld_statuses(ids, done)

    # Consumers

    async def lease(
        self, asks: Sequence[LeaseAsk], *, now_ms: int, attempts_max: int
    ) -> LeaseResult:
        horizon_ms = max((ask.horizon_ms for ask in asks), default=now_ms)
        columns = [
            [ask.consumer for ask in asks],
            [ask.low for ask in asks],
            [ask.high for ask in asks],
            [ask.horizon_ms for ask in asks],
            [ask.limit for ask in asks],
            [ask.lease_ms for ask in asks],
            [ask.mask for ask in asks],
        ]

        async def work(connection: Any) -> tuple[list[Any], list[int], Any]:
            # Three statements, not one transaction: a message that is leased and not yet buried is
            # delivered to nobody, and is buried by the next lease if this is as far as we come.
            rows = await connection.fetch(self._sql(sql.LEASE), *columns, now_ms)
            # An attempt beyond the last one is no attempt: that message had its chances.
            dying = [row[1] for row in rows if row[5] > attempts_max]
            if dying:
                reasons = [REASON_ENDED] * len(dying)
                await connection.execute(self._sql(sql.BURY), dying, reasons, now_ms, 1)
            times = await connection.fetchrow(self._sql(sql.NEXT), horizon_ms, now_ms)
            return rows, dying, times

        rows, dying, times = await self._pool.run(work)
        leased: list[list[Leased]] = [[] for _ in asks]
        for row in rows:
            if row[5] <= attempts_max:
                leased[row[0] - 1].append(Leased(*tuple(row)[1:]))
        for taken in leased:
            taken.sort(key=lambda item: (-item.priority, item.due_ms, item.id))
        return LeaseResult(tuple(map(tuple, leased)), len(dying), times[0], times[1])

    async def extend(self, extensions: Sequence[Extension]) -> list[Status]:
        handles = [item.handle for item in extensions]
        until = [item.until_ms for item in extensions]
        rows = await self._rows(sql.EXTEND, *_columns(handles), until)
        return await self._statuses(handles, {Handle(*row) for row in rows})

    async def release(
        self, releases: Sequence[Release], *, now_ms: int, attempts_max: int
    ) -> list[Status]:
        handles = [item.handle for item in releases]
        due = [item.due_ms for item in releases]
        uncounted = [0 if item.counted else 1 for item in releases]

        async def work(connection: Any) -> tuple[set[Handle], set[int]]:
            async with connection.transaction():
                rows = await connection.fetch(
                    self._sql(sql.RELEASE), *_columns(handles), due, uncounted
                )
                done = {Handle(row[0], row[1]): row[2] for row in rows}
                items = [item for item in releases if item.counted and item.handle in done]
                reasons = {
                    item.handle.id: item.reason
                    for item in items
                    if done[item.handle] >= attempts_max
                }
                if reasons:
                    dying = [list(reasons), list(reasons.values())]
                    await connection.execute(self._sql(sql.BURY), *dying, now_ms, 0)
            return set(done), set(reasons)

        done, dead = await self._pool.run(work)
        statuses = await self._statuses(handles, done)
        return [
            Status.DEAD if status is Status.OK and handle.id in dead else status
            for handle, status in zip(handles, statuses, strict=True)
        ]

    async def delete(self, handles: Sequence[Handle]) -> list[Status]:
        rows = await self._rows(sql.DELETE, *_columns(handles))
        return await self._statuses(handles, {Handle(*row) for row in rows})

    async def held_by(self, consumer: str, *, now_ms: int, limit: int) -> list[Leased]:
        rows = await self._rows(sql.HELD_BY, consumer, now_ms, limit, changes=False)
        return [Leased(*row) for row in rows]

    async def _statuses(self, handles: Sequence[Handle], done: "set[Handle]") -> list[Status]:
        missed = [handle.id for handle in handles if handle not in done]
        versions: dict[int, int] = {}
        if missed:
            versions = dict(await self._rows(sql.VERSIONS, missed, changes=False))
        return [status_of_miss(handle, done, versions) for handle in handles]

    async def _unheld_statuses(self, ids: Sequence[MessageId], done: "set[int]") -> list[Status]:
        missed = [identity for identity in ids if identity not in done]
        there: dict[int, int] = {}
        if missed:
            there = dict(await self._rows(sql.VERSIONS, missed, changes=False))
        return [status_of_unheld(identity, done, there) for identity in ids]

    # Whoever looks

    async def look_up(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Shown | None]:
        rows = await self._rows(sql.LOOK_UP, list(ids), changes=False)
        found = {shown.id: shown for shown in shown_of(rows, now_ms)}
        rows = await self._rows(sql.LOOK_UP_DEAD, list(ids), changes=False)
        found |= {shown.id: shown for shown in dead_of(rows)}
        return [found.get(identity) for identity in ids]

    async def look_up_keys(self, keys: Sequence[str], *, now_ms: int) -> list[Shown | None]:
        rows = await self._rows(sql.LOOK_UP_KEYS, list(keys), changes=False)
        found = {shown.key: shown for shown in shown_of(rows, now_ms)}
        return [found.get(key) for key in keys]

    async def peek(self, *, now_ms: int, limit: int) -> list[Shown]:
        return shown_of(await self._rows(sql.PEEK, limit, changes=False), now_ms)

    async def counts(self, *, now_ms: int) -> Counts:
        ((total, due, leased, dead, oldest),) = await self._rows(sql.COUNTS, now_ms, changes=False)
        return Counts(max(0, total - due - leased), due, leased, dead, oldest)

    async def histogram(self, edges_ms: Sequence[int]) -> list[int]:
        spans = list(pairwise(edges_ms))
        lows, highs = [low for low, _ in spans], [high for _, high in spans]
        return [row[0] for row in await self._rows(sql.HISTOGRAM, lows, highs, changes=False)]

    # Dead letters

    async def dead(self, *, after: MessageId, limit: int) -> list[Shown]:
        return dead_of(await self._rows(sql.DEAD, after, limit, changes=False))

    async def replay(self, ids: Sequence[MessageId], *, due_ms: int) -> list[Status]:
        there = {row[0] for row in await self._rows(sql.DEAD_IDS, list(ids), changes=False)}
        done = {row[0] for row in await self._rows(sql.REVIVE, list(ids), due_ms)}
        return [
            Status.OK if i in done else Status.EXISTS if i in there else Status.GONE for i in ids
        ]

    async def drop_dead(self, ids: Sequence[MessageId]) -> list[Status]:
        return once(ids, {row[0] for row in await self._rows(sql.DROP_DEAD, list(ids))})

    # Schedules

    async def put_schedule(self, schedule: Schedule) -> None:
        await self._rows(
            sql.PUT_SCHEDULE,
            schedule.name,
            schedule.body,
            schedule.next_ms,
            schedule.headers,
            schedule.cron,
            schedule.zone,
            schedule.every_ms,
            schedule.start_ms,
            schedule.priority,
        )

    async def drop_schedule(self, name: str) -> bool:
        return bool(await self._rows(sql.DROP_SCHEDULE, name))

    async def schedules(self) -> list[Schedule]:
        return [Schedule(*row) for row in await self._rows(sql.SCHEDULES, changes=False)]

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
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


class Pool:
    """Connections, and what their errors mean."""

    def __init__(self, pool: "asyncpg.Pool[Any]", schema: str) -> None:
        self.pool = pool
        self._schema = schema

    def prefix(self, timeline: TimelineId) -> str:
        """What the names of a timeline's tables begin with."""
        return f"{self._schema}.t{int(timeline)}_"

    async def run(
        self, work: Callable[[Any], Awaitable[Result]], *, changes: bool = True
    ) -> Result:
        """Runs the work on a connection. Raises `Unavailable`, or `Uncertain` if it `changes`."""
        import asyncpg

        for attempt in range(ATTEMPTS_MAX):
            try:
                return await self._once(work, changes=changes)
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise Unavailable(f"PostgreSQL: {error}") from error
        raise AssertionError("unreachable")

    async def _once(self, work: Callable[[Any], Awaitable[Result]], *, changes: bool) -> Result:
        import asyncpg

        async with self._connection() as connection:
            try:
                return await work(connection)
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
                raise
            except asyncpg.UndefinedTableError as error:
                raise NotFound(f"the timeline's tables are gone: {error}") from error
            except (
                asyncpg.PostgresConnectionError,
                asyncpg.InterfaceError,
                asyncpg.AdminShutdownError,
                asyncpg.CrashShutdownError,
                OSError,
                TimeoutError,
            ) as error:
                lost = Uncertain if changes else Unavailable
                raise lost(f"PostgreSQL did not answer: {error!r}") from error
            except asyncpg.PostgresError as error:
                raise Unavailable(f"PostgreSQL refused: {error}") from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        import asyncpg

        try:
            connection = await self.pool.acquire(timeout=STATEMENT_S_MAX)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise Unavailable(f"no connection to PostgreSQL: {error!r}") from error
        try:
            yield connection
        finally:
            await asyncio.shield(self.pool.release(connection))


class PostgresStores:
    """The timelines in one schema of a database. Make it with `connect`."""

    shared = True

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._schema = schema

    @classmethod
    async def connect(cls, dsn: str, *, schema: str = "dovetail") -> "PostgresStores":
        """Connects, and makes the schema. Raises `InvalidSetting`, `Unavailable`."""
        try:
            import asyncpg
        except ImportError as error:
            raise InvalidSetting(
                "timelines on PostgreSQL need asyncpg: pip install 'dovetail[postgres]'"
            ) from error
        if not schema.isidentifier() or not schema.isascii():
            raise InvalidSetting(f"{schema!r} is no name for a schema: letters, digits and _")
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=CONNECTIONS_MAX,
                command_timeout=STATEMENT_S_MAX,
                server_settings=PLANNER,
            )
        except (OSError, TimeoutError, ValueError, asyncpg.PostgresError) as error:
            raise Unavailable(f"no connection to PostgreSQL: {error}") from error
        stores = cls(Pool(pool, schema), schema)
        await stores._execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        return stores

    async def provision(self, timeline: TimelineId) -> None:
        prefix = self._pool.prefix(timeline)
        bare = prefix.removeprefix(f"{self._schema}.")
        await self._execute(sql.SCHEMA.replace("{t}", prefix).replace("{n}", bare), timeline)

    async def open(self, timeline: TimelineId) -> TimelineStore:
        if timeline not in await self.existing():
            raise NotFound(f"schema {self._schema} has no tables of timeline {timeline}")
        return PostgresStore(self._pool, timeline)

    async def drop(self, timeline: TimelineId) -> None:
        await self._execute(sql.DROP.replace("{t}", self._pool.prefix(timeline)), timeline)

    async def existing(self) -> set[TimelineId]:
        async def work(connection: Any) -> list[Any]:
            return list(await connection.fetch(sql.EXISTING, self._schema))

        rows = await self._pool.run(work, changes=False)
        return {TimelineId(int(row[0])) for row in rows}

    async def close(self) -> None:
        await self._pool.pool.close()

    async def _execute(self, statements: str, timeline: TimelineId = TimelineId(0)) -> None:
        """Runs statements alone: two that make the same tables at once would trip each other."""

        async def work(connection: Any) -> None:
            async with connection.transaction():
                await connection.execute(sql.ALONE, int(timeline))
                await connection.execute(statements)

        await self._pool.run(work)


def _columns(handles: Sequence[Handle]) -> tuple[list[int], list[int]]:
    return [handle.id for handle in handles], [handle.version for handle in handles]
