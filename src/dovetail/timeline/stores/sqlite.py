"""Timelines on SQLite: one file for each, which is removed whole when the timeline is deleted.

Why this schema (batches of 1,000, sync on commit, messages for each second of processor time; the
first figure with an empty store, the second with a million messages that are not due):

                                            insert          lease           delete
    one visible time, body apart            201k / 155k     123k / 112k     144k / 122k
    the same, and who holds it indexed      230k / 127k     105k / 104k     125k / 113k   (this one)
    body in the row                         284k / 251k      83k /  74k     209k / 168k
    free and leased indexed apart           243k / 178k     137k / 140k     148k / 170k

A body in the row is written again by each lease, which costs with 100 bytes already, and grows with
the body. Two indexes for free and leased rows are fastest, but an ended lease would then need
somebody to end it, and a broker that died would leave its messages lying. The index on holders
(of leased rows only) answers "what did I hold" and "how many are leased" at any size.

Reading order is that of the index: visible time, bucket, id.
"""

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.errors import NotFound, Unavailable
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
from dovetail.timeline.stores import _sqlite_statements as sql
from dovetail.timeline.stores import outcomes as shared
from dovetail.timeline.stores._sqlite_thread import SqliteThread
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult, TimelineStore, Trimmed


class SqliteStore:
    """A `TimelineStore` on one file. Make it with `open`."""

    def __init__(self, thread: SqliteThread) -> None:
        self._thread = thread

    @classmethod
    async def open(cls, path: Path) -> "SqliteStore":
        return cls(await SqliteThread.open(path, sql.prepare))

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
    ) -> list[Inserted]:
        def work(connection: sqlite3.Connection) -> list[Inserted]:
            if batch is not None:
                known = connection.execute(
                    sql.BATCH_KNOWN, (batch.producer, batch.sequence)
                ).fetchone()
                if known is not None:
                    return shared.decode_outcomes(known[0])
            outcomes = _insert(connection, messages, buckets)
            if batch is not None:
                named = (batch.producer, batch.sequence, shared.encode_outcomes(outcomes), now_ms)
                connection.execute(sql.BATCH_NAME, named)
                oldest = batch.settled - shared.BATCHES_KEPT
                connection.execute(sql.BATCH_FORGET, (batch.producer, oldest))
            return outcomes

        return await self._thread.write(work)

    async def cancel(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            found = connection.execute(sql.CANCEL, (_json(ids), now_ms)).fetchall()
            done = {row[0] for row in found}
            connection.execute(sql.DELETE_BODIES, (_json(done),))
            return _unheld_statuses(connection, ids, done)

        return await self._thread.write(work)

    async def move(self, moves: Sequence[tuple[MessageId, int]], *, now_ms: int) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            done = set()
            for message, due_ms in moves:
                values = (due_ms, due_ms, message, now_ms)
                done |= {row[0] for row in connection.execute(sql.MOVE, values)}
            return _unheld_statuses(connection, [message for message, _ in moves], done)

        return await self._thread.write(work)

    async def purge(self, *, now_ms: int, limit: int) -> int:
        def work(connection: sqlite3.Connection) -> int:
            gone = [row[0] for row in connection.execute(sql.PURGE, (now_ms, limit)).fetchall()]
            connection.execute(sql.DELETE_BODIES, (_json(gone),))
            return len(gone)

        return await self._thread.write(work)

    # Consumers

    async def lease(
        self, asks: Sequence[LeaseAsk], *, now_ms: int, attempts_max: int
    ) -> LeaseResult:
        def work(connection: sqlite3.Connection) -> LeaseResult:
            died = 0
            leased = []
            for ask in asks:
                taken, dead = _lease(connection, ask, now_ms, attempts_max)
                leased.append(taken)
                died += dead
            horizon_ms = max((ask.horizon_ms for ask in asks), default=now_ms)
            next_ms, ends_ms = connection.execute(sql.NEXT, (horizon_ms, now_ms)).fetchone()
            return LeaseResult(tuple(leased), died, next_ms, ends_ms)

        return await self._thread.write(work)

    async def extend(self, extensions: Sequence[Extension]) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            done: set[Handle] = set()
            for extension in extensions:
                handle = extension.handle
                values = (extension.until_ms, handle.id, handle.version)
                if connection.execute(sql.EXTEND, values).rowcount:
                    done.add(handle)
            return _statuses(connection, [item.handle for item in extensions], done)

        return await self._thread.write(work)

    async def release(
        self, releases: Sequence[Release], *, now_ms: int, attempts_max: int
    ) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            done: set[Handle] = set()
            dying = []
            for item in releases:
                handle = item.handle
                uncounted = 0 if item.counted else 1
                values = (item.due_ms, uncounted, handle.id, handle.version)
                for identity, attempts in connection.execute(sql.RELEASE, values).fetchall():
                    done.add(handle)
                    if item.counted and attempts >= item.attempts_max(attempts_max):
                        dying.append((identity, item.reason))

            statuses = _statuses(connection, [item.handle for item in releases], done)
            _bury(connection, dying, now_ms)
            dead = {identity for identity, _ in dying}
            return [
                Status.DEAD if status is Status.OK and item.handle.id in dead else status
                for item, status in zip(releases, statuses, strict=True)
            ]

        return await self._thread.write(work)

    async def delete(self, handles: Sequence[Handle]) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            by_version: dict[int, list[int]] = {}
            for handle in handles:
                by_version.setdefault(handle.version, []).append(handle.id)
            gone: list[int] = []
            done: set[Handle] = set()
            for version, ids in by_version.items():
                rows = connection.execute(sql.DELETE, (_json(ids), version)).fetchall()
                gone += (row[0] for row in rows)
                done |= {Handle(MessageId(row[0]), Version(version)) for row in rows}
            connection.execute(sql.DELETE_BODIES, (_json(gone),))
            return _statuses(connection, handles, done)

        return await self._thread.write(work)

    async def take_up(
        self, consumer: str, *, known: Collection[Handle], now_ms: int, limit: int
    ) -> list[Leased]:
        def work(connection: sqlite3.Connection) -> list[Leased]:
            rows = connection.execute(sql.HELD_BY, (consumer, now_ms))
            new = (leased for row in rows if (leased := Leased(*row)).handle not in known)
            taken = list(islice(new, limit))
            connection.execute(sql.TAKE_UP, (_json(leased.id for leased in taken),))
            return [replace(leased, version=Version(leased.version + 1)) for leased in taken]

        return await self._thread.write(work)

    # Whoever looks

    async def look_up(self, ids: Sequence[MessageId], *, now_ms: int) -> list[Shown | None]:
        def work(connection: sqlite3.Connection) -> list[Shown | None]:
            rows = connection.execute(sql.LOOK_UP, (_json(ids),))
            found = {shown.id: shown for shown in shared.shown_of(rows, now_ms)}
            rows = connection.execute(sql.LOOK_UP_DEAD, (_json(ids),))
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
                statuses.append(_replay(connection, identity, due_ms))
            return statuses

        return await self._thread.write(work)

    async def drop_dead(self, ids: Sequence[MessageId]) -> list[Status]:
        def work(connection: sqlite3.Connection) -> list[Status]:
            done = {row[0] for row in connection.execute(sql.DROP_DEAD, (_json(ids),)).fetchall()}
            connection.execute(sql.DELETE_BODIES, (_json(done),))
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

    async def schedules(self) -> list[Schedule]:
        return await self._thread.read(
            lambda connection: [Schedule(*row) for row in connection.execute(sql.SCHEDULES)]
        )

    async def fire(self, firings: Sequence[Firing], *, now_ms: int) -> list[bool]:
        def work(connection: sqlite3.Connection) -> list[bool]:
            fired = []
            for firing in firings:
                values = (firing.following_ms, firing.name, firing.expected_ms)
                done = connection.execute(sql.ADVANCE_SCHEDULE, values).rowcount > 0
                if done:
                    _insert(connection, [firing.message], [firing.bucket])
                fired.append(done)
            return fired

        return await self._thread.write(work)

    # Upkeep

    async def trim(self, *, dead_max: int, batches_before_ms: int) -> Trimmed:
        def work(connection: sqlite3.Connection) -> Trimmed:
            rows = connection.execute(sql.TRIM_DEAD, (dead_max,)).fetchall()
            connection.execute(sql.DELETE_BODIES, (_json(row[0] for row in rows),))
            batches = connection.execute(sql.TRIM_BATCHES, (batches_before_ms,)).rowcount
            return Trimmed(len(rows), batches)

        return await self._thread.write(work)

    async def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SqliteStores:
    """A folder of files, one for each timeline."""

    shared = False

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder

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
        return await SqliteStore.open(self._path(timeline))

    async def drop(self, timeline: TimelineId) -> None:
        # The database goes first: without it, what is left of a log is of no timeline.
        path = self._path(timeline)
        try:
            for ending in ("", "-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"{path} cannot be removed: {error.strerror}") from error

    async def existing(self) -> set[TimelineId]:
        return {TimelineId(int(path.stem)) for path in self._folder.glob("*.sqlite")}

    async def close(self) -> None:
        """Nothing is held here; each store is closed by who opened it."""

    def _path(self, timeline: TimelineId) -> Path:
        return self._folder / f"{timeline:010d}.sqlite"


# Inside a transaction


def _insert(
    connection: sqlite3.Connection, messages: Sequence[NewMessage], buckets: Sequence[int]
) -> list[Inserted]:
    (first,) = connection.execute(sql.TAKE_IDS, (len(messages),)).fetchone()
    if all(message.key is None for message in messages):
        return _insert_plain(connection, messages, buckets, first)

    rows: list[tuple[Any, ...]] = []
    bodies: list[tuple[Any, ...]] = []
    outcomes = []
    for identity, (message, bucket) in enumerate(zip(messages, buckets, strict=True), first):
        due_ms, key = message.due_ms, message.key
        row = (identity, due_ms, bucket, due_ms, message.priority, key)
        if key is None:
            rows.append(row)
        elif connection.execute(sql.INSERT_KEYED, row).rowcount == 0:
            (taken_by,) = connection.execute(sql.BY_KEY, (key,)).fetchone()
            outcomes.append(Inserted(Status.EXISTS, taken_by))
            continue
        bodies.append((identity, message.body, message.headers))
        outcomes.append(Inserted(Status.OK, MessageId(identity)))

    _insert_rows(connection, rows, bodies)
    return outcomes


def _insert_plain(
    connection: sqlite3.Connection,
    messages: Sequence[NewMessage],
    buckets: Sequence[int],
    first: int,
) -> list[Inserted]:
    """Messages without keys: nothing can be refused."""
    ids = range(first, first + len(messages))
    rows = [
        (identity, new.due_ms, bucket, new.due_ms, new.priority, None)
        for identity, new, bucket in zip(ids, messages, buckets, strict=True)
    ]
    bodies = [(i, new.body, new.headers) for i, new in zip(ids, messages, strict=True)]
    _insert_rows(connection, rows, bodies)
    return [Inserted(Status.OK, MessageId(identity)) for identity in ids]


def _insert_rows(
    connection: sqlite3.Connection,
    rows: Sequence[tuple[Any, ...]],
    bodies: Sequence[tuple[Any, ...]],
) -> None:
    for one, many, given in (
        (sql.INSERT, sql.INSERT_ROWS, rows),
        (sql.INSERT_BODY, sql.INSERT_BODY_ROWS, bodies),
    ):
        whole = len(given) - len(given) % sql.ROWS
        for at in range(0, whole, sql.ROWS):
            connection.execute(many, tuple(chain.from_iterable(given[at : at + sql.ROWS])))
        connection.executemany(one, given[whole:])


def _lease(
    connection: sqlite3.Connection, ask: LeaseAsk, now_ms: int, attempts_max: int
) -> tuple[tuple[Leased, ...], int]:
    buckets = (ask.horizon_ms, now_ms, ask.low, ask.high, ask.mask, ask.mask, ask.low)
    died = 0
    left = ask.limit
    taken: list[Leased] = []
    while left > 0:
        asked = (now_ms, ask.lease_ms, ask.consumer, *buckets, left)
        rows = connection.execute(sql.LEASE, asked).fetchall()
        # An attempt beyond the last one is no attempt: that message had its chances.
        dying = [(row[0], shared.REASON_ENDED) for row in rows if row[4] > attempts_max]
        rows = [row for row in rows if row[4] <= attempts_max]

        bodies = connection.execute(sql.BODIES, (_json(row[0] for row in rows),))
        contents = {identity: (body, headers) for identity, body, headers in bodies}
        for row in rows:
            values: tuple[Any, ...] = (*row[:-1], *contents[row[0]], row[-1])
            taken.append(Leased(*values))

        if dying:
            _take_back_attempt(connection, dying)
            _bury(connection, dying, now_ms)
            died += len(dying)
        left -= len(rows)
        if not dying:
            break
    taken.sort(key=lambda leased: (-leased.priority, leased.due_ms, leased.id))
    return tuple(taken), died


def _take_back_attempt(connection: sqlite3.Connection, dying: Iterable[tuple[int, str]]) -> None:
    connection.execute(sql.UNCOUNT, (_json(identity for identity, _ in dying),))


def _bury(connection: sqlite3.Connection, dying: Sequence[tuple[int, str]], now_ms: int) -> None:
    """Makes dead letters; their bodies stay where they are."""
    for identity, reason in dying:
        connection.execute(sql.BURY, (reason, now_ms, identity))
    if dying:
        connection.execute(sql.DELETE_ROWS, (_json(identity for identity, _ in dying),))


def _replay(connection: sqlite3.Connection, identity: MessageId, due_ms: int) -> Status:
    row = connection.execute(sql.DEAD_KEY, (identity,)).fetchone()
    if row is None:
        return Status.GONE
    if row[0] is not None and connection.execute(sql.BY_KEY, (row[0],)).fetchone() is not None:
        return Status.EXISTS
    connection.execute(sql.REVIVE, (due_ms, due_ms, identity))
    connection.execute(sql.DELETE_DEAD, (identity,))
    return Status.OK


def _statuses(
    connection: sqlite3.Connection, handles: Sequence[Handle], done: "set[Handle]"
) -> list[Status]:
    if len(done) == len(handles):
        return [Status.OK] * len(handles)
    missed = [handle.id for handle in handles if handle not in done]
    versions = dict(connection.execute(sql.VERSIONS, (_json(missed),)).fetchall())
    return [shared.status_of_miss(handle, done, versions) for handle in handles]


def _unheld_statuses(
    connection: sqlite3.Connection, ids: Sequence[MessageId], done: "set[int]"
) -> list[Status]:
    missed = [identity for identity in ids if identity not in done]
    there = dict(connection.execute(sql.VERSIONS, (_json(missed),)).fetchall())
    return [shared.status_of_unheld(identity, done, there) for identity in ids]


def _json(ids: Iterable[int]) -> str:
    return json.dumps(list(ids))
