"""A timeline on PostgreSQL, shared by every broker: ten tables.

Measured here, batches of 1,000 with 100-byte bodies, one connection, sync on (messages a second,
and microseconds of PostgreSQL's processor time for each):

                                                  insert        lease         delete
    one table for what waits and what is leased   122k, 5.8     82k, 11.3     162k, 4.0
    a queue beside the messages, as here          125k, 5.5     140k, 5.3     320k, 2.4

Each command is one statement over arrays, by asyncpg: with psycopg 3 inserts were half as fast, and
small statements reached 6,700 instead of 8,100 a second. COPY cannot tell which unique keys were
taken.

Not here: the tables and what moves between them (`_postgres_statements`), connections and the
meaning of their errors (`_postgres_pool`).
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import astuple
from itertools import pairwise
from typing import Any

from dovetail.errors import Uncertain
from dovetail.timeline.engine.schedule import Firing, Schedule
from dovetail.timeline.message import (
    TIME_MS_MAX,
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
    Version,
)
from dovetail.timeline.stores import _postgres_order as rare
from dovetail.timeline.stores import _postgres_statements as sql
from dovetail.timeline.stores import outcomes as shared
from dovetail.timeline.stores._postgres_leasing import PostgresLeasing, columns
from dovetail.timeline.stores._postgres_pool import ATTEMPTS_MAX
from dovetail.timeline.stores.protocol import Trimmed


class PostgresStore(PostgresLeasing):
    """A `TimelineStore` on the tables of one timeline."""

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
        refused: Mapping[int, Status] | None = None,
    ) -> list[Inserted]:
        self._note_queued(message.due_ms for message in messages)

        async def work(connection: Any) -> list[Inserted]:
            if batch is None and all(_is_simple(message) for message in messages):
                stored = await self._insert(connection, messages, buckets, now_ms)
                return shared.merged(stored, refused)
            async with connection.transaction():
                if batch is None:
                    stored = await self._insert(connection, messages, buckets, now_ms)
                    return shared.merged(stored, refused)
                named = (batch.producer, batch.sequence)
                new = await connection.fetchval(self._sql(sql.BATCH_NAME), *named, now_ms)
                if new is None:
                    known = await connection.fetchval(self._sql(sql.BATCH_KNOWN), *named)
                    return shared.decode_outcomes(known)
                stored = await self._insert(connection, messages, buckets, now_ms)
                outcomes = shared.merged(stored, refused)
                kept = shared.encode_outcomes(outcomes)
                await connection.execute(self._sql(sql.BATCH_KEEP), *named, kept)
                if batch.sequence % shared.BATCHES_KEPT == 0:
                    oldest = batch.settled - shared.BATCHES_KEPT
                    await connection.execute(self._sql(sql.BATCH_FORGET), batch.producer, oldest)
                return outcomes

        return await self._pool.run(work)

    async def _insert(
        self,
        connection: Any,
        messages: Sequence[NewMessage],
        buckets: Sequence[int],
        now_ms: int,
    ) -> list[Inserted]:
        if all(message.is_plain for message in messages):
            columns: list[Any] = [
                [message.due_ms for message in messages],
                list(buckets),
                [message.body for message in messages],
                [message.headers for message in messages],
                [message.priority for message in messages],
            ]
            rows = await connection.fetch(self._sql(sql.INSERT_PLAIN), *columns)
            return [Inserted(Status.OK, row[0]) for row in rows]

        self._note_ordered(message.order_key for message in messages)
        if all(message.key_rule is None for message in messages):
            return await rare.insert(connection, self._sql, messages, buckets, now_ms, sql.CANCEL)
        # One after another: what a rule does to one is seen by the next.
        changing = rare.Changing(sql.CANCEL, sql.EARLIER, sql.GIVE_WAY)
        return [
            await rare.insert_ruled(connection, self._sql, message, bucket, now_ms, changing)
            for message, bucket in zip(messages, buckets, strict=True)
        ]

    async def cancel(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Status]:
        async def act(left: list[MessageId]) -> list[Any]:
            return await self._ordered_rows(sql.CANCEL, left, now_ms)

        return await self._on_unheld(ids, act, now_ms=now_ms)

    async def move(self, moves: Sequence[tuple[MessageId, int]], *, now_ms: int) -> list[Status]:
        due_ms = dict(moves)
        self._note_queued(due_ms.values())

        async def act(left: list[MessageId]) -> list[Any]:
            times = [due_ms[identity] for identity in left]
            return await self._ordered_rows(sql.MOVE, left, times, now_ms)

        return await self._on_unheld([identity for identity, _ in moves], act, now_ms=now_ms)

    async def purge(self, *, now_ms: int, limit: int) -> int:
        async def work(connection: Any) -> int:
            # What is over counts as nobody's, and is queued first.
            self._settle_ms = 0
            await self._settle(connection, limit, now_ms)
            async with connection.transaction():
                gone = list(await connection.fetch(self._sql(rare.PURGE), limit))
                gone += await connection.fetch(self._sql(sql.PURGE), limit - len(gone))
                await rare.order(connection, self._sql, (row[1] for row in gone))
                return len(gone)

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

    async def extend(self, extensions: Sequence[Extension]) -> list[Status]:
        until_ms = {item.handle: item.until_ms for item in extensions}
        self._settle_ms = min([self._settle_ms, *until_ms.values()])
        self.floors.lower_ends(self._settle_ms)

        async def act(left: list[Handle]) -> set[Handle]:
            times = [until_ms[handle] for handle in left]
            return {Handle(*row) for row in await self._rows(sql.EXTEND, *columns(left), times)}

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
                values = (*columns(left), due, uncounted, most)
                async with connection.transaction():
                    rows = await connection.fetch(self._sql(sql.RELEASE), *values)
                    queued = {Handle(row[0], row[1]): row[2] for row in rows}
                    order_keys = [row[3] for row in rows]
                    self._note_ordered(order_keys)
                    dying = [handle for handle in queued if not queued[handle]]
                    if dying:
                        ids, versions = columns(dying)
                        reasons = [by_handle[handle].reason for handle in dying]
                        after = [version + 1 for version in versions]
                        bury = self._sql(sql.BURY)
                        await connection.execute(bury, ids, after, reasons, now_ms, 0)
                    await rare.order(connection, self._sql, order_keys)
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

    async def delete(self, handles: Sequence[Handle], *, now_ms: int = 0) -> list[Status]:
        async def act(left: list[Handle]) -> set[Handle]:
            if self.ordered:
                return await self._delete_rare(left, now_ms)
            by_version: dict[Version, list[MessageId]] = defaultdict(list)
            for handle in left:
                by_version[handle.version].append(handle.id)
            done: set[Handle] = set()
            for version, ids in by_version.items():
                ((gone,),) = await self._rows(sql.DELETE, ids, version)
                if gone is not None and len(gone) == len(left):
                    return set(left)
                done.update(Handle(identity, version) for identity in gone or ())
            return done | await self._delete_rare([h for h in left if h not in done], now_ms)

        return await self._on_held(handles, act)

    async def _delete_rare(self, handles: list[Handle], now_ms: int) -> set[Handle]:
        """Deletes messages on which others hang, or whose keys stay taken."""

        async def work(connection: Any) -> set[Handle]:
            async with connection.transaction():
                rows = await connection.fetch(self._sql(rare.DELETE), *columns(handles))
                held = [row for row in rows if row[3] and row[4] is not None]
                if held:
                    keys, ids = [row[4] for row in held], [row[0] for row in held]
                    until = [now_ms + row[3] for row in held]
                    await connection.execute(self._sql(rare.TAKE_KEYS), keys, ids, until)
                self._note_ordered(row[2] for row in rows)
                await rare.order(connection, self._sql, (row[2] for row in rows))
                return {Handle(row[0], row[1]) for row in rows}

        return await self._pool.run(work)

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
            self.floors.lower_ends(0)
            await self._rows(sql.TAKE_BACK, *columns(left))
        raise Uncertain(f"{len(left)} leases change all the time; try again")

    async def take_up(
        self, consumer: str, *, known: Collection[Handle], now_ms: int, limit: int
    ) -> list[Leased]:
        handles = columns(list(known))
        rows = await self._rows(sql.TAKE_UP, consumer, now_ms, limit, *handles)
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

    async def walk(self, *, after: MessageId, limit: int, dead: bool, now_ms: int) -> list[Shown]:
        if dead:
            return shared.dead_of(await self._rows(sql.WALK_DEAD, after, limit, changes=False))
        rows = await self._rows(sql.WALK, after, limit, changes=False)
        return shared.shown_of(rows, now_ms)

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
        done = {row[0] for row in await self._ordered_rows(sql.REVIVE, list(ids), due_ms)}
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

    async def schedules(self, *, before_ms: int = TIME_MS_MAX) -> list[Schedule]:
        rows = await self._rows(sql.SCHEDULES, before_ms, changes=False)
        return [Schedule(*row) for row in rows]

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
        self._note_queued(firing.message.due_ms for firing in firings)

        async def work(connection: Any) -> list[bool]:
            async with connection.transaction():
                fired = []
                for firing in firings:
                    values = (firing.following_ms, firing.name, firing.expected_ms)
                    moved = await connection.fetchval(self._sql(sql.ADVANCE_SCHEDULE), *values)
                    if moved:
                        made = ([firing.message], [firing.bucket])
                        await self._insert(connection, *made, now_ms)
                    fired.append(bool(moved))
                return fired

        return await self._pool.run(work)

    # Upkeep

    async def trim(self, *, dead_max: int, batches_before_ms: int) -> Trimmed:
        dead = await self._rows(sql.TRIM_DEAD, dead_max)
        await self._rows(rare.TRIM_TAKEN, batches_before_ms)
        batches = await self._rows(sql.TRIM_BATCHES, batches_before_ms)
        return Trimmed(len(dead), len(batches))

    async def time_ms(self) -> int:
        ((now_ms,),) = await self._rows(sql.TIME, changes=False)
        return int(now_ms)


def _is_simple(message: NewMessage) -> bool:
    """Whether one statement stores it."""
    return message.order_key is None and message.key is None


def _is_free(state: tuple[int, bool, int], now_ms: int) -> bool:
    """Whether nobody holds a live lease on it."""
    _, held, visible_ms = state
    return not held or visible_ms <= now_ms
