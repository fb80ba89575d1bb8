"""Connections to PostgreSQL, and the meaning of their errors.

A broken connection means: not sent → `Unavailable`; sent and not answered → `Uncertain`. A deadlock
or a serialisation failure has changed nothing, and is retried here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dovetail.errors import NotFound, Unavailable, Uncertain
from dovetail.logging import get_logger
from dovetail.timeline.message import TimelineId

if TYPE_CHECKING:
    import asyncpg

_log = get_logger("timeline")

#: Attempts of a command that PostgreSQL ended for the sake of another.
ATTEMPTS_MAX: Final = 5
#: Connections of one broker: one leases while others insert, delete and look, and one listens.
CONNECTIONS_MAX: Final = 9
#: Longest time for a statement. A healthy server needs milliseconds; minutes would hide a dead one.
STATEMENT_S_MAX: Final = 30.0

#: Every statement here is to follow an index in its order. Left to itself, the planner believes
#: that a lease finds one row, gathers all that is due, and sorts it: with a million due, a million
#: rows for each lease. What it joins it would rather read from one end to the other, and begin with
#: whichever table it thinks is small: tables are joined in the order in which they are written.
PLANNER: Final = {
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_sort": "off",
    "jit": "off",
    "join_collapse_limit": "1",
}

Result = TypeVar("Result")


async def leave_as_is(connection: Any) -> None:
    """Nothing: no command leaves a setting, a cursor or a lock behind, and an open transaction is
    ended by the pool. What the pool does otherwise is a statement more for each command."""


class Pool:
    """Connections, and what their errors mean."""

    def __init__(self, pool: "asyncpg.Pool[Any]", schema: str) -> None:
        self.pool = pool
        self._schema = schema
        #: Whether we hear what other brokers store (`_postgres_news`).
        self.listening = False

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
        async with self.connection() as connection:
            with translated(changes=changes):
                return await work(connection)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A connection of one's own for a while. Raises `Unavailable`."""
        import asyncpg

        try:
            # Not `acquire(timeout=...)`, which is a task of its own for a connection that is there.
            async with asyncio.timeout(STATEMENT_S_MAX):
                connection = await self.pool.acquire()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise Unavailable(f"no connection to PostgreSQL: {error!r}") from error
        try:
            yield connection
        finally:
            try:
                await self.pool.release(connection)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                # The pool has dropped it; what was done on it is known.
                _log.debug("connection lost when it was given back", error=repr(error))


@contextmanager
def translated(*, changes: bool) -> Iterator[None]:
    """Raises what PostgreSQL's errors mean; those that are tried again stay as they are."""
    import asyncpg

    try:
        yield
    except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError):
        raise
    except asyncpg.UndefinedTableError as error:
        raise NotFound(f"the timeline's tables are gone: {error}") from error
    except (
        asyncpg.PostgresConnectionError,
        asyncpg.InterfaceError,
        # Of a connection that the server is just closing.
        asyncpg.InternalClientError,
        asyncpg.AdminShutdownError,
        asyncpg.CrashShutdownError,
        OSError,
        TimeoutError,
    ) as error:
        lost = Uncertain if changes else Unavailable
        raise lost(f"PostgreSQL did not answer: {error!r}") from error
    except asyncpg.PostgresError as error:
        raise Unavailable(f"PostgreSQL refused: {error}") from error
