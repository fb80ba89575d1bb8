"""What the caller's transaction runs on: detects the database, and executes statements there.

It accepts SQLAlchemy's Session, Connection and their async twins, a Django connection, or a
connection of a driver: psycopg, psycopg2, asyncpg, sqlite3, PyMySQL, mysqlclient, mariadb.

A connection that commits every statement by itself is refused: what is written on it would stay
even if the caller's own changes were rolled back.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dovetail.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Statement:
    """Text and parameters as the driver wants them."""

    text: str
    parameters: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A place to execute. Both calls give awaitables on an asynchronous one."""

    dialect: str
    paramstyle: str
    #: Runs a statement; how many rows it changed.
    execute: Callable[[Statement], Any]
    #: Runs a statement; the rows that it gives.
    query: Callable[[Statement], Any]


#: What PostgreSQL, SQLite, MariaDB and MySQL say of a table of ours that is not there, or is of an
#: older version.
_TABLE_LACKS = re.compile(
    r"""relation "kafka_\w+" does not exist|no such table: kafka_|\.kafka_\w+' doesn't exist"""
    r"|function kafka_\w+\(.*\) does not exist"
)


@contextmanager
def _naming_missing_tables() -> Iterator[None]:
    """Adds what to do to the driver's error. Its class stays: the caller may handle it."""
    try:
        yield
    except Exception as error:
        if _TABLE_LACKS.search(str(error)):
            error.add_note(
                "this database lacks tables of the outbox, or has older ones; run `dovetail outbox "
                "migrate --database URL`, or your Alembic or Django migrations"
            )
        raise


def placeholders(paramstyle: str, count: int) -> list[str]:
    """The marks of so many parameters. Raises `InvalidInput` for a style that is not known."""
    if paramstyle == "qmark":
        return ["?"] * count
    if paramstyle == "numeric_dollar":
        return [f"${number}" for number in range(1, count + 1)]
    if paramstyle in {"format", "pyformat"}:
        return ["%s"] * count
    raise InvalidInput(
        f"the outbox does not support drivers with parameters of style {paramstyle!r}"
    )


def _psycopg_is_open(connection: Any) -> bool:
    # 0 is IDLE, for both: no transaction has begun.
    return not connection.autocommit or int(connection.info.transaction_status) != 0


def _sqlite_is_open(connection: Any) -> bool:
    commits = connection.isolation_level is None or getattr(connection, "autocommit", 0) is True
    return not commits or connection.in_transaction


def _pymysql_is_open(connection: Any) -> bool:
    # Bit 0 of the server's status: within a transaction.
    return not connection.get_autocommit() or bool(connection.server_status & 1)


@dataclass(frozen=True, slots=True)
class _Driver:
    """A DB-API driver: its database, its marks, and whether a connection is in a transaction."""

    dialect: str
    paramstyle: str
    is_open: Callable[[Any], bool]


#: The DB-API drivers by the package of their connections.
_DRIVERS = {
    "psycopg": _Driver("postgresql", "format", _psycopg_is_open),
    "psycopg2": _Driver("postgresql", "format", _psycopg_is_open),
    "sqlite3": _Driver("sqlite", "qmark", _sqlite_is_open),
    "pymysql": _Driver("mysql", "format", _pymysql_is_open),
    "MySQLdb": _Driver("mysql", "format", lambda connection: not connection.get_autocommit()),
    "mariadb": _Driver("mysql", "qmark", lambda connection: not connection.autocommit),
}

#: Django's names.
_VENDORS = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite"}


def target_of(given: Any) -> Target:
    """Where to execute. Raises `InvalidInput` if it is of no known kind, or commits by itself."""
    package = _package_of(given)
    if type(given).__module__.startswith("sqlalchemy.ext.asyncio"):
        raise _unknown(given)
    if package == "sqlalchemy":
        connection = given
        if hasattr(given, "get_bind"):
            connection = given.connection()
        elif hasattr(given, "dbapi_connection"):
            return target_of(given.dbapi_connection)
        return _sqlalchemy_target(connection)
    if hasattr(given, "vendor") and hasattr(given, "cursor"):
        return _django_target(given)
    # A cursor has no cursors, and nobody knows which connection is its own.
    is_connection = package in _DRIVERS and hasattr(given, "cursor")
    if is_connection and not type(given).__name__.startswith("Async"):
        return _driver_target(given, _DRIVERS[package])
    raise _unknown(given)


async def async_target_of(given: Any) -> Target:
    """The same for AsyncSession, AsyncConnection, and connections of psycopg and asyncpg."""
    package = _package_of(given)
    if package == "sqlalchemy":
        connection = await given.connection() if hasattr(given, "get_bind") else given
        if not hasattr(connection, "sync_connection"):
            raise _unknown(given)
        return _async_sqlalchemy_target(connection)
    if package == "psycopg" and type(given).__name__ == "AsyncConnection":
        return _async_psycopg_target(given)
    if package == "asyncpg":
        return _asyncpg_target(given)
    raise _unknown(given)


def _driver_target(connection: Any, driver: _Driver) -> Target:
    if not driver.is_open(connection):
        raise _commits_alone()

    def run(statement: Statement, *, rows: bool) -> Any:
        cursor = connection.cursor()
        try:
            with _naming_missing_tables():
                cursor.execute(statement.text, statement.parameters)
            return cursor.fetchall() if rows else cursor.rowcount
        finally:
            cursor.close()

    return _target(driver.dialect, driver.paramstyle, run)


def _sqlalchemy_target(connection: Any) -> Target:
    if not hasattr(connection, "exec_driver_sql"):
        raise _unknown(connection)
    _check_sqlalchemy(connection)

    def run(statement: Statement, *, rows: bool) -> Any:
        with _naming_missing_tables():
            result = connection.exec_driver_sql(statement.text, statement.parameters)
        return result.fetchall() if rows else result.rowcount

    return _target(connection.dialect.name, connection.dialect.paramstyle, run)


def _async_sqlalchemy_target(connection: Any) -> Target:
    _check_sqlalchemy(connection.sync_connection)

    async def run(statement: Statement, *, rows: bool) -> Any:
        with _naming_missing_tables():
            result = await connection.exec_driver_sql(statement.text, statement.parameters)
        return result.fetchall() if rows else result.rowcount

    return _target(connection.dialect.name, connection.dialect.paramstyle, run)


def _check_sqlalchemy(connection: Any) -> None:
    raw = connection.connection.dbapi_connection
    driver = _DRIVERS.get(_package_of(raw))
    if driver is not None:
        is_open = driver.is_open(raw)
    else:
        is_open = not connection.dialect.detect_autocommit_setting(raw)
    if not is_open:
        raise _commits_alone()


def _async_psycopg_target(connection: Any) -> Target:
    if not _psycopg_is_open(connection):
        raise _commits_alone()

    async def run(statement: Statement, *, rows: bool) -> Any:
        with _naming_missing_tables():
            cursor = await connection.execute(statement.text, statement.parameters)
        return await cursor.fetchall() if rows else cursor.rowcount

    return _target("postgresql", "format", run)


def _asyncpg_target(connection: Any) -> Target:
    if not connection.is_in_transaction():
        raise _commits_alone()

    async def run(statement: Statement, *, rows: bool) -> Any:
        with _naming_missing_tables():
            if rows:
                found = await connection.fetch(statement.text, *statement.parameters)
                return [tuple(row) for row in found]
            done = await connection.execute(statement.text, *statement.parameters)
        # The answer is such as "INSERT 0 5".
        return int(done.rpartition(" ")[2])

    return _target("postgresql", "numeric_dollar", run)


def _django_target(connection: Any) -> Target:
    dialect = _VENDORS.get(connection.vendor)
    if dialect is None:
        raise InvalidInput(f"the outbox does not support Django's database {connection.vendor!r}")
    if not connection.in_atomic_block and connection.get_autocommit():
        raise _commits_alone()

    def run(statement: Statement, *, rows: bool) -> Any:
        with connection.cursor() as cursor:
            with _naming_missing_tables():
                cursor.execute(statement.text, statement.parameters)
            return cursor.fetchall() if rows else cursor.rowcount

    # Django takes %s for every database.
    return _target(dialect, "format", run)


def _target(dialect: str, paramstyle: str, run: Callable[..., Any]) -> Target:
    return Target(
        dialect,
        paramstyle,
        execute=lambda statement: run(statement, rows=False),
        query=lambda statement: run(statement, rows=True),
    )


def _package_of(given: Any) -> str:
    """The package of the class, or of the nearest base that is of a known one."""
    packages: Iterable[str] = (kind.__module__.partition(".")[0] for kind in type(given).__mro__)
    for package in packages:
        if package in _DRIVERS or package in {"sqlalchemy", "asyncpg"}:
            return package
    return ""


def _commits_alone() -> InvalidInput:
    return InvalidInput(
        "the connection commits every statement by itself (autocommit), so a roll-back would come "
        "too late; begin a transaction first: `with transaction.atomic()` in Django, `with "
        "connection.transaction()` in psycopg, `connection.autocommit = False` elsewhere"
    )


def _unknown(given: Any) -> InvalidInput:
    kind = type(given)
    return InvalidInput(
        f"{kind.__module__}.{kind.__qualname__} is not a connection for the outbox; give "
        "a SQLAlchemy Session or Connection, a Django connection, or a connection of psycopg, "
        "psycopg2, sqlite3, PyMySQL, mysqlclient or mariadb (async ones, also of asyncpg, to the "
        "methods that end in _async)"
    )
