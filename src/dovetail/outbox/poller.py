"""Reads tables that are written without the outbox: backfill, and polling by a time column (O11).

Both read a table in order, put its rows into the outbox, and record how far they came, all in one
transaction. If they are killed, the next run continues from the last commit, and every row enters
the outbox once for each time that it is seen.

A backfill goes by primary key, once over the table. A poller goes by (updated_at, primary key). A
transaction can set `updated_at` and commit later than one that set a later time, and would then be
missed. So the poller stays `delay_ms` behind the clock, and needs a delay that is longer than any
transaction that writes the table. The clock is the database's; a column without a time zone must
hold UTC. The poller does not see deletions.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from math import isfinite
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Column,
    ColumnElement,
    Date,
    DateTime,
    MetaData,
    Select,
    Table,
    Text,
    and_,
    cast,
    or_,
    select,
    text,
    type_coerce,
)
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DataError, NoSuchTableError

from dovetail.errors import InvalidInput, NotFound
from dovetail.outbox import publishing
from dovetail.outbox.dialects import dialect_of
from dovetail.outbox.message import Message

ToMessage = Callable[[Mapping[str, Any]], Message]

#: Rows of one transaction.
ROWS_MAX = 1000

#: Name of the column that carries a row's time beside the row.
_MOMENT = "dovetail_moment"

#: Before the name of a column that is read as text.
_PLAIN = "dovetail_plain_"

#: Longest name of a source in `kafka_poll_info`.
NAME_CHARACTERS_MAX = 200

#: Marks bytes in a stored cursor.
_BYTES = "base64"

#: As long as ordinary transactions of an application last, and some more.
DELAY_MS = 2_000


@dataclass(frozen=True, slots=True)
class Source:
    """A table and how its rows become messages. `updated_at` None: by primary key only."""

    table: Table
    topic: str
    key: Column[Any]
    updated_at: Column[Any] | None
    to_message: ToMessage
    delay_ms: int
    name: str


def source_of(
    engine: Engine,
    table: str,
    *,
    topic: str,
    key: str | None = None,
    updated_at: str | None = None,
    to_message: ToMessage | None = None,
    delay_ms: int = DELAY_MS,
) -> Source:
    """Looks the table up. Raises `NotFound` or `InvalidInput`.

    The key is the primary key, which must be one column; each row becomes JSON under it unless
    `to_message` says otherwise.
    """
    try:
        found = Table(table, MetaData(), autoload_with=engine)
    except NoSuchTableError as error:
        raise NotFound(f"the database has no table {table!r}") from error

    primary = list(found.primary_key.columns)
    names = [key] if key else [column.name for column in primary]
    if len(names) != 1:
        raise InvalidInput(
            f"the primary key of table {table!r} has {len(primary)} columns instead of one; "
            "name a unique column as the key"
        )

    kind = "backfill" if updated_at is None else "poll"
    return Source(
        found,
        topic,
        _column(found, names[0]),
        None if updated_at is None else _column(found, updated_at),
        to_message or _as_json(topic, names[0]),
        delay_ms,
        _fitting(f"{kind}:{table}:{topic}"),
    )


def _fitting(name: str) -> str:
    """A name as long as its column."""
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[:150]}~{sha256(name.encode()).hexdigest()[:40]}"


def advance(engine: Engine, source: Source, *, now: datetime | None = None) -> int:
    """One transaction: the next rows into the outbox; returns how many. None left: 0."""
    with engine.begin() as connection:
        reached = _lock(connection, source.name)
        rows, moments = _rows(connection, source, reached, now or _now(connection))
        if not rows:
            return 0
        publishing.insert(connection, [source.to_message(row) for row in rows])
        last = rows[-1]
        if last[source.key.name] is None:
            raise InvalidInput(
                f"{source.key.name!r} is NULL in rows of {source.table.name!r}: nothing comes "
                "behind them in order; name a unique column without NULL as the key"
            )
        cursor = [_marked(last[source.key.name])]
        if source.updated_at is not None:
            cursor.insert(0, _marked(moments[-1]))
        _save(connection, source.name, json.dumps(cursor))
    return len(rows)


def reset(engine: Engine, source: Source) -> None:
    """Forgets how far the source came: the next run begins at the beginning."""
    with engine.begin() as connection:
        connection.execute(
            text("DELETE FROM kafka_poll_info WHERE name = :name"), {"name": source.name}
        )


def _lock(connection: Connection, name: str) -> list[Any] | None:
    """How far the last run came; the row is ours until the commit, so only one runs at a time."""
    mysql = dialect_of(connection.dialect.name).name == "mysql"
    connection.execute(
        text(
            f"INSERT {'IGNORE ' if mysql else ''}INTO kafka_poll_info (name) VALUES (:name)"
            f"{'' if mysql else ' ON CONFLICT DO NOTHING'}"
        ),
        {"name": name},
    )
    connection.execute(
        text("UPDATE kafka_poll_info SET name = name WHERE name = :name"), {"name": name}
    )
    reached = connection.execute(
        text("SELECT reached FROM kafka_poll_info WHERE name = :name"), {"name": name}
    ).scalar_one()
    return None if reached is None else list(json.loads(reached))


def _save(connection: Connection, name: str, reached: str) -> None:
    now = dialect_of(connection.dialect.name).now
    connection.execute(
        text(
            f"UPDATE kafka_poll_info SET reached = :reached, polled_at = {now} WHERE name = :name"
        ),
        {"name": name, "reached": reached},
    )


def _rows(
    connection: Connection, source: Source, reached: list[Any] | None, now: datetime
) -> tuple[list[dict[str, Any]], list[Any]]:
    """The next rows, and the time of each as the database compares it."""
    key = source.key
    if source.updated_at is None:
        query = select(source.table).limit(ROWS_MAX).order_by(key)
        if reached is not None:
            query = query.where(key > _typed(key, reached[0]))
        return _read(connection, source, query), []
    moment = _comparable(connection, source.updated_at)
    until = now - timedelta(milliseconds=source.delay_ms)
    query = select(source.table, moment.label(_MOMENT)).limit(ROWS_MAX).order_by(moment, key)
    query = query.where(moment <= _as_stored(connection, source.updated_at, until))
    if reached is not None:
        since, last = _typed(moment, reached[0]), _typed(key, reached[1])
        query = query.where(or_(moment > since, and_(moment == since, key > last)))
    found = _read(connection, source, query)
    return found, [row.pop(_MOMENT) for row in found]


def _read(connection: Connection, source: Source, query: Select[Any]) -> list[dict[str, Any]]:
    """The rows; a time that Python does not have, such as PostgreSQL's infinity, as text."""
    try:
        return [dict(row) for row in connection.execute(query).mappings()]
    except (DataError, ValueError):
        pass
    timed = [column for column in source.table.columns if isinstance(column.type, Date | DateTime)]
    plain = query.add_columns(*(cast(c, Text).label(_PLAIN + c.name) for c in timed))
    kept = [column for column in plain.selected_columns if column not in set(timed)]
    rows = connection.execute(plain.with_only_columns(*kept)).mappings()
    return [_timed(dict(row), timed) for row in rows]


def _timed(row: dict[str, Any], columns: Sequence[Column[Any]]) -> dict[str, Any]:
    for column in columns:
        value = row.pop(_PLAIN + column.name)
        try:
            row[column.name] = value and column.type.python_type.fromisoformat(value)
        except ValueError:
            row[column.name] = value
    return row


def _now(connection: Connection) -> datetime:
    d = dialect_of(connection.dialect.name)
    now_ms = connection.execute(text(f"SELECT {d.epoch_ms.format(d.now)}")).scalar_one()
    return datetime.fromtimestamp(int(now_ms) / 1000, UTC)


def _comparable(connection: Connection, column: Column[Any]) -> ColumnElement[Any]:
    """SQLite keeps times as text, in whichever form the writer chose: compared as what it is."""
    return type_coerce(column, Text()) if connection.dialect.name == "sqlite" else column


def _column(table: Table, name: str) -> Column[Any]:
    if name not in table.columns:
        known = ", ".join(column.name for column in table.columns)
        raise InvalidInput(f"table {table.name!r} has no column {name!r}; it has {known}")
    return table.columns[name]


def _as_stored(connection: Connection, column: Column[Any], moment: datetime) -> Any:
    """UTC without a zone where the column keeps none."""
    if connection.dialect.name == "sqlite":
        return moment.replace(tzinfo=None).isoformat(" ")
    return moment if getattr(column.type, "timezone", False) else moment.replace(tzinfo=None)


def _typed(column: ColumnElement[Any], plain: Any) -> Any:
    """What `_marked` has made, as the column wants it."""
    if isinstance(plain, dict):
        return base64.b64decode(plain[_BYTES])
    kind = column.type.python_type
    if kind in {datetime, date}:
        return kind.fromisoformat(plain)
    return kind(plain) if kind in {UUID, Decimal} else plain


def _marked(value: Any) -> Any:
    """For a cursor: as `_plain`, but bytes can be told from text."""
    return {_BYTES: _plain(value)} if isinstance(value, bytes | memoryview) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, float) and not isfinite(value):
        return str(Decimal(value))  # JSON has none of them; as those of exact types.
    return value


def _as_json(topic: str, key: str) -> ToMessage:
    def to_message(row: Mapping[str, Any]) -> Message:
        payload = json.dumps({name: _plain(value) for name, value in row.items()}, default=str)
        return Message.of(topic, payload, key=_key(row[key]))

    return to_message


def _key(value: Any) -> bytes | str | None:
    """Bytes as they are, everything else as text."""
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    return None if value is None else str(value)
