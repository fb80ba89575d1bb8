"""The database of an outbox: opened on first use, with errors that say what to do.

The outbox is an optional part (`dovetailmq[outbox]`), so SQLAlchemy is imported at the first use.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dovetail.errors import InvalidSetting, Unavailable

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

Result = TypeVar("Result")


class OutboxDatabase:
    """The engine of one database. Safe between threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None
        self._opening = threading.Lock()

    def run(self, work: "Callable[[Engine], Result]") -> Result:
        """The result of `work`. Raises `InvalidSetting`, `Unavailable` if the database fails."""
        try:
            from sqlalchemy.exc import SQLAlchemyError
        except ModuleNotFoundError as error:
            raise InvalidSetting(
                "outbox.database is set, but the outbox is not installed here: "
                "pip install 'dovetailmq[outbox]'"
            ) from error

        from dovetail.outbox.database import reason_of

        try:
            return work(self._open())
        except SQLAlchemyError as error:
            raise Unavailable(reason_of(error)) from error

    def _open(self) -> "Engine":
        from dovetail.outbox.database import open_engine
        from dovetail.outbox.schema import check_version

        with self._opening:
            if self._engine is None:
                engine = open_engine(self._url)
                check_version(engine)
                self._engine = engine
            return self._engine

    def close(self) -> None:
        """Ends its connections."""
        with self._opening:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()
