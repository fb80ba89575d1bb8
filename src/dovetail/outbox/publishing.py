"""Writing messages into the caller's own transaction.

One statement for a list, on whatever the caller has at hand: SQLAlchemy's Session, Connection and
their async twins, a Django connection, or a DB-API connection (psycopg, psycopg2, sqlite3,
PyMySQL, mysqlclient, mariadb). Nothing is committed here: with the caller's commit the messages
are published, with the roll-back they never were.

On MariaDB and MySQL a transaction first locks one row of `kafka_order` for each key that it
publishes, so that the next one with that key waits for its commit (`dovetail.outbox` says why).
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import InvalidInput
from dovetail.outbox.message import Message, headers_to_text

#: Rows of one INSERT on databases without arrays: SQLite takes 32,766 parameters in a statement.
ROWS_MAX = 5_000
#: Payload bytes of one INSERT: well below the packet that MariaDB takes by default (16 MiB).
STATEMENT_BYTES_MAX = 4 * 1024 * 1024

#: As `ORDER_SLOTS` of the schema, which would load SQLAlchemy.
_ORDER_SLOTS = 1024
_COLUMNS = ("topic", "key", "partition_key", "headers", "payload", "message_id")


@dataclass(frozen=True, slots=True)
class Statement:
    """Text and parameters as the driver wants them."""

    text: str
    parameters: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Target:
    """A place to execute: which database, which marks, and how."""

    dialect: str
    paramstyle: str
    execute: Callable[[Statement], Any]


def insert(target: Any, messages: Sequence[Message], *, serialise: bool = True) -> None:
    """Writes the messages through `target`. Raises `InvalidInput` if it is of no known kind.

    `serialise` False leaves out the lock by key on MariaDB and MySQL, and with it the order of
    overlapping transactions.
    """
    found = _target_of(target)
    for statement in statements(found.dialect, found.paramstyle, messages, serialise=serialise):
        found.execute(statement)


async def insert_async(target: Any, messages: Sequence[Message], *, serialise: bool = True) -> None:
    """The same for AsyncSession, AsyncConnection and psycopg's AsyncConnection."""
    found = await _async_target_of(target)
    for statement in statements(found.dialect, found.paramstyle, messages, serialise=serialise):
        await found.execute(statement)


def statements(
    dialect: str, paramstyle: str, messages: Sequence[Message], *, serialise: bool = True
) -> Iterator[Statement]:
    """What to execute, in this order, to publish the messages."""
    if not messages:
        return
    if dialect == "postgresql":
        yield _insert_arrays(paramstyle, messages)
        return
    if dialect in {"mysql", "mariadb"} and serialise:
        slots = sorted({slot for message in messages if (slot := _order_slot(message)) is not None})
        if slots:
            marks = ", ".join(_marks(paramstyle, len(slots)))
            yield Statement(
                f"SELECT slot FROM kafka_order WHERE slot IN ({marks}) ORDER BY slot FOR UPDATE",
                tuple(slots),
            )
    for chunk in _chunks(messages):
        yield _insert_rows(dialect, paramstyle, chunk)


def _insert_arrays(paramstyle: str, messages: Sequence[Message]) -> Statement:
    """One array a column: the text is the same however many messages, so it is parsed once.

    The first message of each topic leads: at the commit it asks for the transaction's place.
    """
    led: set[str] = set()
    leads = []
    for message in messages:
        leads.append(message.topic not in led)
        led.add(message.topic)
    types = ("varchar", "bytea", "bytea", "text", "bytea", "varchar", "boolean")
    casts = ", ".join(
        f"CAST({mark} AS {kind}[])"
        for mark, kind in zip(_marks(paramstyle, len(types)), types, strict=True)
    )
    columns = zip(*map(_row, messages), strict=True)
    return Statement(
        f"INSERT INTO kafka_messages ({', '.join(_COLUMNS)}, lead) SELECT * FROM unnest({casts})",
        (*map(list, columns), leads),
    )


def _insert_rows(dialect: str, paramstyle: str, messages: Sequence[Message]) -> Statement:
    names = ", ".join(f"`{name}`" if dialect != "sqlite" else name for name in _COLUMNS)
    marks = iter(_marks(paramstyle, len(_COLUMNS) * len(messages)))
    row = f"({', '.join('{}' for _ in _COLUMNS)})"
    values = ", ".join(row.format(*(next(marks) for _ in _COLUMNS)) for _ in messages)
    parameters = tuple(value for message in messages for value in _row(message))
    return Statement(f"INSERT INTO kafka_messages ({names}) VALUES {values}", parameters)


def _row(message: Message) -> tuple[Any, ...]:
    return (
        message.topic,
        message.key,
        message.partition_key,
        headers_to_text(message.headers),
        message.payload,
        message.id,
    )


def _chunks(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start, size = 0, 0
    for at, message in enumerate(messages):
        weight = len(message.payload or b"")
        if at > start and (at - start >= ROWS_MAX or size + weight > STATEMENT_BYTES_MAX):
            yield messages[start:at]
            start, size = at, 0
        size += weight
    yield messages[start:]


def _order_slot(message: Message) -> int | None:
    key = message.partition_key if message.partition_key is not None else message.key
    if key is None:
        return None
    return zlib.crc32(message.topic.encode() + b"\0" + key) % _ORDER_SLOTS


def _marks(paramstyle: str, count: int) -> list[str]:
    if paramstyle == "qmark":
        return ["?"] * count
    if paramstyle == "numeric_dollar":
        return [f"${number}" for number in range(1, count + 1)]
    if paramstyle in {"format", "pyformat"}:
        return ["%s"] * count
    raise InvalidInput(f"the outbox does not know drivers with parameters of style {paramstyle!r}")


#: The DB-API drivers by the package of their connections: database, style of parameters.
_DRIVERS = {
    "psycopg": ("postgresql", "format"),
    "psycopg2": ("postgresql", "format"),
    "sqlite3": ("sqlite", "qmark"),
    "pymysql": ("mysql", "format"),
    "MySQLdb": ("mysql", "format"),
    "mariadb": ("mysql", "qmark"),
}

#: Django's names.
_VENDORS = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite"}


def _target_of(target: Any) -> _Target:
    package = _package_of(target)
    if package == "sqlalchemy":
        connection = target
        if hasattr(target, "sync_session"):
            raise _unknown(target)
        if hasattr(target, "get_bind"):
            connection = target.connection()
        elif hasattr(target, "dbapi_connection"):
            return _target_of(target.dbapi_connection)
        return _sqlalchemy_target(connection)
    if hasattr(target, "vendor") and hasattr(target, "cursor"):
        return _django_target(target)
    if package in _DRIVERS:
        dialect, paramstyle = _DRIVERS[package]
        return _Target(dialect, paramstyle, lambda statement: _on_cursor(target, statement))
    raise _unknown(target)


async def _async_target_of(target: Any) -> _Target:
    package = _package_of(target)
    if package == "sqlalchemy":
        connection = await target.connection() if hasattr(target, "get_bind") else target
        if not hasattr(connection, "sync_connection"):
            raise _unknown(target)
        return _sqlalchemy_target(connection)
    if package == "psycopg" and type(target).__name__ == "AsyncConnection":

        async def execute(statement: Statement) -> None:
            await target.execute(statement.text, statement.parameters)

        return _Target("postgresql", "format", execute)
    raise _unknown(target)


def _sqlalchemy_target(connection: Any) -> _Target:
    if not hasattr(connection, "exec_driver_sql"):
        raise _unknown(connection)
    return _Target(
        connection.dialect.name,
        connection.dialect.paramstyle,
        lambda statement: connection.exec_driver_sql(statement.text, statement.parameters),
    )


def _django_target(connection: Any) -> _Target:
    dialect = _VENDORS.get(connection.vendor)
    if dialect is None:
        raise InvalidInput(f"the outbox does not work on Django's {connection.vendor!r}")

    def execute(statement: Statement) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement.text, statement.parameters)

    # Django takes %s for every database.
    return _Target(dialect, "format", execute)


def _on_cursor(connection: Any, statement: Statement) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement.text, statement.parameters)
    finally:
        cursor.close()


def _package_of(target: Any) -> str:
    """The package of the class, or of the nearest base that is of a known one."""
    packages: Iterable[str] = (kind.__module__.partition(".")[0] for kind in type(target).__mro__)
    for package in packages:
        if package in _DRIVERS or package == "sqlalchemy":
            return package
    return ""


def _unknown(target: Any) -> InvalidInput:
    kind = type(target)
    return InvalidInput(
        f"{kind.__module__}.{kind.__qualname__} is not a connection for the outbox; give "
        "a SQLAlchemy Session or Connection, a Django connection, or a connection of psycopg, "
        "psycopg2, sqlite3, PyMySQL, mysqlclient or mariadb (async ones to publish_list_async)"
    )
