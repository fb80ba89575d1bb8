"""The database of an outbox, as far as the console looks into it: on threads, made when needed."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dovetail.console.web.threads import Threads
from dovetail.errors import InvalidSetting, NotFound, Unavailable

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

Result = TypeVar("Result")

#: Longest wait for the database.
CALL_S_MAX = 8.0


class OutboxLink:
    """Runs work on the engine of the database that `outbox.database` names."""

    def __init__(self, url: str, threads: Threads) -> None:
        self._url = url
        self._threads = threads
        self._engine: Engine | None = None
        self._turn = asyncio.Semaphore(2)

    @property
    def configured(self) -> bool:
        return bool(self._url)

    async def run(self, work: "Callable[[Engine], Result]") -> Result:
        """The result of `work`. Raises `NotFound` without an outbox, `Unavailable` if it fails."""
        if not self._url:
            raise NotFound("this node knows no outbox; set outbox.database to its address")
        async with self._turn:
            try:
                async with asyncio.timeout(CALL_S_MAX):
                    return await self._threads.run(self._run, work)
            except TimeoutError as error:
                raise Unavailable(f"the outbox's database was silent for {CALL_S_MAX} s") from error

    def _run(self, work: "Callable[[Engine], Result]") -> Result:
        try:
            from sqlalchemy.exc import SQLAlchemyError
        except ModuleNotFoundError as error:
            raise InvalidSetting(
                "outbox.database is set, and the outbox is not installed on this node: "
                "pip install 'dovetail[outbox]'"
            ) from error

        from dovetail.outbox.database import open_engine, reason_of
        from dovetail.outbox.schema import check_version

        try:
            if self._engine is None:
                engine = open_engine(self._url)
                check_version(engine)
                self._engine = engine
            return work(self._engine)
        except SQLAlchemyError as error:
            raise Unavailable(reason_of(error)) from error

    async def close(self) -> None:
        """Ends its connections."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await self._threads.run(engine.dispose)
