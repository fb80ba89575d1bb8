"""Order keys, keys that stay taken, and the pace of all consumers, on PostgreSQL.

One message of each order key is its *head*: it waits in `queue` or is leased, like every message.
The others are parked: in `parked`, where no lease finds them. `heads` has a row for each order key
that has messages.

A transaction that changes messages of an order key has three steps: the change, a lock on the key's
row of `heads`, and `ORDER`, which makes the first by due time the head if nobody holds the current
one. `ORDER` is a separate statement behind the lock, so it sees everything committed by those that
had the lock before, and those that get it later see what we did. So a key never has two heads, and
never none while it has messages, whatever dies where.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from dovetail.errors import Unavailable
from dovetail.timeline.engine.lives import Tokens
from dovetail.timeline.message import (
    Inserted,
    KeyRule,
    Life,
    MessageId,
    NewMessage,
    OnTaken,
    Status,
)

Sql = Callable[[str], str]

#: How often a message with a rule meets somebody who changes what has its key.
TURNS_MAX: Final = 100

#: In every timeline's tables beside those of format 3; nothing is changed where they are.
SCHEMA: Final = (
    "".join(
        f"ALTER TABLE {{t}}{table} ADD COLUMN IF NOT EXISTS {column};\n"
        for table in ("messages", "dead")
        for column in (
            "order_key text",
            "most integer NOT NULL DEFAULT 0",
            "backoff bigint NOT NULL DEFAULT 0",
            "ttl bigint NOT NULL DEFAULT 0",
            "hold bigint NOT NULL DEFAULT 0",
        )
    )
    + """
CREATE INDEX IF NOT EXISTS {n}messages_order ON {t}messages (order_key, due, id)
    WHERE order_key IS NOT NULL;
ALTER TABLE {t}ends ADD COLUMN IF NOT EXISTS holder text;
CREATE INDEX IF NOT EXISTS {n}ends_holder ON {t}ends (holder);
CREATE INDEX IF NOT EXISTS {n}schedules_next ON {t}schedules (next);
CREATE TABLE IF NOT EXISTS {t}heads (key text PRIMARY KEY, head bigint NOT NULL)
    WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE IF NOT EXISTS {t}parked (visible bigint NOT NULL, id bigint NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS {n}parked_visible ON {t}parked (visible, id);
CREATE TABLE IF NOT EXISTS {t}taken (
    key text PRIMARY KEY, id bigint NOT NULL, until bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {t}pace (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), tokens double precision, at bigint NOT NULL
);
INSERT INTO {t}pace (tokens, at) VALUES (NULL, 0) ON CONFLICT DO NOTHING;
"""
)

#: With an order key it is parked, until it is known to be the first.
INSERT = """
WITH given AS MATERIALIZED (
    SELECT nextval('{t}ids') AS id, g.* FROM unnest($1::bigint[], $2::int[], $3::bytea[],
        $4::bytea[], $5::int[], $6::text[], $7::text[], $8::int[], $9::bigint[], $10::bigint[],
        $11::bigint[]) WITH ORDINALITY AS g (due, bucket, body, headers, priority, key, order_key,
        most, backoff, ttl, hold, at)
), stored AS (
    INSERT INTO {t}messages (id, visible, due, bucket, priority, key, headers, body, order_key,
        most, backoff, ttl, hold, queued)
    SELECT id, due, due, bucket, priority, key, headers, body, order_key, most, backoff, ttl, hold,
        order_key IS NULL
    FROM given g
    WHERE key IS NULL OR NOT EXISTS (SELECT FROM {t}taken t WHERE t.key = g.key AND t.until > $12)
    ORDER BY at
    ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING
    RETURNING visible, id, bucket, order_key
), queued AS (
    INSERT INTO {t}queue (visible, id, bucket)
    SELECT visible, id, bucket FROM stored WHERE order_key IS NULL
), parked AS (
    INSERT INTO {t}parked (visible, id) SELECT visible, id FROM stored WHERE order_key IS NOT NULL
)
SELECT id, id IN (SELECT id FROM stored) FROM given ORDER BY at
"""
BY_KEYS = """
SELECT key, id FROM {t}taken WHERE key = ANY ($1::text[]) AND until > $2
UNION ALL SELECT key, id FROM {t}messages WHERE key = ANY ($1::text[])
"""
TAKEN = "SELECT key, id FROM {t}taken WHERE key = ANY ($1::text[]) AND until > $2"
IS_TAKEN = "SELECT EXISTS (SELECT FROM {t}taken WHERE key = $1 AND until > $2)"
TAKE_KEYS = """
INSERT INTO {t}taken (key, id, until) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])
ON CONFLICT (key) DO UPDATE SET id = excluded.id, until = excluded.until
"""
TRIM_TAKEN = "DELETE FROM {t}taken WHERE until < $1"
HELD = "SELECT id, due FROM {t}messages WHERE key = $1"

LOCK = """
INSERT INTO {t}heads AS h (key, head) SELECT key, 0 FROM unnest($1::text[]) AS k (key)
ON CONFLICT (key) DO UPDATE SET head = h.head
"""
ORDER = """
WITH wanted AS MATERIALIZED (
    SELECT h.key, c.id AS head, c.visible AS head_visible, f.id, f.visible
    FROM unnest($1::text[]) AS k (key) JOIN {t}heads h ON h.key = k.key
    CROSS JOIN LATERAL (
        SELECT id, visible FROM {t}messages WHERE order_key = k.key ORDER BY due, id LIMIT 1
    ) f
    LEFT JOIN {t}messages c ON c.id = h.head AND c.order_key = h.key
    WHERE c.id IS NULL OR (c.holder IS NULL AND c.id <> f.id)
), ousted AS (
    DELETE FROM {t}queue q USING wanted w WHERE q.visible = w.head_visible AND q.id = w.head
    RETURNING q.id, q.visible
), turn AS MATERIALIZED (
    SELECT * FROM wanted WHERE head IS NULL OR head IN (SELECT id FROM ousted)
), behind AS (
    UPDATE {t}messages m SET queued = false FROM ousted o WHERE m.id = o.id
), parked AS (
    INSERT INTO {t}parked (visible, id) SELECT visible, id FROM ousted
), unparked AS (
    DELETE FROM {t}parked p USING turn t WHERE p.visible = t.visible AND p.id = t.id
), first AS (
    UPDATE {t}messages m SET queued = true FROM turn t WHERE m.id = t.id
    RETURNING m.visible, m.id, m.bucket
), queued AS (
    INSERT INTO {t}queue (visible, id, bucket) SELECT visible, id, bucket FROM first
), gone AS (
    DELETE FROM {t}heads h WHERE h.key = ANY ($1::text[])
        AND NOT EXISTS (SELECT FROM {t}messages m WHERE m.order_key = h.key)
)
UPDATE {t}heads h SET head = t.id FROM turn t WHERE h.key = t.key
"""

DELETE = """
DELETE FROM {t}messages m USING unnest($1::bigint[], $2::int[]) AS g (id, version)
WHERE m.id = g.id AND m.version = g.version AND m.holder IS NOT NULL AND NOT m.queued
RETURNING m.id, m.version, m.order_key, m.hold, m.key
"""
PURGE = """
WITH found AS MATERIALIZED (
    SELECT ctid AS place, id FROM {t}parked ORDER BY visible, id LIMIT $1 FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM {t}parked WHERE ctid = ANY (ARRAY(SELECT place FROM found))
)
DELETE FROM {t}messages WHERE id IN (SELECT id FROM found) RETURNING id, order_key
"""

PACE = "SELECT tokens, at FROM {t}pace FOR UPDATE"
KEEP_PACE = "UPDATE {t}pace SET tokens = $1, at = $2"


async def order(connection: Any, sql: Sql, keys: Iterable[str | None]) -> bool:
    """Makes the first of each order key its head; inside the transaction of the change. Whether
    there was any."""
    given = sorted({key for key in keys if key is not None})
    if given:
        await connection.execute(sql(LOCK), given)
        await connection.execute(sql(ORDER), given)
    return bool(given)


async def insert(
    connection: Any,
    sql: Sql,
    messages: Sequence[NewMessage],
    buckets: Sequence[int],
    now_ms: int,
    cancel: str,
) -> list[Inserted]:
    """Stores messages that are not plain, inside a transaction. `cancel` is the statement."""
    keys = [message.key for message in messages]
    rows = await connection.fetch(sql(INSERT), *_columns(messages, buckets, keys), now_ms)
    refused = [key for key, (_, stored) in zip(keys, rows, strict=True) if not stored]
    taken_by: dict[str, int] = {}
    if refused:
        taken_by = dict(await connection.fetch(sql(BY_KEYS), refused, now_ms))
    await order(connection, sql, (message.order_key for message in messages))
    outcomes = [
        Inserted(Status.OK, identity)
        if stored
        # 0 if whoever had the key is gone by now.
        else Inserted(Status.EXISTS, MessageId(taken_by.get(key or "", 0)))
        for key, (identity, stored) in zip(keys, rows, strict=True)
    ]

    # Whoever had a key may have been done since the statement looked, and have it for a while.
    mine = {
        key: at
        for at, key in enumerate(keys)
        if key is not None and outcomes[at].status is Status.OK
    }
    late = dict(await connection.fetch(sql(TAKEN), list(mine), now_ms)) if mine else {}
    if late:
        gone = [outcomes[mine[key]].id for key in late]
        rows = await connection.fetch(sql(cancel), gone, now_ms)
        await order(connection, sql, (row[1] for row in rows))
        for key, identity in late.items():
            outcomes[mine[key]] = Inserted(Status.EXISTS, MessageId(identity))
    return outcomes


def _columns(
    messages: Sequence[NewMessage], buckets: Sequence[int], keys: list[str | None]
) -> list[list[Any]]:
    lives = [message.life or Life() for message in messages]
    return [
        [message.due_ms for message in messages],
        list(buckets),
        [message.body for message in messages],
        [message.headers for message in messages],
        [message.priority for message in messages],
        keys,
        [message.order_key for message in messages],
        [life.attempts_max for life in lives],
        [life.backoff_ms for life in lives],
        [life.ttl_ms for life in lives],
        [0 if message.key_rule is None else message.key_rule.hold_ms for message in messages],
    ]


class Changing(NamedTuple):
    """Statements about messages that nobody holds: remove one, move it if that is earlier, and let
    it be taken if its lease is over."""

    cancel: str
    earlier: str
    give_way: str


async def insert_ruled(
    connection: Any,
    sql: Sql,
    message: NewMessage,
    bucket: int,
    now_ms: int,
    changing: Changing,
) -> Inserted:
    """Stores a message whose key has a rule, inside a transaction.

    Others may store, move and remove under the same key between any two statements, each of which
    sees what was committed before it. So the rule is done again until nobody came in between, or
    the one that has the key is being handled. Raises `Unavailable` if that does not end.
    """
    rule, give_way = message.key_rule or KeyRule(), True
    for _ in range(TURNS_MAX):
        held = await connection.fetchrow(sql(HELD), message.key)
        rows: list[Any] = []
        if held is not None and rule.on_taken is OnTaken.REPLACE:
            rows = await connection.fetch(sql(changing.cancel), [held[0]], now_ms)
        elif held is not None and _is_earlier(message, held):
            rows = await connection.fetch(
                sql(changing.earlier), [held[0]], [message.due_ms], now_ms
            )
        await order(connection, sql, (row[1] for row in rows))

        (found,) = await insert(connection, sql, [message], [bucket], now_ms, changing.cancel)
        if found.status is Status.OK or rule.on_taken is OnTaken.KEEP:
            return found
        there = await connection.fetchrow(sql(HELD), message.key)
        if there is None:
            if await connection.fetchval(sql(IS_TAKEN), message.key, now_ms):
                return found
            continue
        is_kept = rule.on_taken is OnTaken.EARLIER and not _is_earlier(message, there)
        if is_kept or (there == held and not give_way):
            return Inserted(Status.EXISTS, MessageId(there[0]))
        if there == held:
            # Somebody handles it, or its lease is over, and it is not queued again yet.
            await connection.execute(sql(changing.give_way), [there[0]], now_ms)
            give_way = False
    raise Unavailable(f"the message with the key {message.key!r} changes all the time; try again")


def _is_earlier(message: NewMessage, held: Sequence[int]) -> bool:
    """Whether it moves the one that has its key."""
    rule = message.key_rule or KeyRule()
    return rule.on_taken is OnTaken.EARLIER and message.due_ms < held[1]


async def tokens_of(connection: Any, sql: Sql) -> Tokens:
    """What is left of the timeline's rate, locked until the transaction ends."""
    left, at_ms = await connection.fetchrow(sql(PACE))
    return Tokens(left, at_ms)
