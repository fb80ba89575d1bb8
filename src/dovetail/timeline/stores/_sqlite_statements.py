"""The statements of the SQLite store, and the tables they are about.

They are put together of constants only (hence S608 is off where a linter cannot see that).
"""

import sqlite3
from typing import Final

from dovetail.timeline.stores.outcomes import PUT_AGAIN

#: "DVTT": tells our file from any other SQLite database.
APPLICATION_ID: Final = 0x44565454
#: Raised when the tables change.
FORMAT: Final = 2

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
    holder   TEXT
);
CREATE INDEX messages_visible ON messages (visible, id, bucket);
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
    died     INTEGER NOT NULL
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
INSERT_KEYED = f"{INSERT} ON CONFLICT DO NOTHING"
INSERT_BODY = f"{_BODIES} {_BODY}"
INSERT_BODY_ROWS = f"{_BODIES} {', '.join([_BODY] * ROWS)}"
BY_KEY = "SELECT id FROM messages WHERE key = ?"
BATCH_KNOWN = "SELECT outcomes FROM batches WHERE producer = ? AND sequence = ?"
BATCH_NAME = "INSERT INTO batches (producer, sequence, outcomes, at) VALUES (?, ?, ?, ?)"
BATCH_FORGET = "DELETE FROM batches WHERE producer = ? AND sequence <= ?"
CANCEL = """
DELETE FROM messages
WHERE id IN (SELECT value FROM json_each(?)) AND (holder IS NULL OR visible <= ?)
RETURNING id
"""
MOVE = """
UPDATE messages SET visible = ?, due = ?, version = version + 1, holder = NULL
WHERE id = ? AND (holder IS NULL OR visible <= ?)
RETURNING id
"""

PURGE = """
DELETE FROM messages WHERE id IN (
    SELECT id FROM messages INDEXED BY messages_visible WHERE holder IS NULL OR visible <= ?
    ORDER BY visible, id LIMIT ?
) RETURNING id
"""

# Consumers

LEASE = """
UPDATE messages
SET visible = max(visible, ?) + ?, version = version + 1, attempts = attempts + 1, holder = ?
WHERE id IN (
    SELECT id FROM messages INDEXED BY messages_visible
    WHERE visible <= ? AND (visible <= ? OR holder IS NULL) AND bucket >= ? AND bucket < ?
        AND (? IS NULL OR substr(?, bucket - ? + 1, 1) = x'01')
    ORDER BY visible, id LIMIT ?
)
RETURNING id, version, due, visible, attempts, priority, bucket, key
"""
NEXT = """
SELECT (SELECT min(visible) FROM messages WHERE visible > ?1),
    (SELECT min(visible) FROM messages
        WHERE visible > ?2 AND visible <= ?1 AND holder IS NOT NULL)
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
RETURNING id, attempts
"""
DELETE = """
DELETE FROM messages
WHERE id IN (SELECT value FROM json_each(?)) AND version = ? AND holder IS NOT NULL
RETURNING id
"""
DELETE_ROWS = "DELETE FROM messages WHERE id IN (SELECT value FROM json_each(?))"
DELETE_BODIES = "DELETE FROM bodies WHERE id IN (SELECT value FROM json_each(?))"
VERSIONS = "SELECT id, version FROM messages WHERE id IN (SELECT value FROM json_each(?))"
HELD_BY = """
SELECT id, version, due, visible, attempts, priority, bucket, body, headers, key
FROM messages JOIN bodies USING (id)
WHERE holder = ? AND visible > ? ORDER BY visible, id
"""
TAKE_UP = "UPDATE messages SET version = version + 1 WHERE id IN (SELECT value FROM json_each(?))"

# Whoever looks

_SHOWN = """
SELECT id, version, holder, due, visible, attempts, priority, bucket, body, headers, key
FROM messages JOIN bodies USING (id)
"""
LOOK_UP = _SHOWN + "WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
LOOK_UP_KEYS = _SHOWN + "WHERE key IN (SELECT value FROM json_each(?))"  # noqa: S608
PEEK = _SHOWN + "ORDER BY visible, id LIMIT ?"
COUNT = "SELECT count(*) FROM messages"
COUNT_DUE = "SELECT count(*), min(visible) FROM messages WHERE visible <= ?"
COUNT_LEASED = "SELECT count(*) FROM messages WHERE holder IS NOT NULL AND visible > ?"
COUNT_DEAD = "SELECT count(*) FROM dead"
COUNT_SPAN = "SELECT count(*) FROM messages WHERE visible >= ? AND visible < ?"

# Dead letters

_DEAD = """
SELECT id, version, reason, died, due, died, attempts, priority, bucket, body, headers, key
FROM dead JOIN bodies USING (id)
"""
LOOK_UP_DEAD = _DEAD + "WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
DEAD = _DEAD + "WHERE id > ? ORDER BY id LIMIT ?"
BURY = """
INSERT INTO dead (id, version, bucket, attempts, due, priority, key, reason, died)
SELECT id, version, bucket, attempts, due, priority, key, ?, ? FROM messages WHERE id = ?
"""
DEAD_KEY = "SELECT key FROM dead WHERE id = ?"
REVIVE = """
INSERT INTO messages (id, visible, bucket, version, attempts, due, priority, key)
SELECT id, ?, bucket, version + 1, 0, ?, priority, key FROM dead WHERE id = ?
"""
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
SELECT name, body, next, headers, cron, zone, every, start, priority FROM schedules ORDER BY name
"""
ADVANCE_SCHEDULE = "UPDATE schedules SET next = ? WHERE name = ? AND next = ?"
TRIM_BATCHES = "DELETE FROM batches WHERE at < ?"


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables in a new file; raises `sqlite3.DatabaseError` if the file is another's."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) == (APPLICATION_ID, FORMAT):
        return
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables:
        raise sqlite3.DatabaseError(
            f"it is not a timeline of format {FORMAT}, but {application:#x} of format {version}"
        )
    connection.executescript(SCHEMA)
