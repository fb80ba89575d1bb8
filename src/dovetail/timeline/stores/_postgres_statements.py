"""The statements of the PostgreSQL store, and its tables.

`{t}` stands for the prefix of a timeline's tables, made of the schema and our own numbers, and
`{n}` for the same without the schema. Each command is one statement over arrays (`unnest`), however
many items it has: one round trip.

A row that changes an indexed column is written anew, with an entry in every index. So what changes
with a lease has no index: `messages` holds a message with its version and its lease, and is found
by id alone. Two small tables say when a message changes hands. `queue` has a row for each message
that waits. `ends` has a row for all messages that one consumer leased together until the same
moment.

    state     messages                   stands in
    WAITING   queued, no holder          queue, at its visible time
    LEASED    not queued, a holder       ends, in a row of its visible time
    ENDED     queued, a holder           queue, at the end of the lease
    PARKED    not queued, no holder      parked, at its visible time (`_postgres_order`)

    statement   from                 to
    LEASE       WAITING or ENDED     LEASED, of the next version
    SETTLE      LEASED, over         ENDED, of the same version: it is still its holder's
    GIVE_WAY    LEASED, over         ENDED, as SETTLE, by id
    TAKE_BACK   ENDED                LEASED, over, of the same version
    EXTEND      LEASED               LEASED
    TAKE_UP     LEASED               LEASED, of the next version
    RELEASE     LEASED               WAITING
    DELETE      LEASED               gone
    MOVE        WAITING or ENDED     WAITING; PARKED stays PARKED
    CANCEL      all but LEASED       gone
    ORDER       WAITING, PARKED      PARKED, WAITING, of one order key

Two rules keep the tables consistent. A statement that changes a queued message locks its row of
`queue` first, and removes it. A statement that leases a message or moves the end of a lease adds a
row to `ends`. So a row of `queue` that could be locked is the truth about its message; and each
lease is in `ends` at its own end, beside harmless rows of leases that are gone.

A lease takes what it can have now (`SKIP LOCKED`). Other commands name rows by id, and two of them
with the same rows in different order can deadlock; PostgreSQL ends one of them, and the store sends
that one again.
"""

from typing import Final

from dovetail.timeline.stores.outcomes import PUT_AGAIN

#: Raised when the tables change; written with the table of messages.
FORMAT: Final = "dovetail timeline, format 4"
#: Has the same tables, without those of `_postgres_order`, which are added.
FORMAT_BEFORE: Final = "dovetail timeline, format 3"

#: Half of each page of messages is left free: a lease then writes the row anew on the same page,
#: and the index on ids need not know (60: 8 % slower leases; 100: 25 %). Ids of leases are not
#: compressed: they are gone in seconds, and that would be a tenth of the cost of a lease.
SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS {{t}}messages (
    id       bigint PRIMARY KEY,
    visible  bigint NOT NULL,
    due      bigint NOT NULL,
    version  integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    bucket   integer NOT NULL,
    priority smallint NOT NULL,
    queued   boolean NOT NULL DEFAULT true,
    holder   text,
    key      text,
    headers  bytea NOT NULL,
    body     bytea NOT NULL
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE {{t}}messages IS '{FORMAT}';
CREATE UNIQUE INDEX IF NOT EXISTS {{n}}messages_key ON {{t}}messages (key) WHERE key IS NOT NULL;
CREATE TABLE IF NOT EXISTS {{t}}queue (
    visible bigint NOT NULL, id bigint NOT NULL, bucket integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX IF NOT EXISTS {{n}}queue_visible ON {{t}}queue (visible, id, bucket);
CREATE TABLE IF NOT EXISTS {{t}}ends (
    look  bigint NOT NULL,
    until bigint NOT NULL,
    made  bigint NOT NULL,
    size  integer NOT NULL,
    ids   bigint[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE {{t}}ends ALTER ids SET STORAGE EXTERNAL;
CREATE INDEX IF NOT EXISTS {{n}}ends_look ON {{t}}ends (look);
CREATE INDEX IF NOT EXISTS {{n}}ends_until ON {{t}}ends (until);
CREATE TABLE IF NOT EXISTS {{t}}dead (
    id       bigint PRIMARY KEY,
    version  integer NOT NULL,
    bucket   integer NOT NULL,
    attempts integer NOT NULL,
    due      bigint NOT NULL,
    priority smallint NOT NULL,
    key      text,
    reason   text NOT NULL,
    died     bigint NOT NULL,
    headers  bytea NOT NULL,
    body     bytea NOT NULL
);
CREATE TABLE IF NOT EXISTS {{t}}schedules (
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
CREATE TABLE IF NOT EXISTS {{t}}batches (
    producer bigint NOT NULL,
    sequence bigint NOT NULL,
    outcomes bytea NOT NULL,
    at       bigint NOT NULL,
    PRIMARY KEY (producer, sequence)
);
CREATE SEQUENCE IF NOT EXISTS {{t}}ids;
"""
#: Whose schema it is, and what each timeline in it is called. The names are for whoever adopts the
#: schema after its cluster was lost: the catalog of timelines is in the coordination service.
OWNED: Final = """
CREATE SCHEMA IF NOT EXISTS {s};
CREATE TABLE IF NOT EXISTS {s}.owner (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    cluster text NOT NULL,
    adopted boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS {s}.labels (id bigint PRIMARY KEY, label bytea NOT NULL)
"""
CLAIM: Final = "INSERT INTO {s}.owner (cluster) VALUES ($1) ON CONFLICT DO NOTHING"
OWNER: Final = "SELECT cluster FROM {s}.owner"
HAND_OVER: Final = "UPDATE {s}.owner SET cluster = $2, adopted = true WHERE cluster = $1"
IS_ADOPTED: Final = "SELECT adopted FROM {s}.owner"
ADOPTION_DONE: Final = "UPDATE {s}.owner SET adopted = false"
LABELS: Final = "SELECT id, label FROM {s}.labels"
KEEP_LABEL: Final = """
INSERT INTO {s}.labels (id, label) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET label = $2
"""
DROP_LABEL: Final = "DELETE FROM {s}.labels WHERE id = $1"

#: Bodies had a table of their own in formats before this one.
DROP: Final = """
DROP TABLE IF EXISTS {t}messages, {t}queue, {t}ends, {t}dead, {t}schedules, {t}batches, {t}bodies,
    {t}heads, {t}parked, {t}taken, {t}pace;
DROP SEQUENCE IF EXISTS {t}ids
"""

# Producers

#: Without keys nothing can be refused, so nothing has to be looked for. The others are stored by
#: `_postgres_order`.
INSERT_PLAIN = """
WITH given AS MATERIALIZED (
    SELECT nextval('{t}ids') AS id, due, bucket, body, headers, priority
    FROM unnest($1::bigint[], $2::int[], $3::bytea[], $4::bytea[], $5::int[])
        AS g (due, bucket, body, headers, priority)
), queued AS (
    INSERT INTO {t}queue (visible, id, bucket) SELECT due, id, bucket FROM given
)
INSERT INTO {t}messages (id, visible, due, bucket, priority, headers, body)
SELECT id, due, due, bucket, priority, headers, body FROM given RETURNING id
"""
BATCH_NAME = """
INSERT INTO {t}batches (producer, sequence, outcomes, at) VALUES ($1, $2, '', $3)
ON CONFLICT DO NOTHING RETURNING 1
"""
BATCH_KNOWN = "SELECT outcomes FROM {t}batches WHERE producer = $1 AND sequence = $2"
BATCH_KEEP = "UPDATE {t}batches SET outcomes = $3 WHERE producer = $1 AND sequence = $2"
BATCH_FORGET = "DELETE FROM {t}batches WHERE producer = $1 AND sequence <= $2"
CANCEL = """
WITH found AS MATERIALIZED (
    SELECT q.ctid AS place, q.id
    FROM {t}messages m JOIN {t}queue q ON q.visible = m.visible AND q.id = m.id
    WHERE m.id = ANY ($1::bigint[]) AND m.queued AND (m.holder IS NULL OR m.visible <= $2)
    FOR UPDATE OF q
), taken AS (
    DELETE FROM {t}queue WHERE ctid = ANY (ARRAY(SELECT place FROM found))
), parked AS (
    DELETE FROM {t}parked p USING {t}messages m
    WHERE m.id = ANY ($1::bigint[]) AND m.order_key IS NOT NULL
        AND p.visible = m.visible AND p.id = m.id RETURNING p.id
)
DELETE FROM {t}messages WHERE id IN (SELECT id FROM found UNION ALL SELECT id FROM parked)
RETURNING id, order_key
"""
MOVE = """
WITH found AS MATERIALIZED (
    SELECT q.ctid AS place, q.id, g.due
    FROM unnest($1::bigint[], $2::bigint[]) AS g (id, due) JOIN {t}messages m ON m.id = g.id
    JOIN {t}queue q ON q.visible = m.visible AND q.id = m.id
    WHERE m.queued AND (m.holder IS NULL OR m.visible <= $3)
    FOR UPDATE OF q
), taken AS (
    DELETE FROM {t}queue WHERE ctid = ANY (ARRAY(SELECT place FROM found))
), parked AS (
    DELETE FROM {t}parked p USING unnest($1::bigint[], $2::bigint[]) AS g (id, due), {t}messages m
    WHERE m.id = g.id AND m.order_key IS NOT NULL AND p.visible = m.visible AND p.id = m.id
    RETURNING p.id, g.due
), moved AS (
    UPDATE {t}messages m SET visible = f.due, due = f.due, version = version + 1, holder = NULL
    FROM (SELECT id, due FROM found UNION ALL SELECT id, due FROM parked) f
    WHERE m.id = f.id RETURNING m.visible, m.id, m.bucket, m.queued, m.order_key
), queued AS (
    INSERT INTO {t}queue (visible, id, bucket) SELECT visible, id, bucket FROM moved WHERE queued
), again AS (
    INSERT INTO {t}parked (visible, id) SELECT visible, id FROM moved WHERE NOT queued
)
SELECT id, order_key FROM moved
"""
EARLIER = MOVE.replace("m.id = g.id", "m.id = g.id AND m.due > g.due")
GIVE_WAY = """
WITH over AS (
    UPDATE {t}messages SET queued = true
    WHERE id = ANY ($1::bigint[]) AND NOT queued AND holder IS NOT NULL AND visible <= $2
    RETURNING visible, id, bucket
)
INSERT INTO {t}queue (visible, id, bucket) SELECT visible, id, bucket FROM over
"""

PURGE = """
WITH found AS MATERIALIZED (
    SELECT ctid AS place, id FROM {t}queue ORDER BY visible, id LIMIT $1 FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM {t}queue WHERE ctid = ANY (ARRAY(SELECT place FROM found))
)
DELETE FROM {t}messages WHERE id IN (SELECT id FROM found) RETURNING id, order_key
"""

# Consumers

#: Begins behind the last message that a full lease took (`passed`). What was taken is gone, but
#: until PostgreSQL has vacuumed its index entries are there, and who begins at the first one walks
#: along all of them: of 200,000 messages the last quarter took 1.3 to 1.5 times as long to lease.
LEASE = """
WITH asked AS (
    SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::bigint[], $5::int[], $6::bigint[],
        $7::bytea[], $10::bigint[], $11::bigint[]) WITH ORDINALITY
        AS a (consumer, low, high, horizon, most, lease, mask, passed, passed_id, at)
), picked AS MATERIALIZED (
    SELECT q.place, q.id, greatest(q.visible, $8) + a.lease AS until, a.consumer, a.at
    FROM asked a CROSS JOIN LATERAL (
        SELECT ctid AS place, id, visible FROM {t}queue
        WHERE (visible, id) > (a.passed, a.passed_id) AND visible <= a.horizon
            AND bucket >= a.low AND bucket < a.high
            AND (a.mask IS NULL OR get_byte(a.mask, bucket - a.low) = 1)
        ORDER BY visible, id LIMIT a.most FOR UPDATE SKIP LOCKED
    ) q
), chosen AS MATERIALIZED (
    SELECT DISTINCT ON (id) * FROM picked ORDER BY id, at
), taken AS (
    DELETE FROM {t}queue WHERE ctid = ANY (ARRAY(SELECT place FROM chosen))
), noted AS (
    INSERT INTO {t}ends (look, until, made, size, ids, holder)
    SELECT least(until, $8 + $9), until, $8, count(*), array_agg(id), consumer
    FROM chosen GROUP BY until, consumer
)
UPDATE {t}messages m
SET visible = c.until, version = version + 1, attempts = attempts + 1, holder = c.consumer,
    queued = false
FROM chosen c WHERE m.id = c.id
RETURNING c.at, m.id, version, due, visible, attempts, priority, bucket, body, headers, key,
    order_key, backoff, most, ttl
"""
#: Looks at rows of `ends` whose time has come, the first first, some thousand messages at once.
#: What is over is queued again; what is gone is forgotten; what is held stays, and is looked at
#: when it is twice as old. Also the first time at which something is queued, or parked and may be
#: queued by its order key. It begins at two floors, $3 of the queue and $4 of `ends`, before which
#: nothing is (`_postgres_floors`).
SETTLE = """
WITH first AS MATERIALIZED (
    SELECT ctid AS place, look, size FROM {t}ends
    WHERE look <= $1 AND look >= $4 ORDER BY look LIMIT $2
), looked AS (
    DELETE FROM {t}ends WHERE ctid = ANY (ARRAY(
        SELECT place FROM (
            SELECT place, sum(size) OVER (ORDER BY look ROWS UNBOUNDED PRECEDING) - size AS before
            FROM first
        ) f WHERE before < $2
    )) RETURNING until, made, size, ids, holder
), over AS (
    UPDATE {t}messages m SET queued = true
    FROM (SELECT DISTINCT unnest(ids) AS id FROM looked WHERE until <= $1 ORDER BY id) l
    WHERE m.id = l.id AND NOT m.queued AND m.holder IS NOT NULL AND m.visible <= $1
    RETURNING m.visible, m.id, m.bucket
), queued AS (
    INSERT INTO {t}queue (visible, id, bucket) SELECT visible, id, bucket FROM over
), held AS (
    INSERT INTO {t}ends (look, until, made, size, ids, holder)
    SELECT least(l.until, 2 * $1 - l.made), l.until, l.made, count(*), array_agg(m.id), l.holder
    FROM looked l CROSS JOIN LATERAL unnest(l.ids) AS i (id) JOIN {t}messages m ON m.id = i.id
    WHERE l.until > $1 AND m.visible = l.until AND NOT m.queued AND m.holder IS NOT NULL
    GROUP BY l.until, l.made, l.holder RETURNING look
)
SELECT (SELECT coalesce(sum(size), 0) FROM looked), (SELECT count(*) FROM over),
    least((SELECT min(look) FROM {t}ends WHERE look > $1), (SELECT min(look) FROM held)),
    least((SELECT min(visible) FROM {t}queue WHERE visible >= $3),
        (SELECT min(visible) FROM {t}parked WHERE visible >= $3), (SELECT min(visible) FROM over))
"""
#: Rows of `ends` may be of leases that are gone, so these times may be too early.
NEXT = """
SELECT least((SELECT min(visible) FROM {t}queue WHERE visible > $1),
        (SELECT min(until) FROM {t}ends WHERE until > $1)),
    (SELECT min(until) FROM {t}ends WHERE until > $2 AND until <= $1)
"""
EXTEND = """
WITH extended AS (
    UPDATE {t}messages m SET visible = g.until
    FROM unnest($1::bigint[], $2::int[], $3::bigint[]) AS g (id, version, until)
    WHERE m.id = g.id AND m.version = g.version AND m.holder IS NOT NULL AND NOT m.queued
    RETURNING m.id, m.version, m.visible, m.holder
), noted AS (
    INSERT INTO {t}ends (look, until, made, size, ids, holder)
    SELECT visible, visible, visible, count(*), array_agg(id), holder
    FROM extended GROUP BY visible, holder
)
SELECT id, version FROM extended
"""
#: A message that dies is not queued; it is buried in the same transaction.
RELEASE = """
WITH released AS (
    UPDATE {t}messages m
    SET visible = g.due, version = m.version + 1, holder = NULL, attempts = attempts - g.uncounted,
        queued = g.uncounted = 1 OR attempts
            < CASE WHEN g.most > 0 AND m.most > 0 THEN m.most ELSE g.most END
    FROM unnest($1::bigint[], $2::int[], $3::bigint[], $4::int[], $5::int[])
        AS g (id, version, due, uncounted, most)
    WHERE m.id = g.id AND m.version = g.version AND m.holder IS NOT NULL AND NOT m.queued
    RETURNING m.id, g.version, m.queued, m.visible, m.bucket, m.order_key
), queued AS (
    INSERT INTO {t}queue (visible, id, bucket)
    SELECT visible, id, bucket FROM released r WHERE r.queued
)
SELECT id, version, queued, order_key FROM released
"""
#: Nothing else hangs on these messages. Of one version, as nearly all of a batch are: so the driver
#: has one array less to encode, which takes 0.2 microseconds for each element.
DELETE = """
WITH gone AS (
    DELETE FROM {t}messages m USING unnest($1::bigint[]) AS g (id)
    WHERE m.id = g.id AND m.version = $2 AND m.holder IS NOT NULL AND NOT m.queued
        AND m.order_key IS NULL AND m.hold = 0 RETURNING m.id
)
SELECT array_agg(id) FROM gone
"""
TAKE_BACK = """
WITH found AS MATERIALIZED (
    SELECT q.ctid AS place, q.id, q.visible, m.holder
    FROM unnest($1::bigint[], $2::int[]) AS g (id, version) JOIN {t}messages m ON m.id = g.id
    JOIN {t}queue q ON q.visible = m.visible AND q.id = m.id
    WHERE m.version = g.version AND m.holder IS NOT NULL AND m.queued
    FOR UPDATE OF q
), taken AS (
    DELETE FROM {t}queue WHERE ctid = ANY (ARRAY(SELECT place FROM found))
), noted AS (
    INSERT INTO {t}ends (look, until, made, size, ids, holder)
    SELECT visible, visible, visible, count(*), array_agg(id), holder
    FROM found GROUP BY visible, holder
)
UPDATE {t}messages m SET queued = false FROM found f WHERE m.id = f.id
"""
LEASE_STATES = """
SELECT id, version, holder IS NOT NULL, visible FROM {t}messages WHERE id = ANY ($1::bigint[])
"""
#: Leases, each once or more: a lease that was extended to where it ended already is there twice.
_LEASES = """
{t}ends e CROSS JOIN LATERAL unnest(e.ids) AS i (id)
    JOIN {t}messages m ON m.id = i.id AND m.visible = e.until AND NOT m.queued
        AND m.holder IS NOT NULL
"""
COUNT_HELD = f"""
SELECT count(*) FROM (SELECT DISTINCT m.id FROM {_LEASES} WHERE e.until > $1) l
"""  # noqa: S608
TAKE_UP = f"""
WITH held AS MATERIALIZED (
    SELECT DISTINCT e.until, m.id, m.version
    FROM {_LEASES} WHERE e.holder = $1 AND e.until > $2 AND m.holder = $1
        AND NOT EXISTS (
            SELECT FROM unnest($4::bigint[], $5::int[]) AS k (id, version)
            WHERE k.id = m.id AND k.version = m.version
        )
    ORDER BY e.until, m.id LIMIT $3
)
UPDATE {{t}}messages m SET version = m.version + 1
FROM held h WHERE m.id = h.id AND m.version = h.version AND NOT m.queued
RETURNING m.id, m.version, due, visible, attempts, priority, bucket, body, headers, key, order_key,
    backoff
"""  # noqa: S608

# Whoever looks

_SHOWN = """
SELECT id, version, holder, due, visible, attempts, priority, bucket, body, headers, key, order_key
FROM {t}messages
"""
LOOK_UP = _SHOWN + "WHERE id = ANY ($1::bigint[])"
LOOK_UP_KEYS = _SHOWN + "WHERE key = ANY ($1::text[])"
WALK = _SHOWN.replace("body,", "''::bytea,") + "WHERE id > $1 ORDER BY id LIMIT $2"
PEEK = f"""
WITH waiting AS (SELECT id FROM {{t}}queue ORDER BY visible, id LIMIT $1),
parked AS (SELECT id FROM {{t}}parked ORDER BY visible, id LIMIT $1),
leased AS (SELECT DISTINCT e.until, m.id FROM {_LEASES} ORDER BY e.until, m.id LIMIT $1)
{_SHOWN} JOIN (
    SELECT id FROM waiting UNION SELECT id FROM leased UNION SELECT id FROM parked
) f USING (id)
ORDER BY visible, id LIMIT $1
"""  # noqa: S608
COUNTS = f"""
WITH over AS MATERIALIZED (SELECT DISTINCT m.id, visible FROM {_LEASES} WHERE e.until <= $1)
SELECT (SELECT count(*) FROM {{t}}messages),
    (SELECT count(*) FROM {{t}}queue WHERE visible > $1)
        + (SELECT count(*) FROM {{t}}parked WHERE visible > $1),
    (SELECT count(*) FROM {{t}}queue WHERE visible <= $1) + (SELECT count(*) FROM over)
        + (SELECT count(*) FROM {{t}}parked WHERE visible <= $1),
    (SELECT count(*) FROM {{t}}dead),
    coalesce(least((SELECT min(visible) FROM {{t}}queue WHERE visible <= $1),
        (SELECT min(visible) FROM {{t}}parked WHERE visible <= $1),
        (SELECT min(visible) FROM over)), 0)
"""  # noqa: S608
HISTOGRAM = f"""
SELECT (SELECT count(*) FROM {{t}}queue WHERE visible >= low AND visible < high)
    + (SELECT count(*) FROM {{t}}parked WHERE visible >= low AND visible < high)
    + (SELECT count(*) FROM (
        SELECT DISTINCT m.id FROM {_LEASES} WHERE e.until >= low AND e.until < high
    ) l)
FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS s (low, high, at) ORDER BY at
"""  # noqa: S608

# Dead letters

_DEAD = """
SELECT id, version, reason, died, due, died, attempts, priority, bucket, body, headers, key,
    order_key
FROM {t}dead
"""
LOOK_UP_DEAD = _DEAD + "WHERE id = ANY ($1::bigint[])"
DEAD = _DEAD + "WHERE id > $1 ORDER BY id LIMIT $2"
WALK_DEAD = DEAD.replace("body,", "''::bytea,")
_RARE = "order_key, most, backoff, ttl, hold"
BURY = f"""
WITH gone AS (
    DELETE FROM {{t}}messages m USING unnest($1::bigint[], $2::int[], $3::text[])
        AS g (id, version, reason)
    WHERE m.id = g.id AND m.version = g.version AND NOT m.queued
    RETURNING m.id, m.version, bucket, attempts, due, priority, key, reason, headers, body, {_RARE}
)
INSERT INTO {{t}}dead
    (id, version, bucket, attempts, due, priority, key, reason, died, headers, body, {_RARE})
SELECT id, version, bucket, attempts - $5, due, priority, key, reason, $4, headers, body, {_RARE}
FROM gone RETURNING order_key
"""  # noqa: S608
DEAD_IDS = "SELECT id FROM {t}dead WHERE id = ANY ($1::bigint[])"
REVIVE = f"""
WITH revived AS (
    INSERT INTO {{t}}messages
        (id, visible, due, version, bucket, priority, key, headers, body, queued, {_RARE})
    SELECT id, $2, $2, version + 1, bucket, priority, key, headers, body, order_key IS NULL, {_RARE}
    FROM {{t}}dead WHERE id = ANY ($1::bigint[]) ORDER BY array_position($1::bigint[], id)
    ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING
    RETURNING visible, id, bucket, queued
), queued AS (
    INSERT INTO {{t}}queue (visible, id, bucket)
    SELECT visible, id, bucket FROM revived WHERE queued
), parked AS (
    INSERT INTO {{t}}parked (visible, id) SELECT visible, id FROM revived WHERE NOT queued
)
DELETE FROM {{t}}dead WHERE id IN (SELECT id FROM revived) RETURNING id, order_key
"""  # noqa: S608
DROP_DEAD = "DELETE FROM {t}dead WHERE id = ANY ($1::bigint[]) RETURNING id"
TRIM_DEAD = """
DELETE FROM {t}dead WHERE id IN (SELECT id FROM {t}dead ORDER BY died DESC, id DESC OFFSET $1)
RETURNING id
"""

# Schedules, batches

PUT_SCHEDULE = f"""
INSERT INTO {{t}}schedules AS held
    (name, body, next, headers, cron, zone, every, start, priority)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
{PUT_AGAIN}"""  # noqa: S608
DROP_SCHEDULE = "DELETE FROM {t}schedules WHERE name = $1 RETURNING 1"
SCHEDULES = """
SELECT name, body, next, headers, cron, zone, every, start, priority
FROM {t}schedules WHERE next < $1 ORDER BY name COLLATE "C"
"""
ADVANCE_SCHEDULE = "UPDATE {t}schedules SET next = $1 WHERE name = $2 AND next = $3 RETURNING 1"
TRIM_BATCHES = "DELETE FROM {t}batches WHERE at < $1 RETURNING 1"
TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
EXISTING = """
SELECT substring(tablename FROM '^t([0-9]+)_messages$')::bigint FROM pg_tables
WHERE schemaname = $1 AND tablename ~ '^t[0-9]+_messages$'
"""
#: One row for a table that is there, with what it says about itself.
FORMAT_OF = """
SELECT coalesce(obj_description(c, 'pg_class'), 'no format') FROM to_regclass($1) AS c
WHERE c IS NOT NULL
"""
#: A lock that nobody else asks for: the first number is ours ("DVTT").
ALONE = "SELECT pg_advisory_xact_lock(1146508372, $1::int)"
