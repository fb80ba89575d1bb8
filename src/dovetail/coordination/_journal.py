"""The file of an embedded coordinator: one SQLite database, held by one process.

Promise: when `commit` returns, its changes are on disk (WAL, `synchronous=FULL`), whole or not at
all.
Survives: a crash at any point, even while the file is created (it gets its name when complete).
Detects: another process on the file (lock), a broken structure (`quick_check`), a changed row
(checksum), a write-ahead log without its database.

What a failed commit means:

    error                          stored?    then
    DiskFull                       no         the file can be written again when there is space
    CoordinationDown               no         the journal must be closed
    Uncertain                      unknown    the journal must be closed; a failed sync is final

Not here: what the rows mean. All methods run on the thread that opened the journal.
"""

import fcntl
import os
import sqlite3
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

import crc32c

from dovetail.coordination.protocol import KeyValue, LeaseId, Revision
from dovetail.durable_files import sync_folder
from dovetail.errors import (
    CoordinationDown,
    Damaged,
    DiskFull,
    InvalidSetting,
    Unavailable,
    Uncertain,
)

#: "DVTC": tells our file from any other SQLite database.
APPLICATION_ID = 0x44565443
#: Raised when the tables change.
FORMAT = 1
#: SQLite's own default, named because the limit of the file is counted in pages.
PAGE_BYTES = 4096

_SCHEMA = f"""
PRAGMA page_size = {PAGE_BYTES};
PRAGMA synchronous = FULL;
BEGIN;
CREATE TABLE keys (
    key      BLOB PRIMARY KEY,
    value    BLOB NOT NULL,
    revision INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    lease    INTEGER,
    checksum INTEGER NOT NULL
);
CREATE TABLE head (
    revision INTEGER NOT NULL,
    openings INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""

_UPSERT = """
INSERT INTO keys (key, value, revision, created, lease, checksum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision,
    created = excluded.created, lease = excluded.lease, checksum = excluded.checksum
"""

_REPAIR = "restore it from a copy, or remove it with its -wal file to begin empty"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the file held when it was opened, with the former process's leases ended."""

    items: tuple[KeyValue, ...]
    revision: Revision
    openings: int


class Journal:
    """The open file."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: TextIOWrapper, *, openings: int
    ) -> None:
        self._path = path
        self._connection = connection
        self._lock = lock
        self._openings = openings

    @classmethod
    def open(cls, path: Path, *, file_bytes_max: int) -> tuple["Journal", Loaded]:
        """Takes the file for this process, checks it, ends the former leases.

        Raises `CoordinationDown` if another process has it, `Damaged` if it is not as it was
        written, `InvalidSetting` if the path cannot hold one.
        """
        if not path.parent.is_dir():
            raise InvalidSetting(f"coordination file {path}: its directory does not exist")
        lock = _take_lock(path)
        connection = None
        try:
            if not path.exists():
                _create(path)
            connection = sqlite3.connect(path, isolation_level=None)
            loaded = _prepare(path, connection, file_bytes_max)
        except BaseException as error:
            if connection is not None:
                connection.close()
            lock.close()
            if isinstance(error, sqlite3.Error):
                _raise_unopened(path, error)
            raise
        return cls(path, connection, lock, openings=loaded.openings), loaded

    def commit(self, rows: Mapping[str, KeyValue | None], *, revision: Revision) -> None:
        """Writes the rows (None: deleted) and the revision, and syncs. Raises as said above."""
        try:
            self._write(rows, revision)
        except sqlite3.Error as error:
            self._fail(error, "was not stored", CoordinationDown)
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error, "may or may not be stored", Uncertain)

    def close(self) -> None:
        """Releases the file."""
        try:
            self._connection.close()
        finally:
            self._lock.close()

    def _write(self, rows: Mapping[str, KeyValue | None], revision: Revision) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(
            "DELETE FROM keys WHERE key = ?",
            [(key.encode(),) for key, item in rows.items() if item is None],
        )
        self._connection.executemany(
            _UPSERT, [_row(item) for item in rows.values() if item is not None]
        )
        _write_head(self._connection, revision=revision, openings=self._openings)

    def _fail(
        self, error: sqlite3.Error, what: str, kind: type[CoordinationDown | Uncertain]
    ) -> NoReturn:
        """Rolls back. A full disk leaves no commit mark behind, so there nothing is stored."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            raise kind(f"coordination file {self._path}: {error}; a change {what}") from second
        if _code(error) == sqlite3.SQLITE_FULL:
            raise DiskFull(
                f"coordination file {self._path}: {error}; a change was not stored; make room on "
                "the disk, or raise file_bytes_max if the file has reached it"
            ) from error
        raise kind(f"coordination file {self._path}: {error}; a change {what}") from error


def _take_lock(path: Path) -> TextIOWrapper:
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = lock_path.open("a+", encoding="ascii")
    except OSError as error:
        raise InvalidSetting(
            f"the data folder {path.parent.absolute()} is not writable for user id "
            f"{os.geteuid()}: {error}"
        ) from error

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        who = f"process {holder}" if holder else "another process"
        # Not `CoordinationDown`: a node waits until that ends, and this does not end by itself.
        raise Unavailable(
            f"the data folder {path.parent.absolute()} is in use by {who}: stop that node, or "
            "give this one a folder of its own with --data-dir"
        ) from error

    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _create(path: Path) -> None:
    """Makes an empty file under another name, then gives it its own, so it is there whole."""
    wal_path = path.with_name(path.name + "-wal")
    if wal_path.exists():
        raise Damaged(
            f"coordination file {path} is gone, but its write-ahead log {wal_path.name} is "
            f"there: {_REPAIR}"
        )

    draft_path = path.with_name(path.name + ".new")
    draft_path.unlink(missing_ok=True)
    draft_path.touch(mode=0o600)  # It holds the keys that logins are checked with.
    connection = sqlite3.connect(draft_path, isolation_level=None)
    try:
        connection.executescript(_SCHEMA)
        # The revision begins at 1, as etcd's does, so that it is never that of an absent key.
        connection.execute("INSERT INTO head VALUES (1, 0, ?)", (_head_checksum(1, 0),))
    finally:
        connection.close()

    draft_path.rename(path)
    sync_folder(path.parent)


def _prepare(path: Path, connection: sqlite3.Connection, file_bytes_max: int) -> Loaded:
    # Exclusive: no other tool changes below us what we also hold in memory.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    if _number(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise Damaged(f"coordination file {path} is empty or another program's: {_REPAIR}")
    found_format = _number(connection, "PRAGMA user_version")
    if found_format != FORMAT:
        raise InvalidSetting(
            f"coordination file {path} has format {found_format}, but this version reads {FORMAT}"
        )
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise InvalidSetting(f"coordination file {path}: no write-ahead log here, only {mode!r}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA max_page_count = {max(1, file_bytes_max // PAGE_BYTES)}")
    (finding,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if finding != "ok":
        raise Damaged(f"coordination file {path}: {finding}; {_REPAIR}")
    return _load(path, connection)


def _load(path: Path, connection: sqlite3.Connection) -> Loaded:
    """Reads all, ends the former leases in one revision, and counts this opening."""
    heads = connection.execute("SELECT * FROM head").fetchall()
    if len(heads) != 1 or _head_checksum(*heads[0][:2]) != heads[0][2]:
        raise Damaged(f"coordination file {path}: its head fails its checksum; {_REPAIR}")
    revision, openings, _ = heads[0]
    rows = connection.execute("SELECT * FROM keys").fetchall()
    items = [_read(path, row, revision) for row in rows]
    kept = tuple(item for item in items if item.lease is None)
    if len(kept) < len(items):
        revision += 1
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM keys WHERE lease IS NOT NULL")
    _write_head(connection, revision=revision, openings=openings + 1)
    connection.execute("COMMIT")
    return Loaded(items=kept, revision=Revision(revision), openings=openings + 1)


def _write_head(connection: sqlite3.Connection, *, revision: int, openings: int) -> None:
    connection.execute(
        "UPDATE head SET revision = ?, openings = ?, checksum = ?",
        (revision, openings, _head_checksum(revision, openings)),
    )


def _head_checksum(revision: int, openings: int) -> int:
    return int(crc32c.crc32c(struct.pack(">QQ", revision, openings)))


def _row(item: KeyValue) -> tuple[bytes, bytes, int, int, int | None, int]:
    key = item.key.encode()
    checksum = _checksum(key, item.value, item.revision, item.created, item.lease)
    return key, item.value, item.revision, item.created, item.lease, checksum


def _read(
    path: Path, row: tuple[bytes, bytes, int, int, int | None, int], revision: int
) -> KeyValue:
    key, value, changed, created, lease, checksum = row
    if _checksum(key, value, changed, created, lease) != checksum:
        raise Damaged(f"coordination file {path}: key {key!r} fails its checksum; {_REPAIR}")
    if not 0 < created <= changed <= revision:
        raise Damaged(
            f"coordination file {path}: key {key!r} has revision {changed}, created "
            f"{created}, but the file is at {revision}; {_REPAIR}"
        )
    return KeyValue(
        key=key.decode(),
        value=value,
        revision=Revision(changed),
        created=Revision(created),
        lease=None if lease is None else LeaseId(lease),
    )


def _checksum(key: bytes, value: bytes, revision: int, created: int, lease: int | None) -> int:
    head = struct.pack(">IQQQ", len(key), revision, created, lease or 0)
    return int(crc32c.crc32c(value, crc32c.crc32c(key, crc32c.crc32c(head))))


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _code(error: sqlite3.Error) -> int:
    """The primary result code; the extended ones keep it in their low byte."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _raise_unopened(path: Path, error: sqlite3.Error) -> NoReturn:
    code = _code(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        raise Damaged(f"coordination file {path}: {error}; {_REPAIR}") from error
    if code == sqlite3.SQLITE_FULL:
        raise DiskFull(f"coordination file {path}: {error}; make room on the disk") from error
    raise CoordinationDown(f"cannot open coordination file {path}: {error}") from error
