"""The timelines in a PostgreSQL database, each with its own tables.

Each timeline has its own tables, not one set for all: deleting a timeline takes milliseconds
whatever its size, vacuum follows each one's pace, and the index on time holds nothing of its
neighbours.

A schema belongs to one cluster, whose id is in its table `owner`: timelines have numbers, and two
clusters would take each other's for their own and delete them. The first cluster owns it, under a
lock, so that nodes that start together agree; any other is refused. An operator can hand the schema
over (`hand_over`) when its cluster is lost, such as a node that was rebuilt; the new owner then
finds the timelines with their names (`adopted`).
"""

from typing import Any

from dovetail.errors import InvalidSetting, NotFound, Unavailable
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores import _postgres_order as rare
from dovetail.timeline.stores import _postgres_statements as sql
from dovetail.timeline.stores._postgres_news import PostgresNews
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

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self.news = PostgresNews(pool, schema)
        self._schema = schema

    @classmethod
    async def connect(
        cls, dsn: str, *, schema: str = "dovetail", cluster: str = ""
    ) -> "PostgresStores":
        """Connects, makes the schema, and claims it for the cluster; unclaimed without one.

        Raises `InvalidSetting` if it is another cluster's, and `Unavailable`.
        """
        try:
            import asyncpg
        except ImportError as error:
            raise InvalidSetting(
                "timelines on PostgreSQL need asyncpg: pip install 'dovetailmq[postgres]'"
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
        try:
            await stores._claim(cluster)
        except BaseException:
            await stores.close()
            raise
        return stores

    async def _claim(self, cluster: str) -> None:
        async def work(connection: Any) -> str | None:
            async with connection.transaction():
                await connection.execute(sql.ALONE, 0)
                await connection.execute(self._sql(sql.OWNED))
                if cluster:
                    await connection.execute(self._sql(sql.CLAIM), cluster)
                found: str | None = await connection.fetchval(self._sql(sql.OWNER))
                return found

        owner = await self._pool.run(work)
        if cluster and owner != cluster:
            raise InvalidSetting(
                f"schema {self._schema!r} of timeline.dsn holds the timelines of another cluster, "
                f"{owner}, and this is cluster {cluster}. Give this cluster a schema of its own "
                "(timeline.schema_name). Or, if that cluster is gone for good and this one takes "
                f"its place: dovetail timeline adopt {owner} {cluster}"
            )

    async def hand_over(self, before: str, after: str) -> None:
        """Makes another cluster the owner, which finds the timelines when it starts.

        Raises `NotFound` if the schema is not the former's.
        """

        async def work(connection: Any) -> tuple[str, str | None]:
            done: str = await connection.execute(self._sql(sql.HAND_OVER), before, after)
            return done, await connection.fetchval(self._sql(sql.OWNER))

        done, owner = await self._pool.run(work)
        if done == "UPDATE 0" and owner != after:
            whose = f"belongs to cluster {owner}" if owner else "belongs to no cluster yet"
            raise NotFound(f"schema {self._schema!r} {whose}, not to {before}")

    async def adopted(self) -> dict[TimelineId, bytes]:
        async def work(connection: Any) -> dict[TimelineId, bytes]:
            if not await connection.fetchval(self._sql(sql.IS_ADOPTED)):
                return {}
            labels = dict(await connection.fetch(self._sql(sql.LABELS)))
            rows = await connection.fetch(sql.EXISTING, self._schema)
            return {TimelineId(row[0]): labels.get(row[0], b"") for row in rows}

        return await self._pool.run(work, changes=False)

    async def adoption_done(self) -> None:
        await self._execute(self._sql(sql.ADOPTION_DONE))

    async def provision(self, timeline: TimelineId, label: bytes = b"") -> None:
        await self._format_of(timeline)
        await self._make_tables(timeline, (sql.KEEP_LABEL, int(timeline), label))

    async def _make_tables(self, timeline: TimelineId, then: tuple[Any, ...] | None = None) -> None:
        """Makes what is not there yet."""
        prefix = self._pool.prefix(timeline)
        bare = prefix.removeprefix(f"{self._schema}.")
        tables = (sql.SCHEMA + rare.SCHEMA).replace("{t}", prefix).replace("{n}", bare)
        await self._execute(tables, timeline, then)

    async def open(self, timeline: TimelineId) -> TimelineStore:
        found = await self._format_of(timeline)
        if found is None:
            raise NotFound(f"schema {self._schema} has no tables of timeline {timeline}")
        if found == sql.FORMAT_BEFORE:
            await self._make_tables(timeline)
        store = PostgresStore(self._pool, timeline)
        self.news.open[timeline] = store
        return store

    async def _format_of(self, timeline: TimelineId) -> str | None:
        """What its tables say they are; None without any. Raises `Unavailable` if not ours."""
        name = f"{self._pool.prefix(timeline)}messages"

        async def work(connection: Any) -> str | None:
            found: str | None = await connection.fetchval(sql.FORMAT_OF, name)
            return found

        found = await self._pool.run(work, changes=False)
        if found not in (None, sql.FORMAT, sql.FORMAT_BEFORE):
            raise Unavailable(
                f"table {name} is of {found!r}, and this version reads {sql.FORMAT!r}: delete the "
                "timeline and create it again, or give it back to the version that made it"
            )
        return found

    async def drop(self, timeline: TimelineId) -> None:
        tables = sql.DROP.replace("{t}", self._pool.prefix(timeline))
        await self._execute(tables, timeline, (sql.DROP_LABEL, int(timeline)))

    async def existing(self) -> set[TimelineId]:
        async def work(connection: Any) -> list[Any]:
            return list(await connection.fetch(sql.EXISTING, self._schema))

        rows = await self._pool.run(work, changes=False)
        return {TimelineId(int(row[0])) for row in rows}

    async def close(self) -> None:
        await self._pool.pool.close()

    async def _execute(
        self,
        statements: str,
        timeline: TimelineId = TimelineId(0),
        then: tuple[Any, ...] | None = None,
    ) -> None:
        """Runs statements alone: two that make the same tables at once would trip each other.

        `then` is one more, with its values.
        """

        async def work(connection: Any) -> None:
            async with connection.transaction():
                await connection.execute(sql.ALONE, int(timeline))
                await connection.execute(statements)
                if then is not None:
                    await connection.execute(self._sql(then[0]), *then[1:])

        await self._pool.run(work)

    def _sql(self, statement: str) -> str:
        return statement.replace("{s}", self._schema)
