"""The relay's connection to a database: addresses, drivers, plans, one error when it is down."""

from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from dovetail.errors import InvalidInput, InvalidSetting, Unavailable
from dovetail.outbox.dialects import dialect_of

#: Time that SQLite waits for another writer.
SQLITE_BUSY_S = 30.0

#: The relay's statements have one good plan each, by index; fresh or stale statistics must not
#: choose another, which on a queue of changing size they do.
_POSTGRESQL_PLANS = (
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET enable_bitmapscan = off",
    "SET enable_sort = off",
    "SET enable_material = off",
    "SET jit = off",
)


class DatabaseDown(Unavailable):
    """The database does not answer, or has broken off."""


def reason_of(error: Exception) -> str:
    """The driver's words."""
    orig = getattr(error, "orig", None)
    return f"the database refused or broke off: {str(orig or error).strip()}"


def open_engine(url: str) -> Engine:
    """An engine for the relay. Raises `InvalidSetting` for an address that is none."""
    try:
        parsed = make_url(url)
        dialect_of(parsed.get_backend_name())
        engine = create_engine(_with_driver(parsed), poolclass=NullPool, **_arguments(parsed))
    except (ArgumentError, NoSuchModuleError, InvalidInput) as error:
        raise InvalidSetting(
            f"outbox.database is not the address of a database: {error}; write for example "
            "postgresql://user@host/name, mysql://user@host/name or sqlite:///file.db"
        ) from error
    except ModuleNotFoundError as error:
        kind = parsed.get_backend_name()
        extra = "postgres" if kind == "postgresql" else "mysql"
        raise InvalidSetting(
            f"the driver {error.name!r} of {kind} is not installed; "
            f"pip install 'dovetailmq[outbox,{extra}]'"
        ) from error
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _set_plans)
    return engine


def _with_driver(url: URL) -> URL:
    """Our own choice of driver where the address names none."""
    drivers = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
    return url.set(drivername=drivers.get(url.drivername, url.drivername))


def _arguments(url: URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": SQLITE_BUSY_S, "check_same_thread": False}}
    if url.get_backend_name() == "postgresql":
        return {}
    return {"isolation_level": "READ COMMITTED"}


def _set_plans(connection: Any, _: object) -> None:
    was, connection.autocommit = connection.autocommit, True
    with connection.cursor() as cursor:
        for statement in _POSTGRESQL_PLANS:
            cursor.execute(statement)
    connection.autocommit = was
