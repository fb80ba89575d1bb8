"""`Inbox`: writes, looks up and trims names of messages in the caller's transaction."""

import random
import re
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from dovetail.errors import InvalidInput
from dovetail.foreign import shown
from dovetail.outbox.dialects import dialect_of
from dovetail.outbox.inbox.naming import NAME_BYTES, name_of
from dovetail.outbox.targets import Statement, Target, async_target_of, placeholders, target_of

MessageType = TypeVar("MessageType")

#: How long names are kept unless the caller says otherwise: longer than most topics keep records.
KEEP = "7d"
#: Longer is for ever. Databases fail at times before they begin to count: PostgreSQL at 4713 BC.
KEEP_MS_MAX = 100 * 366 * 24 * 3_600_000
#: Names written in one statement: SQLite takes 32,766 parameters.
ROWS_MAX = 5_000
#: Between two looks of one inbox for names that are old.
TRIM_S = 10.0
#: Names looked at each time, at least; more when more were written since.
TRIM_ROWS = 1_000
#: So many times as many are looked at as were written since. Names are hashes, so the old ones lie
#: among the young ones everywhere, and a look at part of them in order finds its share. With 4, all
#: are looked at within a third of `keep`.
TRIM_FACTOR = 4

_CONSUMER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

#: What to run, and whether its rows or their number is wanted; the result is sent back.
_Work = Generator[tuple[Statement, bool], Any, Any]


class Inbox:
    """What one consumer has handled. `consumer` is its name in the table, the same on all of its
    processes; others handle the same messages under names of their own."""

    def __init__(self, consumer: str, *, keep: str | timedelta = KEEP) -> None:
        """Raises `InvalidInput`."""
        from dovetail.timeline.client.moments import duration_ms

        if not isinstance(consumer, str) or not _CONSUMER.fullmatch(consumer):
            raise InvalidInput(
                f"{shown(consumer)} cannot name a consumer: use 1 to 100 letters, digits and "
                ". _ -, the first one a letter or a digit"
            )
        self.consumer = consumer
        self._keep_ms = min(duration_ms(keep), KEEP_MS_MAX)
        if self._keep_ms <= 0:
            raise InvalidInput(
                "keep must be a time above 0, such as 7d: names are needed that long"
            )
        self._trim_next_s = time.monotonic() + random.uniform(0, TRIM_S)  # noqa: S311 - spreads
        # Each process begins elsewhere, or the last names would never be reached by short ones.
        self._trim_from = random.randbytes(NAME_BYTES)  # noqa: S311 - spreads
        self._written = 0

    @contextmanager
    def once(self, on: Any, message: Any) -> Iterator[bool]:
        """Whether the message is to be handled, in the transaction of `on`; use it with `with`.

        If the block raises, the message counts as not handled, even if the caller commits.
        `on` is what the transaction runs on, as for `Producer.publish`. Raises `InvalidInput`.
        """
        target, name = target_of(on), name_of(message)
        first = bool(_run(target, self._take(target, [name])))
        try:
            yield first
        except BaseException:
            if first:
                _run_quietly(target, self._forget(target, name))
            raise

    @asynccontextmanager
    async def once_async(self, on: Any, message: Any) -> AsyncIterator[bool]:
        """`once` for async sessions and connections; use it with `async with`."""
        target, name = await async_target_of(on), name_of(message)
        first = bool(await _run_async(target, self._take(target, [name])))
        try:
            yield first
        except BaseException:
            if first:
                await _run_quietly_async(target, self._forget(target, name))
            raise

    def new(self, on: Any, messages: Sequence[MessageType]) -> list[MessageType]:
        """Those of the messages that are to be handled, in their order, each once.

        The effects of all of them belong in the transaction of `on`. Raises `InvalidInput`.
        """
        target = target_of(on)
        named = _named(messages)
        taken = _run(target, self._take(target, sorted(named)))
        return [message for name, message in named.items() if name in taken]

    async def new_async(self, on: Any, messages: Sequence[MessageType]) -> list[MessageType]:
        """`new` for async sessions and connections."""
        target = await async_target_of(on)
        named = _named(messages)
        taken = await _run_async(target, self._take(target, sorted(named)))
        return [message for name, message in named.items() if name in taken]

    # What is run, whoever runs it

    def _take(self, target: Target, names: Sequence[bytes]) -> _Work:
        """Writes the names; those that were not there before.

        They are sorted: two consumers that take the same ones wait for each other and never in a
        circle.
        """
        taken: set[bytes] = set()
        for start in range(0, len(names), ROWS_MAX):
            part = names[start : start + ROWS_MAX]
            if target.dialect in {"mysql", "mariadb"}:
                taken |= yield from self._insert_mysql(target, part)
            elif target.dialect == "postgresql":
                ((new,),) = yield self._insert_postgres(target, part), True
                taken.update(part if new is None else _split(bytes(new)))
            else:
                rows = yield self._insert_sqlite(target, part), True
                taken |= {bytes(row[0]) for row in rows}

        self._written += len(taken)
        now_s = time.monotonic()
        if self._written and now_s >= self._trim_next_s:
            looks = max(TRIM_ROWS, TRIM_FACTOR * self._written)
            self._trim_next_s, self._written = now_s + TRIM_S, 0
            yield from self._trim(target, looks)
        return taken

    def _insert_postgres(self, target: Target, names: Sequence[bytes]) -> Statement:
        """All names as one value, there and back: drivers take long over each value of a list."""
        consumer, together = placeholders(target.paramstyle, 2)
        return Statement(
            f"SELECT kafka_inbox_take(CAST({consumer} AS varchar), CAST({together} AS bytea))",
            (self.consumer, b"".join(names)),
        )

    def _insert_sqlite(self, target: Target, names: Sequence[bytes]) -> Statement:
        values, parameters = _values(target, [(self.consumer, name) for name in names])
        return Statement(
            f"INSERT OR IGNORE INTO kafka_inbox (consumer, id) VALUES {values} RETURNING id",
            parameters,
        )

    def _insert_mysql(self, target: Target, names: Sequence[bytes]) -> _Work:
        """MySQL says only how many were new: a mark of this call tells which."""
        mark = random.getrandbits(63)
        values, parameters = _values(target, [(self.consumer, name, mark) for name in names])
        count = yield (
            Statement(
                f"INSERT IGNORE INTO kafka_inbox (consumer, id, taken_by) VALUES {values}",
                parameters,
            ),
            False,
        )
        if count == len(names) or count == 0:
            return set(names) if count else set()

        marks = placeholders(target.paramstyle, len(names) + 2)
        rows = yield (
            Statement(
                f"SELECT id FROM kafka_inbox WHERE consumer = {marks[0]} AND taken_by = {marks[1]} "
                f"AND id IN ({', '.join(marks[2:])})",
                (self.consumer, mark, *names),
            ),
            True,
        )
        return {bytes(row[0]) for row in rows}

    def _forget(self, target: Target, name: bytes) -> _Work:
        yield self._of_these(target, "DELETE", [name]), False

    def _trim(self, target: Target, looks: int) -> _Work:
        """Looks at the next names in their order, from the first again after the last, and removes
        the old ones among them."""
        start = self._trim_from
        consumer, first = placeholders(target.paramstyle, 2)
        end = yield (
            Statement(
                f"SELECT id FROM kafka_inbox WHERE consumer = {consumer} AND id >= {first} "
                f"ORDER BY id LIMIT 1 OFFSET {looks}",
                (self.consumer, start),
            ),
            True,
        )
        self._trim_from = bytes(end[0][0]) if end else b""

        old = yield self._old(target, start, self._trim_from), True
        names = sorted(bytes(row[0]) for row in old)
        for at in range(0, len(names), ROWS_MAX):
            yield from self._remove(target, names[at : at + ROWS_MAX])

    def _old(self, target: Target, start: bytes, end: bytes) -> Statement:
        """Old names from `start` to `end`, or to the last one. Locks nothing: MySQL would lock all
        that it passes, and the places between."""
        parameters = (self.consumer, start, *((end,) if end else ()))
        marks = placeholders(target.paramstyle, len(parameters))
        until = f" AND id < {marks[2]}" if end else ""
        found = (
            f"SELECT id FROM kafka_inbox WHERE consumer = {marks[0]} AND id >= {marks[1]}{until} "
            f"AND {self._is_old(target)}"
        )
        return Statement(_escaped(target, found), parameters)

    def _remove(self, target: Target, names: Sequence[bytes]) -> _Work:
        """Removes names that are still old, but none that another transaction has in its hands.

        Another one may have removed a name and written it again since it was found."""
        if target.dialect != "sqlite":
            end = f" AND {self._is_old(target)} FOR UPDATE SKIP LOCKED"
            free = yield self._of_these(target, "SELECT id", names, end), True
            names = sorted(bytes(row[0]) for row in free)
        if names:
            yield self._of_these(target, "DELETE", names), False

    def _is_old(self, target: Target) -> str:
        return f"at < {dialect_of(target.dialect).time_before(str(self._keep_ms))}"

    def _of_these(
        self, target: Target, verb: str, names: Sequence[bytes], end: str = ""
    ) -> Statement:
        marks = placeholders(target.paramstyle, len(names) + 1)
        return Statement(
            f"{verb} FROM kafka_inbox WHERE consumer = {marks[0]} "
            f"AND id IN ({', '.join(marks[1:])}){end}",
            (self.consumer, *names),
        )


def _named(messages: Sequence[MessageType]) -> dict[bytes, MessageType]:
    """By name; of equal ones the first."""
    named: dict[bytes, MessageType] = {}
    for message in messages:
        named.setdefault(name_of(message), message)
    return named


def _split(together: bytes) -> set[bytes]:
    return {together[at : at + NAME_BYTES] for at in range(0, len(together), NAME_BYTES)}


def _values(target: Target, rows: Sequence[tuple[Any, ...]]) -> tuple[str, tuple[Any, ...]]:
    marks = iter(placeholders(target.paramstyle, sum(map(len, rows))))
    values = ", ".join(f"({', '.join(next(marks) for _ in row)})" for row in rows)
    return values, tuple(value for row in rows for value in row)


def _escaped(target: Target, text: str) -> str:
    """For drivers that read % as the mark of a parameter, also in SQLite's formats of time."""
    if target.paramstyle not in {"format", "pyformat"}:
        return text
    return text.replace("%", "%%").replace("%%s", "%s")


def _run(target: Target, work: _Work) -> Any:
    result: Any = None
    while True:
        try:
            statement, rows = work.send(result)
        except StopIteration as end:
            return end.value
        result = target.query(statement) if rows else target.execute(statement)


async def _run_async(target: Target, work: _Work) -> Any:
    result: Any = None
    while True:
        try:
            statement, rows = work.send(result)
        except StopIteration as end:
            return end.value
        result = await (target.query(statement) if rows else target.execute(statement))


def _run_quietly(target: Target, work: _Work) -> None:
    """After an error: a transaction that is spoilt can only be rolled back anyway."""
    try:
        _run(target, work)
    except Exception:  # noqa: BLE001, S110 - the error of the block is the one to be seen
        pass


async def _run_quietly_async(target: Target, work: _Work) -> None:
    try:
        await _run_async(target, work)
    except Exception:  # noqa: BLE001, S110 - the error of the block is the one to be seen
        pass
