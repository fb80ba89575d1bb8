"""Timelines on SQLite: one file for each, which is removed whole when the timeline is deleted.

Why this schema (batches of 1,000, sync on commit, messages for each second of processor time; the
first figure with an empty store, the second with a million messages that are not due):

                                            insert          lease           delete
    one visible time, body apart            201k / 155k     123k / 112k     144k / 122k
    the same, and who holds it indexed      230k / 127k     105k / 104k     125k / 113k   (this one)
    body in the row                         284k / 251k      83k /  74k     209k / 168k
    free and leased indexed apart           243k / 178k     137k / 140k     148k / 170k

Each lease writes a body in the row again, which costs already at 100 bytes, and grows with the
body. Two indexes for free and leased rows are fastest, but then some process would have to end each
expired lease, and a broker that died would leave its messages stuck. The index on holders (of
leased rows only) answers "what did I hold" and "how many are leased" at any size.

Reading order is that of the index: visible time, bucket, id.
"""

import json
import re
import sqlite3
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from itertools import islice, pairwise
from pathlib import Path

from msgspec.structs import replace

from dovetail.errors import NotFound, Unavailable
from dovetail.timeline.engine.lives import Pace
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
    TimelineId,
    Version,
)
from dovetail.timeline.stores import _sqlite_statements as sql
from dovetail.timeline.stores import _sqlite_work as inside
from dovetail.timeline.stores import outcomes as shared
from dovetail.timeline.stores._sqlite_thread import SqliteThread
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult, TimelineStore, Trimmed

#: A timeline's number, as its file is named.
_NUMBER = re.compile(r"[0-9]{10}")


class SqliteStore:
    """A `TimelineStore` on one file. Make it with `open`."""

    def __init__(self, thread: SqliteThread) -> None:
        self._thread = thread
        self.ordered = False

    @classmethod
    async def open(cls, path: Path, *, reserve_bytes: int = 0) -> "SqliteStore":
        store = cls(await SqliteThread.open(path, sql.prepare, reserve_bytes=reserve_bytes))
        store.ordered = await store._thread.read(
            lambda connection: bool(connection.execute(sql.HAS_ORDER).fetchone()[0])
        )
        return store

    async def close(self) -> None:
        await self._thread.close()

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
        self.ordered |= any(message.order_key is not None for message in messages)

        def work(connection: sqlite3.Connection) -> list[Inserted]:
            if batch is not None:
                known = connection.execute(
                    sql.BATCH_KNOWN, (batch.producer, batch.sequence)
                ).fetchone()
                if known is not None:
                    return shared.decode_outcomes(known[0])
            self._thread.check_room()
            stored = inside.insert(connection, messages, buckets, now_ms)
            outcomes = shared.merged(stored, refused)
            if batch is not None:
                named = (batch.producer, batch.sequence, shared.encode_outcomes(outcomes), now_ms)
                connection.execute(sql.BATCH_NAME, named)
                oldest = batch.settled - shared.BATCHES_KEPT
                connection.execute(sql.BATCH_FORGET, (batch.producer, oldest))
            return outcomes

        return await self._thread.write(work)

    async def cancel(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            found = connection.execute(sql.CANCEL, (inside.as_json(ids), now_ms)).fetchall()
            done = {row[0] for row in found}
            connection.execute(sql.DELETE_BODIES, (inside.as_json(done),))
            inside.order(connection, [order_key for _, order_key in found])
            return inside.unheld_statuses(connection, ids, done)

        return await self._thread.write(work)

    async def move(self, moves: Sequence[tuple[MessageId, int]], *, now_ms: int) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            found: list[tuple[int, str | None]] = []
            for message, due_ms in moves:
                values = (due_ms, due_ms, message, now_ms)
                found += connection.execute(sql.MOVE, values).fetchall()
            inside.order(connection, [order_key for _, order_key in found])
            done = {identity for identity, _ in found}
            return inside.unheld_statuses(connection, [message for message, _ in moves], done)

        return await self._thread.write(work)

    async def purge(self, *, now_ms: int, limit: int) -> int:
        def work(connection: sqlite3.Connection) -> int:
            gone = connection.execute(sql.PURGE, (now_ms, limit)).fetchall()
            connection.execute(sql.DELETE_BODIES, (inside.as_json(row[0] for row in gone),))
            inside.order(connection, [order_key for _, order_key in gone])
            return len(gone)

        return await self._thread.write(work)

    # Consumers

    async def lease(
        self,
        asks: Sequence[LeaseAsk],
        *,
        now_ms: int,
        attempts_max: int,
        pace: Pace | None = None,
    ) -> LeaseResult:
        return await self._thread.write(
            lambda connection: inside.lease(connection, asks, now_ms, attempts_max, pace or Pace())
        )

    async def extend(self, extensions: Sequence[Extension]) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            done: set[Handle] = set()
            for extension in extensions:
                handle = extension.handle
                values = (extension.until_ms, handle.id, handle.version)
                if connection.execute(sql.EXTEND, values).rowcount:
                    done.add(handle)
            return inside.statuses(connection, [item.handle for item in extensions], done)

        return await self._thread.write(work)

    async def release(
        self, releases: Sequence[Release], *, now_ms: int, attempts_max: int
    ) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            done: set[Handle] = set()
            dying = []
            order_keys = []
            for item in releases:
                handle = item.handle
                uncounted = 0 if item.counted else 1
                values = (item.due_ms, uncounted, handle.id, handle.version)
                found = connection.execute(sql.RELEASE, values).fetchall()
                for identity, attempts, most, order_key in found:
                    done.add(handle)
                    order_keys.append(order_key)
                    if item.counted and attempts >= item.attempts_max(most or attempts_max):
                        dying.append((identity, item.reason))

            statuses = inside.statuses(connection, [item.handle for item in releases], done)
            inside.bury(connection, dying, now_ms)
            inside.order(connection, order_keys)
            dead = {identity for identity, _ in dying}
            return [
                Status.DEAD if status is Status.OK and item.handle.id in dead else status
                for item, status in zip(releases, statuses, strict=True)
            ]

        return await self._thread.write(work)

    async def delete(self, handles: Sequence[Handle], *, now_ms: int = 0) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            by_version: dict[int, list[int]] = {}
            for handle in handles:
                by_version.setdefault(handle.version, []).append(handle.id)
            gone: list[tuple[int, str | None, int, str | None]] = []
            done: list[tuple[int, list[int]]] = []
            for version, ids in by_version.items():
                rows = connection.execute(sql.DELETE, (inside.as_json(ids), version)).fetchall()
                gone += rows
                done.append((version, [row[0] for row in rows]))
            deleted = [identity for _, ids in done for identity in ids]
            connection.execute(sql.DELETE_BODIES, (inside.as_json(deleted),))
            keys = {order_key for _, order_key, _, _ in gone}
            inside.order(connection, keys, removed=True)
            held = [(key, identity, now_ms + hold) for identity, _, hold, key in gone if hold]
            if held:
                taken = [each for each in held if each[0] is not None]
                connection.executemany(sql.TAKE_KEY, taken)
            if len(deleted) == len(handles):
                return [Status.OK] * len(handles)
            found = {Handle(MessageId(each), Version(at)) for at, ids in done for each in ids}
            return inside.statuses(connection, handles, found)

        return await self._thread.write(work)

    async def take_up(
        self, consumer: str, *, known: Collection[Handle], now_ms: int, limit: int
    ) -> list[Leased]:
        def work(connection: sqlite3.Connection) -> list[Leased]:
            rows = connection.execute(sql.HELD_BY, (consumer, now_ms))
            new = (leased for row in rows if (leased := Leased(*row)).handle not in known)
            taken = list(islice(new, limit))
            connection.execute(sql.TAKE_UP, (inside.as_json(leased.id for leased in taken),))
            return [replace(leased, version=Version(leased.version + 1)) for leased in taken]

        return await self._thread.write(work)

    # Whoever looks

    async def look_up(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Shown | None]:
        def work(connection: sqlite3.Connection) -> list[Shown | None]:
            rows = connection.execute(sql.LOOK_UP, (inside.as_json(ids),))
            found = {shown.id: shown for shown in shared.shown_of(rows, now_ms)}
            rows = connection.execute(sql.LOOK_UP_DEAD, (inside.as_json(ids),))
            found |= {shown.id: shown for shown in shared.dead_of(rows)}
            return [found.get(identity) for identity in ids]

        return await self._thread.read(work)

    async def look_up_keys(self, keys: Sequence[str], *, now_ms: int) -> list[Shown | None]:
        def work(connection: sqlite3.Connection) -> list[Shown | None]:
            rows = connection.execute(sql.LOOK_UP_KEYS, (json.dumps(list(keys)),))
            found = {shown.key: shown for shown in shared.shown_of(rows, now_ms)}
            return [found.get(key) for key in keys]

        return await self._thread.read(work)

    async def peek(self, *, now_ms: int, limit: int) -> list[Shown]:
        return await self._thread.read(
            lambda connection: shared.shown_of(connection.execute(sql.PEEK, (limit,)), now_ms)
        )

    async def walk(self, *, after: MessageId, limit: int, dead: bool, now_ms: int) -> list[Shown]:
        def work(connection: sqlite3.Connection) -> list[Shown]:
            if dead:
                return shared.dead_of(connection.execute(sql.WALK_DEAD, (after, limit)))
            return shared.shown_of(connection.execute(sql.WALK, (after, limit)), now_ms)

        return await self._thread.read(work)

    async def counts(self, *, now_ms: int) -> Counts:
        def work(connection: sqlite3.Connection) -> Counts:
            (total,) = connection.execute(sql.COUNT).fetchone()
            due, oldest = connection.execute(sql.COUNT_DUE, (now_ms,)).fetchone()
            (leased,) = connection.execute(sql.COUNT_LEASED, (now_ms,)).fetchone()
            (dead,) = connection.execute(sql.COUNT_DEAD).fetchone()
            return Counts(max(0, total - due - leased), due, leased, dead, oldest or 0)

        return await self._thread.read(work)

    async def histogram(self, edges_ms: Sequence[int]) -> list[int]:
        def work(connection: sqlite3.Connection) -> list[int]:
            spans = pairwise(edges_ms)
            return [int(connection.execute(sql.COUNT_SPAN, span).fetchone()[0]) for span in spans]

        return await self._thread.read(work)

    # Dead letters

    async def dead(self, *, after: MessageId, limit: int) -> list[Shown]:
        return await self._thread.read(
            lambda connection: shared.dead_of(connection.execute(sql.DEAD, (after, limit)))
        )

    async def replay(self, ids: Sequence[MessageId], *, due_ms: int) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            statuses = []
            for identity in ids:
                statuses.append(inside.replay(connection, identity, due_ms))
            return statuses

        return await self._thread.write(work)

    async def drop_dead(self, ids: Sequence[MessageId]) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            rows = connection.execute(sql.DROP_DEAD, (inside.as_json(ids),)).fetchall()
            done = {row[0] for row in rows}
            connection.execute(sql.DELETE_BODIES, (inside.as_json(done),))
            return shared.once(ids, done)

        return await self._thread.write(work)

    # Schedules

    async def put_schedule(self, schedule: Schedule) -> None:
        values = astuple(schedule)
        await self._thread.write(lambda connection: connection.execute(sql.PUT_SCHEDULE, values))

    async def drop_schedule(self, name: str) -> bool:
        return await self._thread.write(
            lambda connection: connection.execute(sql.DROP_SCHEDULE, (name,)).rowcount > 0
        )

    async def schedules(self, *, before_ms: int = TIME_MS_MAX) -> list[Schedule]:
        def work(connection: sqlite3.Connection) -> list[Schedule]:
            return [Schedule(*row) for row in connection.execute(sql.SCHEDULES, (before_ms,))]

        return await self._thread.read(work)

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
        def work(connection: sqlite3.Connection) -> list[bool]:
            fired = []
            for firing in firings:
                values = (firing.following_ms, firing.name, firing.expected_ms)
                done = connection.execute(sql.ADVANCE_SCHEDULE, values).rowcount > 0
                if done:
                    inside.insert(connection, [firing.message], [firing.bucket], now_ms)
                fired.append(done)
            return fired

        return await self._thread.write(work)

    # Upkeep

    def heard(self, due_ms: int) -> None:
        """Nobody else stores here."""

    async def trim(self, *, dead_max: int, batches_before_ms: int) -> Trimmed:
        def work(connection: sqlite3.Connection) -> Trimmed:
            rows = connection.execute(sql.TRIM_DEAD, (dead_max,)).fetchall()
            connection.execute(sql.DELETE_BODIES, (inside.as_json(row[0] for row in rows),))
            connection.execute(sql.TRIM_TAKEN, (batches_before_ms,))
            batches = connection.execute(sql.TRIM_BATCHES, (batches_before_ms,)).rowcount
            return Trimmed(len(rows), batches)

        return await self._thread.write(work)

    async def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SqliteStores:
    """A folder of files, one for each timeline."""

    news = None

    def __init__(self, folder: Path, *, reserve_bytes: int = 0) -> None:
        """So much of the disk stays free of new messages, so that old ones can be handled."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._reserve_bytes = reserve_bytes

    async def provision(self, timeline: TimelineId, label: bytes = b"") -> None:
        store = await SqliteStore.open(self._path(timeline))
        await store.close()

    async def adopted(self) -> dict[TimelineId, bytes]:
        return {}

    async def adoption_done(self) -> None:
        """Nobody else's timelines are ever here."""

    async def open(self, timeline: TimelineId) -> TimelineStore:
        if not self._path(timeline).exists():
            raise NotFound(f"{self._path(timeline)}: no such timeline file")
        return await SqliteStore.open(self._path(timeline), reserve_bytes=self._reserve_bytes)

    async def drop(self, timeline: TimelineId) -> None:
        # The database goes first: without it, what is left of a log is of no timeline.
        path = self._path(timeline)
        try:
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"{path} cannot be removed: {error.strerror}") from error

    async def existing(self) -> set[TimelineId]:
        stems = (path.stem for path in self._folder.glob("*.sqlite"))
        # A copy that an operator made is none of ours.
        return {TimelineId(int(stem)) for stem in stems if _NUMBER.fullmatch(stem)}

    async def close(self) -> None:
        """Nothing is held here; each store is closed by who opened it."""

    def _path(self, timeline: TimelineId) -> Path:
        return self._folder / f"{timeline:010d}.sqlite"
