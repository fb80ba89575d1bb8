"""Passes: the messages of a claim in order, from one snapshot of the database.

What commits during a pass belongs to the next one. That keeps the order: everything in a pass
committed before everything that is not.

PostgreSQL streams from a cursor, so each row is visited once, however many dead ones there are; a
new query for each batch would step over all rows deleted before, which an old open transaction
keeps from being vacuumed. A pass that fits into one fetch takes one statement. MariaDB reads pages
in one open transaction. SQLite has one writer, so its ids are in the order of commits, and no
snapshot has to be held against writers.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from dovetail.outbox.batch import Row
from dovetail.outbox.claim import Claim
from dovetail.outbox.database import DatabaseDown, reason_of
from dovetail.outbox.dialects import Dialect

#: Below every id.
_ID_MIN = -(2**63)


class Pass(Protocol):
    """What a session reads from."""

    def fetch(self, count: int) -> list[Row]:
        """The next rows, at most `count`; fewer or none at the end. Raises `DatabaseDown`."""
        ...

    def close(self) -> None:
        """Ends the snapshot."""
        ...


def open_pass(connection: Connection, claim: Claim, dialect: Dialect) -> Pass:
    """A new pass on this connection, which serves nothing else meanwhile."""
    kind = CursorPass if dialect.name == "postgresql" else PagePass
    return kind(connection, claim, dialect)


def columns_of(dialect: Dialect) -> str:
    """The fields of a `Row`, of a table named m."""
    created = dialect.epoch_ms.format("m.created_at")
    return f"m.id, {contents_of(dialect)}, {created}"


def contents_of(dialect: Dialect) -> str:
    """Key, partition key, headers, payload and id of a message, of a table named m."""
    names = (dialect.key_column, "partition_key", "headers", "payload", "message_id")
    return ", ".join(dialect.as_stored.format(f"m.{name}") for name in names)


def rows_of(found: Iterable[Sequence[Any]], dialect: Dialect) -> list[Row]:
    """What was read of `columns_of`; headers that are no text are none that anybody can read."""
    if dialect.name != "sqlite":
        return list(map(Row._make, found))
    return [
        Row(
            number,
            key,
            partition_key,
            None if headers is None else headers.decode(errors="surrogateescape"),
            payload,
            message_id.decode(errors="replace"),
            created_ms,
        )
        for number, key, partition_key, headers, payload, message_id, created_ms in found
    ]


def _values(claim: Claim) -> dict[str, Any]:
    values: dict[str, Any] = {"topic": claim.topic}
    if claim.shards != 1:
        values |= {"shards": claim.shards, "shard": claim.shard}
    return values


def _mine(claim: Claim) -> str:
    return "" if claim.shards == 1 else "AND m.slot % :shards = :shard "


class CursorPass:
    """PostgreSQL, by the driver's own cursors: SQLAlchemy would take each row in hand once more."""

    def __init__(self, connection: Connection, claim: Claim, dialect: Dialect) -> None:
        self._connection = connection
        self._raw: Any = connection.connection.driver_connection
        self._error: type[Exception] = connection.dialect.loaded_dbapi.Error
        self._values = _values(claim)
        self._statement = str(
            text(
                f"SELECT {columns_of(dialect)} FROM kafka_commits c JOIN kafka_messages m "
                f"ON m.topic = c.topic AND m.xid = c.xid WHERE c.topic = :topic {_mine(claim)}"
                "ORDER BY c.position, m.id"
            ).compile(dialect=connection.dialect)
        )
        self._cursor: Any = None
        self._ended = False

    def fetch(self, count: int) -> list[Row]:
        if self._ended:
            return []
        try:
            if self._cursor is None:
                first = self._look(count)
                if first is not None:
                    self._ended = True
                    return first
                self._raw.execute("BEGIN")
                self._cursor = self._raw.cursor(name="kafka_messages", binary=True)
                self._cursor.execute(self._statement, self._values)
            rows = list(map(Row._make, self._cursor.fetchmany(count)))
        except self._error as error:
            self._connection.invalidate()
            self._ended = True
            raise DatabaseDown(reason_of(error)) from error

        self._ended = len(rows) < count
        return rows

    def _look(self, count: int) -> list[Row] | None:
        """Everything, if it is no more than `count`; else None, and it is read in order."""
        with self._raw.cursor(binary=True) as cursor:
            cursor.execute(f"{self._statement} LIMIT {count + 1}", self._values)
            rows = list(map(Row._make, cursor.fetchall()))
        return rows if len(rows) <= count else None

    def close(self) -> None:
        self._ended = True
        if self._cursor is None:
            return
        cursor, self._cursor = self._cursor, None
        try:
            cursor.close()
            self._raw.execute("ROLLBACK")
        except self._error:
            self._connection.invalidate()


class PagePass:
    """MariaDB, MySQL and SQLite: page by page behind the last id."""

    def __init__(self, connection: Connection, claim: Claim, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self._keeps_snapshot = dialect.name != "sqlite"
        self._values = _values(claim)
        self._statement = text(
            f"SELECT {columns_of(dialect)} FROM kafka_messages m WHERE m.topic = :topic "
            f"AND m.id > :reached {_mine(claim)}ORDER BY m.id LIMIT :count"
        )
        # Who gives ids by himself can give any.
        self._reached = _ID_MIN
        self._ended = False

    def fetch(self, count: int) -> list[Row]:
        if self._ended:
            return []
        try:
            found = self._connection.execute(
                self._statement, {**self._values, "reached": self._reached, "count": count}
            )
            rows = rows_of(found, self._dialect)
            if not self._keeps_snapshot:
                self._connection.rollback()
        except DBAPIError as error:
            self._connection.invalidate()
            self._ended = True
            raise DatabaseDown(reason_of(error)) from error

        if rows:
            self._reached = rows[-1].id
        self._ended = len(rows) < count
        return rows

    def close(self) -> None:
        self._ended = True
        try:
            self._connection.rollback()
        except DBAPIError:
            self._connection.invalidate()
