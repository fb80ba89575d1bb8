"""The statements of the SQLite store, and its tables.

They are composed of constants only (hence S608 is off where a linter cannot see that).
"""

import sqlite3
from typing import Final

from dovetail.timeline.stores.outcomes import PUT_AGAIN

#: "DVTT": tells our file from any other SQLite database.
APPLICATION_ID: Final = 0x44565454
#: Raised when the tables change.
FORMAT: Final = 3

#: What a message has beside its due time: an order key with whether it is behind another one, its
#: own limits, and how long its key stays taken. Added to files of format 2, where none has any.
_PARKED = "parked INTEGER NOT NULL DEFAULT 0"
_RARE = (
    "order_key TEXT",
    "most INTEGER NOT NULL DEFAULT 0",
    "backoff INTEGER NOT NULL DEFAULT 0",
    "ttl INTEGER NOT NULL DEFAULT 0",
    "hold INTEGER NOT NULL DEFAULT 0",
)
#: A message that is behind another one of its order key is in none of the indexes that a lease
#: reads. At most one of a key is not. Every index ends with the id of the row, so that is named
#: only where something else is behind it: messages of many keys touch a page of `messages_order`
#: each, and smaller entries are fewer pages.
_INDEXES = """
CREATE INDEX messages_visible ON messages (visible, id, bucket) WHERE parked = 0;
CREATE INDEX messages_parked ON messages (visible) WHERE parked = 1;
CREATE INDEX messages_order ON messages (order_key, due) WHERE order_key IS NOT NULL;
CREATE UNIQUE INDEX messages_head ON messages (order_key)
    WHERE order_key IS NOT NULL AND parked = 0;
CREATE TABLE taken (key TEXT PRIMARY KEY, id INTEGER NOT NULL, until INTEGER NOT NULL)
    WITHOUT ROWID;
CREATE TABLE pace (one INTEGER PRIMARY KEY CHECK (one = 1), left REAL, at INTEGER NOT NULL);
INSERT INTO pace VALUES (1, NULL, 0);
"""

#: The index on time has the id before the bucket: what was stored together is leased and deleted
#: together, and lies on the same pages. With the bucket first, a backlog that is due at one time is
#: picked from all over the file, and each message costs twice as much. The bucket is there so that
#: others' messages are passed over without a look at their rows.
SCHEMA: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE messages (
    id       INTEGER PRIMARY KEY,
    visible  INTEGER NOT NULL,
    bucket   INTEGER NOT NULL,
    version  INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    due      INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    key      TEXT,
    holder   TEXT,
    {_PARKED},
    {", ".join(_RARE)}
);
{_INDEXES}
CREATE UNIQUE INDEX messages_key ON messages (key) WHERE key IS NOT NULL;
CREATE INDEX messages_holder ON messages (holder, visible) WHERE holder IS NOT NULL;
CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL, headers BLOB NOT NULL);
CREATE TABLE dead (
    id       INTEGER PRIMARY KEY,
    version  INTEGER NOT NULL,
    bucket   INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    due      INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    key      TEXT,
    reason   TEXT NOT NULL,
    died     INTEGER NOT NULL,
    {", ".join(_RARE)}
);
CREATE TABLE schedules (
    name     TEXT PRIMARY KEY,
    body     BLOB NOT NULL,
    next     INTEGER NOT NULL,
    headers  BLOB NOT NULL,
    cron     TEXT NOT NULL,
    zone     TEXT NOT NULL,
    every    INTEGER NOT NULL,
    start    INTEGER NOT NULL,
    priority INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX schedules_next ON schedules (next);
CREATE TABLE batches (
    producer INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    outcomes BLOB NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (producer, sequence)
) WITHOUT ROWID;
CREATE TABLE ids (next INTEGER NOT NULL);
INSERT INTO ids VALUES (1);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""  # noqa: S608
_ADDED = [
    f"ALTER TABLE {table} ADD COLUMN {column};"
    for table, columns in (("messages", (_PARKED, *_RARE)), ("dead", _RARE))
    for column in columns
]
_UPGRADE: Final = f"""
BEGIN IMMEDIATE;
DROP INDEX messages_visible;
{"".join(_ADDED)}
{_INDEXES}
CREATE INDEX schedules_next ON schedules (next);
PRAGMA user_version = {FORMAT};
COMMIT;
"""

# Producers

#: Ids are taken from a counter, so that none is ever given twice: an old handle of a deleted
#: message must not fit a new one.
TAKE_IDS = "UPDATE ids SET next = next + ? RETURNING next - ?1"
_MESSAGES = (
    "INSERT INTO messages (id, visible, bucket, version, attempts, due, priority, key) VALUES"
)
_MESSAGE = "(?, ?, ?, 0, 0, ?, ?, ?)"
_BODIES = "INSERT INTO bodies (id, body, headers) VALUES"
_BODY = "(?, ?, ?)"
#: Rows in one statement: each statement is a turn with Python's lock, which is half of its price.
#: 100 rows: 139,000 to 162,000 messages a second by 1,000; one by one 92,000 to 118,000.
ROWS: Final = 100
INSERT = f"{_MESSAGES} {_MESSAGE}"
INSERT_ROWS = f"{_MESSAGES} {', '.join([_MESSAGE] * ROWS)}"
_RARE_MESSAGES = (
    "INSERT INTO messages (id, visible, bucket, version, attempts, due, priority, key, order_key, "
    "parked, most, backoff, ttl, hold) VALUES"
)
#: Without a key: nothing can be refused.
INSERT_KEYLESS = f"{_RARE_MESSAGES} (?, ?, ?, 0, 0, ?, ?, NULL, ?, ?, ?, ?, ?, 0)"


def _ordered(rows: int) -> str:
    """Messages that have an order key and nothing else of their own, with ids in a row: what is
    bound costs more than what is computed, so each has five values, and all together the first id.
    """
    values = (
        f"(?1 + {at}, ?{b}, ?{b + 1}, 0, 0, ?{b}, ?{b + 2}, NULL, ?{b + 3}, ?{b + 4}, 0, 0, 0, 0)"
        for at, b in enumerate(range(2, 2 + 5 * rows, 5))
    )
    return f"{_RARE_MESSAGES} {', '.join(values)}"


INSERT_ORDERED = _ordered(1)
INSERT_ORDERED_ROWS = _ordered(ROWS)
#: A message with an order key is parked until it is known to be the first.
INSERT_RARE = f"""
{_RARE_MESSAGES}
    (?1, ?2, ?3, 0, 0, ?4, ?5, ?6, ?7, ?7 IS NOT NULL, ?8, ?9, ?10, ?11) ON CONFLICT DO NOTHING
"""
INSERT_BODY = f"{_BODIES} {_BODY}"
INSERT_BODY_ROWS = f"{_BODIES} {', '.join([_BODY] * ROWS)}"
BY_KEY = "SELECT id FROM messages WHERE key = ?"
ANY_TAKEN = "SELECT EXISTS (SELECT 1 FROM taken)"
TAKEN_BY = "SELECT id FROM taken WHERE key = ? AND until > ?"
TAKE_KEY = "INSERT OR REPLACE INTO taken (key, id, until) VALUES (?, ?, ?)"
TRIM_TAKEN = "DELETE FROM taken WHERE until < ?"
#: One that somebody holds stays before all others of its order key, whatever their times.
PARK = """
UPDATE messages SET parked = 1
WHERE order_key IN (SELECT value FROM json_each(?)) AND parked = 0 AND holder IS NULL
    AND id <> (SELECT id FROM messages f WHERE f.order_key = messages.order_key
        ORDER BY due, id LIMIT 1)
"""
UNPARK = """
UPDATE messages SET parked = 0 WHERE id IN (
    SELECT (SELECT id FROM messages f WHERE f.order_key = k.value ORDER BY due, id LIMIT 1)
    FROM json_each(?) k
    WHERE NOT EXISTS (SELECT 1 FROM messages h WHERE h.order_key = k.value AND h.parked = 0)
)
"""
#: Of order keys, those of which no message is before all that are due from then on: with the due
#: time of the one that is not parked, if there is one. One that is held is before all others.
UNLED = """
SELECT k.value, h.due FROM json_each(?1) k
LEFT JOIN messages h ON h.order_key = k.value AND h.parked = 0
WHERE h.id IS NULL OR (h.due > ?2 AND h.holder IS NULL)
"""
PARK_HEADS = """
UPDATE messages SET parked = 1 WHERE order_key IN (SELECT value FROM json_each(?)) AND parked = 0
"""
HAS_ORDER = """
SELECT EXISTS (SELECT 1 FROM messages WHERE order_key IS NOT NULL)
    OR EXISTS (SELECT 1 FROM dead WHERE order_key IS NOT NULL)
"""
BATCH_KNOWN = "SELECT outcomes FROM batches WHERE producer = ? AND sequence = ?"
BATCH_NAME = "INSERT INTO batches (producer, sequence, outcomes, at) VALUES (?, ?, ?, ?)"
BATCH_FORGET = "DELETE FROM batches WHERE producer = ? AND sequence <= ?"
CANCEL = """
DELETE FROM messages
WHERE id IN (SELECT value FROM json_each(?)) AND (holder IS NULL OR visible <= ?)
RETURNING id, order_key
"""
MOVE = """
UPDATE messages SET visible = ?, due = ?, version = version + 1, holder = NULL
WHERE id = ? AND (holder IS NULL OR visible <= ?)
RETURNING id, order_key
"""
EARLIER = """
UPDATE messages SET visible = ?1, due = ?1, version = version + 1, holder = NULL
WHERE id = ?2 AND (holder IS NULL OR visible <= ?3) AND due > ?1
RETURNING order_key
"""

PURGE = """
DELETE FROM messages WHERE id IN (
    SELECT id FROM (
        SELECT visible, id FROM (SELECT visible, id FROM messages INDEXED BY messages_visible
            WHERE parked = 0 AND (holder IS NULL OR visible <= ?1) ORDER BY visible, id LIMIT ?2)
        UNION ALL
        SELECT visible, id FROM (SELECT visible, id FROM messages INDEXED BY messages_parked
            WHERE parked = 1 ORDER BY visible, id LIMIT ?2)
    ) ORDER BY visible, id LIMIT ?2
) RETURNING id, order_key
"""

# Consumers

LEASE = """
UPDATE messages
SET visible = max(visible, ?) + ?, version = version + 1, attempts = attempts + 1, holder = ?
WHERE id IN (
    SELECT id FROM messages INDEXED BY messages_visible
    WHERE parked = 0 AND visible <= ? AND (visible <= ? OR holder IS NULL)
        AND bucket >= ? AND bucket < ?
        AND (? IS NULL OR substr(?, bucket - ? + 1, 1) = x'01')
    ORDER BY visible, id LIMIT ?
)
RETURNING id, version, due, visible, attempts, priority, bucket, key, order_key, backoff, most, ttl
"""
NEXT = """
SELECT (SELECT min(visible) FROM messages WHERE parked = 0 AND visible > ?1),
    (SELECT min(visible) FROM messages
        WHERE parked = 0 AND visible > ?2 AND visible <= ?1 AND holder IS NOT NULL)
"""
BODIES = "SELECT id, body, headers FROM bodies WHERE id IN (SELECT value FROM json_each(?))"
UNCOUNT = """
UPDATE messages SET attempts = attempts - 1 WHERE id IN (SELECT value FROM json_each(?))
"""
EXTEND = """
UPDATE messages SET visible = ? WHERE id = ? AND version = ? AND holder IS NOT NULL
"""
RELEASE = """
UPDATE messages
SET visible = ?, version = version + 1, holder = NULL, attempts = attempts - ?
WHERE id = ? AND version = ? AND holder IS NOT NULL
RETURNING id, attempts, most, order_key
"""
DELETE = """
DELETE FROM messages
WHERE id IN (SELECT value FROM json_each(?)) AND version = ? AND holder IS NOT NULL
RETURNING id, order_key, hold, key
"""
DELETE_ROWS = """
DELETE FROM messages WHERE id IN (SELECT value FROM json_each(?)) RETURNING id, order_key
"""
DELETE_BODIES = "DELETE FROM bodies WHERE id IN (SELECT value FROM json_each(?))"
VERSIONS = "SELECT id, version FROM messages WHERE id IN (SELECT value FROM json_each(?))"
HELD_BY = """
SELECT id, version, due, visible, attempts, priority, bucket, body, headers, key, order_key,
    backoff
FROM messages JOIN bodies USING (id)
WHERE holder = ? AND visible > ? ORDER BY visible, id
"""
TAKE_UP = "UPDATE messages SET version = version + 1 WHERE id IN (SELECT value FROM json_each(?))"

# Whoever looks

_SHOWN = """
SELECT id, version, holder, due, visible, attempts, priority, bucket, body, headers, key, order_key
FROM messages JOIN bodies USING (id)
"""
LOOK_UP = _SHOWN + "WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
LOOK_UP_KEYS = _SHOWN + "WHERE key IN (SELECT value FROM json_each(?))"  # noqa: S608
PEEK = f"""
{_SHOWN} WHERE id IN (
    SELECT id FROM (SELECT id FROM messages WHERE parked = 0 ORDER BY visible, id LIMIT ?1)
    UNION ALL SELECT id FROM (SELECT id FROM messages WHERE parked = 1
        ORDER BY visible, id LIMIT ?1)
) ORDER BY visible, id LIMIT ?1
"""  # noqa: S608
WALK = _SHOWN.replace("body,", "x'',") + "WHERE id > ? ORDER BY id LIMIT ?"
COUNT = "SELECT count(*) FROM messages"
COUNT_DUE = """
SELECT sum(due), min(first) FROM (
    SELECT count(*) AS due, min(visible) AS first FROM messages WHERE parked = 0 AND visible <= ?1
    UNION ALL SELECT count(*), min(visible) FROM messages WHERE parked = 1 AND visible <= ?1
)
"""
COUNT_LEASED = "SELECT count(*) FROM messages WHERE holder IS NOT NULL AND visible > ?"
COUNT_DEAD = "SELECT count(*) FROM dead"
COUNT_SPAN = """
SELECT (SELECT count(*) FROM messages WHERE parked = 0 AND visible >= ?1 AND visible < ?2)
    + (SELECT count(*) FROM messages WHERE parked = 1 AND visible >= ?1 AND visible < ?2)
"""

# Dead letters

_DEAD = """
SELECT id, version, reason, died, due, died, attempts, priority, bucket, body, headers, key,
    order_key
FROM dead JOIN bodies USING (id)
"""
LOOK_UP_DEAD = _DEAD + "WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
DEAD = _DEAD + "WHERE id > ? ORDER BY id LIMIT ?"
WALK_DEAD = DEAD.replace("body,", "x'',")
_KEPT = "order_key, most, backoff, ttl, hold"
BURY = f"""
INSERT INTO dead (id, version, bucket, attempts, due, priority, key, reason, died, {_KEPT})
SELECT id, version, bucket, attempts, due, priority, key, ?, ?, {_KEPT} FROM messages WHERE id = ?
"""  # noqa: S608
DEAD_KEY = "SELECT key, order_key FROM dead WHERE id = ?"
REVIVE = f"""
INSERT INTO messages (id, visible, bucket, version, attempts, due, priority, key, parked, {_KEPT})
SELECT id, ?, bucket, version + 1, 0, ?, priority, key, order_key IS NOT NULL, {_KEPT}
FROM dead WHERE id = ?
"""  # noqa: S608
DELETE_DEAD = "DELETE FROM dead WHERE id = ?"
DROP_DEAD = "DELETE FROM dead WHERE id IN (SELECT value FROM json_each(?)) RETURNING id"
TRIM_DEAD = """
DELETE FROM dead WHERE id IN (SELECT id FROM dead ORDER BY died DESC, id DESC LIMIT -1 OFFSET ?)
RETURNING id
"""

# Schedules, batches

PUT_SCHEDULE = f"""
INSERT INTO schedules AS held (name, body, next, headers, cron, zone, every, start, priority)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
{PUT_AGAIN}"""  # noqa: S608
DROP_SCHEDULE = "DELETE FROM schedules WHERE name = ?"
SCHEDULES = """
SELECT name, body, next, headers, cron, zone, every, start, priority FROM schedules
WHERE next < ? ORDER BY name
"""
ADVANCE_SCHEDULE = "UPDATE schedules SET next = ? WHERE name = ? AND next = ?"
TRIM_BATCHES = "DELETE FROM batches WHERE at < ?"

# The pace of all consumers together

PACE = "SELECT left, at FROM pace"
KEEP_PACE = "UPDATE pace SET left = ?, at = ?"


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables in a new file; raises `sqlite3.DatabaseError` if the file is another's."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) == (APPLICATION_ID, FORMAT):
        return
    if (application, version) == (APPLICATION_ID, FORMAT - 1):
        connection.executescript(_UPGRADE)
        return
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables:
        raise sqlite3.DatabaseError(
            f"it is not a timeline of format {FORMAT}, but {application:#x} of format {version}"
        )
    try:
        connection.executescript(SCHEMA)
    except sqlite3.OperationalError:
        # Another connection of this process made them since we looked: one creates the timeline,
        # one has just learnt of it.
        if connection.in_transaction:
            connection.rollback()
        if connection.execute("PRAGMA user_version").fetchone() != (FORMAT,):
            raise
