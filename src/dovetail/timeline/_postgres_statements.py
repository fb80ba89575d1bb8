"""The statements of the PostgreSQL store, and the tables they are about.

`{t}` stands for the prefix of a timeline's tables, made of the schema and our own numbers, and
`{n}` for the same without the schema. Each command is one statement over arrays (`unnest`), however
many items it has: one way to the server and back.

A lease takes what it can have now (`SKIP LOCKED`). Other commands name rows by id, and two of them
with the same rows in another order can wait for each other in a circle; PostgreSQL ends one of
them, and the store sends that one again.
"""

from typing import Final

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS {t}messages (
    id       bigint PRIMARY KEY,
    visible  bigint NOT NULL,
    bucket   integer NOT NULL,
    version  integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    due      bigint NOT NULL,
    priority smallint NOT NULL,
    key      text,
    holder   text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS {n}messages_visible ON {t}messages (visible, id, bucket);
CREATE UNIQUE INDEX IF NOT EXISTS {n}messages_key ON {t}messages (key) WHERE key IS NOT NULL;
CREATE INDEX IF NOT EXISTS {n}messages_holder ON {t}messages (holder, visible)
    WHERE holder IS NOT NULL;
CREATE TABLE IF NOT EXISTS {t}bodies (
    id bigint PRIMARY KEY, body bytea NOT NULL, headers bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE IF NOT EXISTS {t}dead (
    id       bigint PRIMARY KEY,
    version  integer NOT NULL,
    bucket   integer NOT NULL,
    attempts integer NOT NULL,
    due      bigint NOT NULL,
    priority smallint NOT NULL,
    key      text,
    reason   text NOT NULL,
    died     bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {t}schedules (
    name     text PRIMARY KEY,
    body     bytea NOT NULL,
    next     bigint NOT NULL,
    headers  bytea NOT NULL,
    cron     text NOT NULL,
    zone     text NOT NULL,
    every    bigint NOT NULL,
    start    bigint NOT NULL,
    priority smallint NOT NULL
);
CREATE TABLE IF NOT EXISTS {t}batches (
    producer bigint NOT NULL,
    sequence bigint NOT NULL,
    outcomes bytea NOT NULL,
    at       bigint NOT NULL,
    PRIMARY KEY (producer, sequence)
);
CREATE SEQUENCE IF NOT EXISTS {t}ids;
"""
DROP: Final = """
DROP TABLE IF EXISTS {t}messages, {t}bodies, {t}dead, {t}schedules, {t}batches;
DROP SEQUENCE IF EXISTS {t}ids
"""

# Producers

INSERT = """
WITH given AS MATERIALIZED (
    SELECT nextval('{t}ids') AS id, due, bucket, body, headers, priority, key, at
    FROM unnest($1::bigint[], $2::int[], $3::bytea[], $4::bytea[], $5::int[], $6::text[])
        WITH ORDINALITY AS g (due, bucket, body, headers, priority, key, at)
), stored AS (
    INSERT INTO {t}messages (id, visible, bucket, due, priority, key)
    SELECT id, due, bucket, due, priority, key FROM given ORDER BY at
    ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id
), bodies AS (
    INSERT INTO {t}bodies (id, body, headers)
    SELECT id, body, headers FROM given WHERE id IN (SELECT id FROM stored)
)
SELECT given.id, stored.id IS NOT NULL FROM given LEFT JOIN stored USING (id) ORDER BY given.at
"""
#: Without keys nothing can be refused, so nothing has to be looked for.
INSERT_PLAIN = """
WITH given AS MATERIALIZED (
    SELECT nextval('{t}ids') AS id, due, bucket, body, headers, priority
    FROM unnest($1::bigint[], $2::int[], $3::bytea[], $4::bytea[], $5::int[])
        AS g (due, bucket, body, headers, priority)
), stored AS (
    INSERT INTO {t}messages (id, visible, bucket, due, priority)
    SELECT id, due, bucket, due, priority FROM given
)
INSERT INTO {t}bodies (id, body, headers) SELECT id, body, headers FROM given RETURNING id
"""
BY_KEYS = "SELECT key, id FROM {t}messages WHERE key = ANY ($1::text[])"
BATCH_NAME = """
INSERT INTO {t}batches (producer, sequence, outcomes, at) VALUES ($1, $2, '', $3)
ON CONFLICT DO NOTHING RETURNING 1
"""
BATCH_KNOWN = "SELECT outcomes FROM {t}batches WHERE producer = $1 AND sequence = $2"
BATCH_KEEP = "UPDATE {t}batches SET outcomes = $3 WHERE producer = $1 AND sequence = $2"
BATCH_FORGET = "DELETE FROM {t}batches WHERE producer = $1 AND sequence <= $2"
CANCEL = """
WITH gone AS (
    DELETE FROM {t}messages
    WHERE id = ANY ($1::bigint[]) AND (holder IS NULL OR visible <= $2) RETURNING id
)
DELETE FROM {t}bodies WHERE id IN (SELECT id FROM gone) RETURNING id
"""
MOVE = """
UPDATE {t}messages m
SET visible = g.due, due = g.due, version = version + 1, holder = NULL
FROM unnest($1::bigint[], $2::bigint[]) AS g (id, due)
WHERE m.id = g.id AND (holder IS NULL OR visible <= $3) RETURNING m.id
"""

# Consumers

LEASE = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::bigint[], $5::int[], $6::bigint[],
        $7::bytea[]) WITH ORDINALITY
        AS a (consumer, low, high, horizon, most, lease, mask, at)
), picked AS MATERIALIZED (
    SELECT m.id, a.consumer, a.lease, a.at
    FROM asked a CROSS JOIN LATERAL (
        SELECT id FROM {t}messages
        WHERE visible <= a.horizon AND (visible <= $8 OR holder IS NULL)
            AND bucket >= a.low AND bucket < a.high
            AND (a.mask IS NULL OR get_byte(a.mask, bucket - a.low) = 1)
        ORDER BY visible, id LIMIT a.most FOR UPDATE SKIP LOCKED
    ) m
), leased AS (
    UPDATE {t}messages m
    SET visible = greatest(visible, $8) + p.lease, version = version + 1,
        attempts = attempts + 1, holder = p.consumer
    FROM (SELECT DISTINCT ON (id) * FROM picked ORDER BY id, at) p WHERE m.id = p.id
    RETURNING p.at, m.id, version, due, visible, attempts, m.priority, bucket, key
)
SELECT l.at, l.id, version, due, visible, attempts, priority, bucket, body, headers, key
FROM leased l JOIN {t}bodies b ON b.id = l.id
"""
NEXT = """
SELECT (SELECT min(visible) FROM {t}messages WHERE visible > $1),
    (SELECT min(visible) FROM {t}messages
        WHERE visible > $2 AND visible <= $1 AND holder IS NOT NULL)
"""
EXTEND = """
UPDATE {t}messages m SET visible = g.until
FROM unnest($1::bigint[], $2::int[], $3::bigint[]) AS g (id, version, until)
WHERE m.id = g.id AND m.version = g.version AND m.holder IS NOT NULL RETURNING m.id, m.version
"""
RELEASE = """
UPDATE {t}messages m
SET visible = g.due, version = m.version + 1, holder = NULL, attempts = attempts - g.uncounted
FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::int[]) AS g (id, version, due, uncounted)
WHERE m.id = g.id AND m.version = g.version AND m.holder IS NOT NULL
RETURNING m.id, g.version, m.attempts
"""
DELETE = """
WITH gone AS (
    DELETE FROM {t}messages m USING unnest($1::bigint[], $2::int[]) AS g (id, version)
    WHERE m.id = g.id AND m.version = g.version AND m.holder IS NOT NULL
    RETURNING m.id, m.version
)
DELETE FROM {t}bodies b USING gone WHERE b.id = gone.id RETURNING gone.id, gone.version
"""
VERSIONS = "SELECT id, version FROM {t}messages WHERE id = ANY ($1::bigint[])"
HELD_BY = """
SELECT id, version, due, visible, attempts, priority, bucket, body, headers, key
FROM {t}messages JOIN {t}bodies USING (id)
WHERE holder = $1 AND visible > $2 ORDER BY visible, id LIMIT $3
"""

# Whoever looks

_SHOWN = """
SELECT id, version, holder, due, visible, attempts, priority, bucket, body, headers, key
FROM {t}messages JOIN {t}bodies USING (id)
"""
LOOK_UP = _SHOWN + "WHERE id = ANY ($1::bigint[])"
LOOK_UP_KEYS = _SHOWN + "WHERE key = ANY ($1::text[])"
PEEK = _SHOWN + "ORDER BY visible, id LIMIT $1"
COUNTS = """
SELECT (SELECT count(*) FROM {t}messages),
    (SELECT count(*) FROM {t}messages WHERE visible <= $1),
    (SELECT count(*) FROM {t}messages WHERE holder IS NOT NULL AND visible > $1),
    (SELECT count(*) FROM {t}dead),
    coalesce((SELECT min(visible) FROM {t}messages WHERE visible <= $1), 0)
"""
HISTOGRAM = """
SELECT (SELECT count(*) FROM {t}messages WHERE visible >= low AND visible < high)
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS s (low, high, at) ORDER BY at
"""

# Dead letters

_DEAD = """
SELECT id, version, reason, died, due, died, attempts, priority, bucket, body, headers, key
FROM {t}dead JOIN {t}bodies USING (id)
"""
LOOK_UP_DEAD = _DEAD + "WHERE id = ANY ($1::bigint[])"
DEAD = _DEAD + "WHERE id > $1 ORDER BY id LIMIT $2"
BURY = """
WITH given AS (SELECT * FROM unnest($1::bigint[], $2::text[]) AS g (id, reason)),
gone AS (
    DELETE FROM {t}messages m USING given g WHERE m.id = g.id
    RETURNING m.id, version, bucket, attempts, due, priority, key, reason
)
INSERT INTO {t}dead (id, version, bucket, attempts, due, priority, key, reason, died)
SELECT id, version, bucket, attempts - $4, due, priority, key, reason, $3 FROM gone
"""
DEAD_IDS = "SELECT id FROM {t}dead WHERE id = ANY ($1::bigint[])"
REVIVE = """
WITH revived AS (
    INSERT INTO {t}messages (id, visible, bucket, version, attempts, due, priority, key)
    SELECT id, $2, bucket, version + 1, 0, $2, priority, key FROM {t}dead
    WHERE id = ANY ($1::bigint[]) ORDER BY array_position($1::bigint[], id)
    ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING
    RETURNING id
)
DELETE FROM {t}dead WHERE id IN (SELECT id FROM revived) RETURNING id
"""
DROP_DEAD = """
WITH gone AS (DELETE FROM {t}dead WHERE id = ANY ($1::bigint[]) RETURNING id)
DELETE FROM {t}bodies WHERE id IN (SELECT id FROM gone) RETURNING id
"""
TRIM_DEAD = """
WITH gone AS (
    DELETE FROM {t}dead WHERE id IN (
        SELECT id FROM {t}dead ORDER BY died DESC, id DESC OFFSET $1
    ) RETURNING id
)
DELETE FROM {t}bodies WHERE id IN (SELECT id FROM gone) RETURNING id
"""

# Schedules, batches

PUT_SCHEDULE = """
INSERT INTO {t}schedules (name, body, next, headers, cron, zone, every, start, priority)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (name) DO UPDATE SET body = $2, next = $3, headers = $4, cron = $5, zone = $6,
    every = $7, start = $8, priority = $9
"""
DROP_SCHEDULE = "DELETE FROM {t}schedules WHERE name = $1 RETURNING 1"
SCHEDULES = """
SELECT name, body, next, headers, cron, zone, every, start, priority
FROM {t}schedules ORDER BY name COLLATE "C"
"""
ADVANCE_SCHEDULE = "UPDATE {t}schedules SET next = $1 WHERE name = $2 AND next = $3 RETURNING 1"
TRIM_BATCHES = "DELETE FROM {t}batches WHERE at < $1 RETURNING 1"
TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
EXISTING = """
SELECT substring(tablename FROM '^t([0-9]+)_messages$')::bigint FROM pg_tables
WHERE schemaname = $1 AND tablename ~ '^t[0-9]+_messages$'
"""
#: A lock that nobody else asks for: the first number is ours ("DVTT").
ALONE = "SELECT pg_advisory_xact_lock(1146508372, $1::int)"
