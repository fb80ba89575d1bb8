"""Notifications between the brokers of a database's timelines: LISTEN and NOTIFY.

One connection of each broker listens, and also polls: a broker that dies between its commit and its
NOTIFY notifies nobody, and polling also detects a dead connection. A NOTIFY is a separate statement
after the commit, for many messages at once: inside each transaction it would make all commits of
the server wait for each other.
"""

import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import Any, Final
from weakref import WeakValueDictionary

from dovetail.logging import get_logger
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores import _postgres_statements as sql
from dovetail.timeline.stores._postgres_floors import BOTTOM_MS
from dovetail.timeline.stores._postgres_leasing import PostgresLeasing
from dovetail.timeline.stores._postgres_pool import Pool, translated
from dovetail.timeline.stores.protocol import Look, Looked, Seen

_log = get_logger("timeline")

#: Longest time for a look, which takes milliseconds: beyond, nobody listens at the other end.
_LOOK_S_MAX: Final = 5.0

#: What a broker that waits has to know of a timeline: the first that is queued, parked and leased
#: from the floors on, and the next time of a schedule. Such a row for each timeline, in one
#: statement.
SEEN: Final = """
SELECT {i}, (SELECT min(visible) FROM {t}queue WHERE visible >= ($1::bigint[])[{i}]),
    (SELECT min(visible) FROM {t}parked WHERE visible >= ($1::bigint[])[{i}]),
    (SELECT min(until) FROM {t}ends WHERE until >= ($2::bigint[])[{i}]),
    (SELECT min(next) FROM {t}schedules), (extract(epoch FROM clock_timestamp()) * 1000)::bigint
"""
NOTIFY: Final = "SELECT pg_notify($1, p) FROM unnest($2::text[]) AS n (p)"


class PostgresNews:
    """The news of one schema. See the module."""

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self._channel = "dovetail_" + hashlib.blake2b(schema.encode(), digest_size=8).hexdigest()
        #: Tells our own news from those of others.
        self._us = secrets.token_hex(8)
        #: What is open here, with where its queue begins.
        self.open: WeakValueDictionary[TimelineId, PostgresLeasing] = WeakValueDictionary()

    @asynccontextmanager
    async def following(self, hear: Callable[[TimelineId, int], None]) -> AsyncIterator[Look]:
        import asyncpg

        def on_notify(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            whose, _, rest = payload.partition(" ")
            try:
                timeline, due_ms = map(int, rest.split(" "))
            except ValueError:
                _log.warning("not a notification of ours", payload=payload[:100])
                return
            if whose != self._us:
                hear(TimelineId(timeline), due_ms)

        async with self._pool.connection() as connection:
            with translated(changes=False):
                await connection.add_listener(self._channel, on_notify)
            self._pool.listening = True

            async def look(timelines: Collection[TimelineId], now_ms: int) -> Looked:
                with translated(changes=False):
                    return await self._look(connection, sorted(timelines), now_ms)

            try:
                yield look
            finally:
                self._pool.listening = False
                # Something may be under way on it, or it may be broken: it is not used again. One
                # that the pool has dropped meanwhile says so.
                with suppress(asyncpg.InterfaceError):
                    connection.terminate()

    async def _look(self, connection: Any, ids: list[TimelineId], now_ms: int) -> Looked:
        floors = [self.open[timeline].floors for timeline in ids if timeline in self.open]
        if len(floors) < len(ids) or not ids:
            return Looked(await connection.fetchval(sql.TIME, timeout=_LOOK_S_MAX), {})
        parts = [
            SEEN.replace("{i}", str(at)).replace("{t}", self._pool.prefix(timeline))
            for at, timeline in enumerate(ids, 1)
        ]

        alone = [each.begin(now_ms=now_ms, listening=True) for each in floors]
        walked = [each.queue_ms == BOTTOM_MS for each in floors]
        queues, ends = [each.queue_ms for each in floors], [each.ends_ms for each in floors]
        began_s = perf_counter()
        rows: list[Any] = []
        try:
            statement = " UNION ALL ".join(parts)
            rows = await connection.fetch(statement, queues, ends, timeout=_LOOK_S_MAX)
        finally:
            took_ms = (perf_counter() - began_s) * 1000
            for at, each in enumerate(floors):
                if alone[at] and rows:
                    each.raise_to(_first(rows[at][1:3]), now_ms=now_ms, settled=False)
                if alone[at]:
                    each.end(now_ms=now_ms, took_ms=took_ms, walked=walked[at])

        found = {ids[row[0] - 1]: Seen(_first((row[1], row[3])), row[4]) for row in rows}
        return Looked(rows[-1][5], found)

    async def tell(self, news: Mapping[TimelineId, int]) -> None:
        payloads = [f"{self._us} {timeline} {due_ms}" for timeline, due_ms in news.items()]

        async def work(connection: Any) -> None:
            await connection.execute(NOTIFY, self._channel, payloads)

        await self._pool.run(work, changes=False)


def _first(times_ms: Iterable[int | None]) -> int | None:
    return min((at for at in times_ms if at is not None), default=None)
