"""What the commands of the SQLite store do inside a transaction."""

import json
import sqlite3
from collections.abc import Iterable, Sequence, Set
from itertools import chain
from typing import Any

from dovetail.timeline.engine.lives import Allowance, Pace, Tokens, is_spent
from dovetail.timeline.message import (
    Handle,
    Inserted,
    KeyRule,
    Leased,
    Life,
    MessageId,
    NewMessage,
    OnTaken,
    Status,
)
from dovetail.timeline.stores import _sqlite_statements as sql
from dovetail.timeline.stores import outcomes as shared
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult

_NO_LIFE = Life()


def insert(
    connection: sqlite3.Connection,
    messages: Sequence[NewMessage],
    buckets: Sequence[int],
    now_ms: int,
) -> list[Inserted]:
    """Stores messages, each in its bucket."""
    (first,) = connection.execute(sql.TAKE_IDS, (len(messages),)).fetchone()
    if all(message.is_plain for message in messages):
        return _insert_plain(connection, messages, buckets, first)
    if all(message.key is None for message in messages):
        return _insert_keyless(connection, messages, buckets, first)

    (any_taken,) = connection.execute(sql.ANY_TAKEN).fetchone()
    bodies: list[tuple[Any, ...]] = []
    outcomes = []
    order_keys: set[str | None] = set()
    for identity, (message, bucket) in enumerate(zip(messages, buckets, strict=True), first):
        taken_by = None
        if any_taken and message.key is not None:
            row = connection.execute(sql.TAKEN_BY, (message.key, now_ms)).fetchone()
            taken_by = None if row is None else row[0]
        if taken_by is None:
            taken_by = _insert_rare(connection, identity, message, bucket, now_ms, order_keys)
        if taken_by is not None:
            outcomes.append(Inserted(Status.EXISTS, MessageId(taken_by)))
            continue
        bodies.append((identity, message.body, message.headers))
        outcomes.append(Inserted(Status.OK, MessageId(identity)))

    _insert_rows(connection, sql.INSERT_BODY, sql.INSERT_BODY_ROWS, bodies)
    order(connection, order_keys)
    return outcomes


def _insert_rare(
    connection: sqlite3.Connection,
    identity: int,
    message: NewMessage,
    bucket: int,
    now_ms: int,
    order_keys: set[str | None],
) -> int | None:
    """Stores the row of a message; who has its key, after what its rule says was done."""
    life, rule = message.life or Life(), message.key_rule or KeyRule()
    values = (
        *(identity, message.due_ms, bucket, message.due_ms, message.priority, message.key),
        *(message.order_key, life.attempts_max, life.backoff_ms, life.ttl_ms, rule.hold_ms),
    )
    order_keys.add(message.order_key)
    if connection.execute(sql.INSERT_RARE, values).rowcount:
        return None

    (held,) = connection.execute(sql.BY_KEY, (message.key,)).fetchone()
    if rule.on_taken is OnTaken.REPLACE:
        gone = connection.execute(sql.CANCEL, (as_json([held]), now_ms)).fetchall()
        if gone:
            order_keys.add(gone[0][1])
            connection.execute(sql.DELETE_BODIES, (as_json([held]),))
            connection.execute(sql.INSERT_RARE, values)
            return None
    if rule.on_taken is OnTaken.EARLIER:
        moved = connection.execute(sql.EARLIER, (message.due_ms, held, now_ms)).fetchall()
        order_keys.update(row[0] for row in moved)
    return int(held)


def order(
    connection: sqlite3.Connection, keys: Iterable[str | None], *, removed: bool = False
) -> None:
    """Parks and unparks messages of order keys, so that the first of each can be leased.

    If messages were only `removed`, whoever is the first and not parked still is.
    """
    # In the order of the index: what lies beside each other is looked for together.
    given = sorted({key for key in keys if key is not None})
    if given:
        text = json.dumps(given)
        if not removed:
            connection.execute(sql.PARK, (text,))
        connection.execute(sql.UNPARK, (text,))


def _insert_plain(
    connection: sqlite3.Connection,
    messages: Sequence[NewMessage],
    buckets: Sequence[int],
    first: int,
) -> list[Inserted]:
    """Messages without keys: nothing can be refused."""
    ids = range(first, first + len(messages))
    rows = [
        (identity, new.due_ms, bucket, new.due_ms, new.priority, None)
        for identity, new, bucket in zip(ids, messages, buckets, strict=True)
    ]
    _insert_rows(connection, sql.INSERT, sql.INSERT_ROWS, rows)
    return _insert_bodies(connection, messages, first)


def _insert_keyless(
    connection: sqlite3.Connection,
    messages: Sequence[NewMessage],
    buckets: Sequence[int],
    first: int,
) -> list[Inserted]:
    """Messages with order keys or lives of their own, none with a key."""
    heads = _new_heads(connection, messages)
    if any(new.life is not None or new.order_key is None for new in messages):
        _insert_lives(connection, messages, buckets, first, heads)
    else:
        _insert_ordered(connection, messages, buckets, first, heads)
    return _insert_bodies(connection, messages, first)


def _insert_lives(
    connection: sqlite3.Connection,
    messages: Sequence[NewMessage],
    buckets: Sequence[int],
    first: int,
    heads: Set[int],
) -> None:
    rows: list[tuple[Any, ...]] = []
    for at, (new, bucket) in enumerate(zip(messages, buckets, strict=True)):
        life, order_key = new.life or _NO_LIFE, new.order_key
        parked = order_key is not None and at not in heads
        row = (first + at, new.due_ms, bucket, new.due_ms, new.priority, order_key, parked)
        rows.append((*row, life.attempts_max, life.backoff_ms, life.ttl_ms))
    connection.executemany(sql.INSERT_KEYLESS, rows)


def _insert_ordered(
    connection: sqlite3.Connection,
    messages: Sequence[NewMessage],
    buckets: Sequence[int],
    first: int,
    heads: Set[int],
) -> None:
    rows = [
        (new.due_ms, bucket, new.priority, new.order_key, at not in heads)
        for at, (new, bucket) in enumerate(zip(messages, buckets, strict=True))
    ]
    whole = len(rows) - len(rows) % sql.ROWS
    for at in range(0, whole, sql.ROWS):
        values = (first + at, *chain.from_iterable(rows[at : at + sql.ROWS]))
        connection.execute(sql.INSERT_ORDERED_ROWS, values)
    rest = ((first + whole + at, *row) for at, row in enumerate(rows[whole:]))
    connection.executemany(sql.INSERT_ORDERED, rest)


def _new_heads(connection: sqlite3.Connection, messages: Sequence[NewMessage]) -> set[int]:
    """The places of new messages that are the first of their order keys; whoever they come before
    is parked.

    One that somebody holds stays the first, and so does one that is due at the same time. The
    first of each key is known before it is stored, so no row is changed after it was written.
    """
    places: dict[str, int] = {}
    for at, new in enumerate(messages):
        key = new.order_key
        if key is None:
            continue
        before = places.get(key)
        if before is None or new.due_ms < messages[before].due_ms:
            places[key] = at
    if not places:
        return set()

    first_ms = min(messages[at].due_ms for at in places.values())
    heads: set[int] = set()
    passed = []
    for key, due_ms in connection.execute(sql.UNLED, (json.dumps(list(places)), first_ms)):
        at = places[key]
        if due_ms is None:
            heads.add(at)
        elif messages[at].due_ms < due_ms:
            heads.add(at)
            passed.append(key)
    if passed:
        connection.execute(sql.PARK_HEADS, (json.dumps(passed),))
    return heads


def _insert_bodies(
    connection: sqlite3.Connection, messages: Sequence[NewMessage], first: int
) -> list[Inserted]:
    bodies = [(i, new.body, new.headers) for i, new in enumerate(messages, first)]
    _insert_rows(connection, sql.INSERT_BODY, sql.INSERT_BODY_ROWS, bodies)
    return [Inserted(Status.OK, MessageId(body[0])) for body in bodies]


def _insert_rows(
    connection: sqlite3.Connection, one: str, many: str, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Some in one statement, and the rest one by one."""
    whole = len(rows) - len(rows) % sql.ROWS
    for at in range(0, whole, sql.ROWS):
        connection.execute(many, tuple(chain.from_iterable(rows[at : at + sql.ROWS])))
    connection.executemany(one, rows[whole:])


def lease(
    connection: sqlite3.Connection,
    asks: Sequence[LeaseAsk],
    now_ms: int,
    attempts_max: int,
    pace: Pace,
) -> LeaseResult:
    """Leases what the asks name, one after another, within the pace."""
    held, tokens = 0, Tokens()
    if pace.in_hand_max:
        (held,) = connection.execute(sql.COUNT_LEASED, (now_ms,)).fetchone()
    if pace.rate_max:
        tokens = Tokens(*connection.execute(sql.PACE).fetchone())
    allowance = Allowance(pace, tokens, held=held, now_ms=now_ms)

    died = 0
    leased = []
    for ask in asks:
        limit = allowance.limit(ask.limit)
        taken, dead = _lease(connection, ask, limit, now_ms, attempts_max)
        allowance.took(len(taken), wanted=ask.limit)
        leased.append(taken)
        died += dead
    if pace.rate_max:
        connection.execute(sql.KEEP_PACE, (tokens.left, tokens.at_ms))

    horizon_ms = max((ask.horizon_ms for ask in asks), default=now_ms)
    next_ms, ends_ms = connection.execute(sql.NEXT, (horizon_ms, now_ms)).fetchone()
    times = [time_ms for time_ms in (next_ms, allowance.look_ms()) if time_ms is not None]
    return LeaseResult(tuple(leased), died, min(times, default=None), ends_ms)


def _lease(
    connection: sqlite3.Connection, ask: LeaseAsk, limit: int, now_ms: int, attempts_max: int
) -> tuple[tuple[Leased, ...], int]:
    buckets = (ask.horizon_ms, now_ms, ask.low, ask.high, ask.mask, ask.mask, ask.low)
    died = 0
    left = limit
    taken: list[Leased] = []
    while left > 0:
        asked = (now_ms, ask.lease_ms, ask.consumer, *buckets, left)
        rows = connection.execute(sql.LEASE, asked).fetchall()
        # An attempt beyond the last one is no attempt: that message had its chances.
        spent = [row for row in rows if _is_spent(row, attempts_max, now_ms)]
        dying = [(row[0], shared.reason_of_death(row[2], row[11], now_ms)) for row in spent]
        if dying:
            gone = {identity for identity, _ in dying}
            rows = [row for row in rows if row[0] not in gone]

        ids = [row[0] for row in rows]
        bodies = connection.execute(sql.BODIES, (as_json(ids),))
        contents = {identity: (body, headers) for identity, body, headers in bodies}
        for identity, row in zip(ids, rows, strict=True):
            values: tuple[Any, ...] = (*row[:7], *contents[identity], *row[7:10])
            taken.append(Leased(*values))

        if dying:
            _take_back_attempt(connection, dying)
            bury(connection, dying, now_ms)
            died += len(dying)
        left -= len(rows)
        if not dying:
            break
    taken.sort(key=lambda leased: (-leased.priority, leased.due_ms, leased.id))
    return tuple(taken), died


def _is_spent(row: Sequence[Any], attempts_max: int, now_ms: int) -> bool:
    return is_spent(
        row[4], row[10], attempts_max=attempts_max, due_ms=row[2], ttl_ms=row[11], now_ms=now_ms
    )


def _take_back_attempt(connection: sqlite3.Connection, dying: Iterable[tuple[int, str]]) -> None:
    connection.execute(sql.UNCOUNT, (as_json(identity for identity, _ in dying),))


def bury(connection: sqlite3.Connection, dying: Sequence[tuple[int, str]], now_ms: int) -> None:
    """Makes dead letters; their bodies stay where they are."""
    for identity, reason in dying:
        connection.execute(sql.BURY, (reason, now_ms, identity))
    if dying:
        ids = as_json(identity for identity, _ in dying)
        gone = connection.execute(sql.DELETE_ROWS, (ids,)).fetchall()
        order(connection, [order_key for _, order_key in gone])


def replay(connection: sqlite3.Connection, identity: MessageId, due_ms: int) -> Status:
    """Makes a message of a dead letter."""
    row = connection.execute(sql.DEAD_KEY, (identity,)).fetchone()
    if row is None:
        return Status.GONE
    if row[0] is not None and connection.execute(sql.BY_KEY, (row[0],)).fetchone() is not None:
        return Status.EXISTS
    connection.execute(sql.REVIVE, (due_ms, due_ms, identity))
    connection.execute(sql.DELETE_DEAD, (identity,))
    order(connection, row[1:])
    return Status.OK


def statuses(
    connection: sqlite3.Connection, handles: Sequence[Handle], done: "set[Handle]"
) -> list[Status]:
    """What became of each lease."""
    if len(done) == len(handles):
        return [Status.OK] * len(handles)
    missed = [handle.id for handle in handles if handle not in done]
    versions = dict(connection.execute(sql.VERSIONS, (as_json(missed),)).fetchall())
    return [shared.status_of_miss(handle, done, versions) for handle in handles]


def unheld_statuses(
    connection: sqlite3.Connection, ids: Sequence[MessageId], done: "set[int]"
) -> list[Status]:
    """What became of each message that nobody was to hold."""
    missed = [identity for identity in ids if identity not in done]
    there = dict(connection.execute(sql.VERSIONS, (as_json(missed),)).fetchall())
    return [shared.status_of_unheld(identity, done, there) for identity in ids]


def as_json(ids: Iterable[int]) -> str:
    """Ids for `json_each`."""
    return json.dumps(list(ids))
