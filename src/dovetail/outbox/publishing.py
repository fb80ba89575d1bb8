"""Writes messages into the caller's own transaction.

One statement for a list, on any connection that the caller has (`targets.py`). Nothing is committed
here: the caller's commit publishes the messages, and after a roll-back they never existed.

On MariaDB and MySQL a transaction first locks one row of `kafka_order` for each key that it
publishes, so that the next one with that key waits for its commit (`dovetail.outbox` says why).
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.outbox.message import Message, headers_to_text
from dovetail.outbox.targets import Statement, async_target_of, placeholders, target_of

#: Rows of one INSERT on databases without arrays: SQLite takes 32,766 parameters in a statement.
ROWS_MAX = 5_000
#: Payload bytes of one INSERT: well below the packet that MariaDB takes by default (16 MiB).
STATEMENT_BYTES_MAX = 4 * 1024 * 1024

#: As `ORDER_SLOTS` of the schema, which would load SQLAlchemy.
_ORDER_SLOTS = 1024
_COLUMNS = ("topic", "key", "partition_key", "headers", "payload", "message_id")


def insert(target: Any, messages: Sequence[Message], *, serialise: bool = True) -> None:
    """Writes the messages through `target`. Raises `InvalidInput` if it is of no known kind.

    `serialise` False leaves out the lock by key on MariaDB and MySQL, and with it the order of
    overlapping transactions.
    """
    found = target_of(target)
    for statement in statements(found.dialect, found.paramstyle, messages, serialise=serialise):
        found.execute(statement)


async def insert_async(target: Any, messages: Sequence[Message], *, serialise: bool = True) -> None:
    """The same for AsyncSession, AsyncConnection and psycopg's AsyncConnection."""
    found = await async_target_of(target)
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
            marks = ", ".join(placeholders(paramstyle, len(slots)))
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
        for mark, kind in zip(placeholders(paramstyle, len(types)), types, strict=True)
    )
    columns = zip(*map(_row, messages), strict=True)
    return Statement(
        f"INSERT INTO kafka_messages ({', '.join(_COLUMNS)}, lead) SELECT * FROM unnest({casts})",
        (*map(list, columns), leads),
    )


def _insert_rows(dialect: str, paramstyle: str, messages: Sequence[Message]) -> Statement:
    names = ", ".join(f"`{name}`" if dialect != "sqlite" else name for name in _COLUMNS)
    marks = iter(placeholders(paramstyle, len(_COLUMNS) * len(messages)))
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
