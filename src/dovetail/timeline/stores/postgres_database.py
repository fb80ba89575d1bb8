"""The timelines in a PostgreSQL database, each with tables of its own.

Tables for each timeline, not one for all: a deleted timeline goes in milliseconds whatever its
size, vacuum follows each one's own pace, and the index on time holds nothing of its neighbours.
"""

from typing import Any

from dovetail.errors import InvalidSetting, NotFound, Unavailable
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores import _postgres_statements as sql
from dovetail.timeline.stores._postgres_pool import (
    CONNECTIONS_MAX,
    PLANNER,
    STATEMENT_S_MAX,
    Pool,
    leave_as_is,
)
from dovetail.timeline.stores.postgres import PostgresStore
from dovetail.timeline.stores.protocol import TimelineStore


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
            raise InvalidSetting(f"{schema!r} cannot be a schema: use letters, digits and _")
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=1,
                max_size=CONNECTIONS_MAX,
                command_timeout=STATEMENT_S_MAX,
                reset=leave_as_is,
                server_settings=PLANNER,
            )
        except (OSError, TimeoutError, ValueError, asyncpg.PostgresError) as error:
            raise Unavailable(f"no connection to PostgreSQL: {error}") from error

        stores = cls(Pool(pool, schema), schema)
        await stores._execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        return stores

    async def provision(self, timeline: TimelineId) -> None:
        await self._format_of(timeline)
        prefix = self._pool.prefix(timeline)
        bare = prefix.removeprefix(f"{self._schema}.")
        await self._execute(sql.SCHEMA.replace("{t}", prefix).replace("{n}", bare), timeline)

    async def open(self, timeline: TimelineId) -> TimelineStore:
        if await self._format_of(timeline) is None:
            raise NotFound(f"schema {self._schema} has no tables of timeline {timeline}")
        return PostgresStore(self._pool, timeline)

    async def _format_of(self, timeline: TimelineId) -> str | None:
        """What its tables say they are; None without any. Raises `Unavailable` if not ours."""
        name = f"{self._pool.prefix(timeline)}messages"

        async def work(connection: Any) -> str | None:
            found: str | None = await connection.fetchval(sql.FORMAT_OF, name)
            return found

        found = await self._pool.run(work, changes=False)
        if found not in (None, sql.FORMAT):
            raise Unavailable(
                f"table {name} is of {found!r}, and this version reads {sql.FORMAT!r}: delete the "
                "timeline and create it again, or give it back to the version that made it"
            )
        return found

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
