"""One SQLite file and the thread that writes it: many commands, one transaction, one sync.

Commands that wait during a commit go into the next one together (group commit). If one of them is
refused, all are rolled back and done again, each in a savepoint of its own: a command that fails
alone is rolled back alone, and the others are committed. So a command may run twice, and must
tolerate that.

What an error means to those who wait:

    DiskFull      nothing of the group is stored; later commands may succeed
    Unavailable   the same: another process, such as a shell, holds the lock of the file
    Uncertain     the commit failed in the middle; the file takes no more commands (`StorageOut`)
    the error of  only this command is undone
    one command

Reads that may be long have a second thread and connection, so that no lease waits for them.

A disk that fills up keeps a reserve for leases, deletions and coordination: a command that makes
the file grow asks `check_room` first. What was stored last is in the write-ahead log alone, so that
is moved into the file, and cut, while there is room to do it. Otherwise a full disk could not be
emptied: nothing could be leased, so nothing deleted.
"""

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from dovetail.background import start_thread
from dovetail.errors import DiskFull, DovetailError, StorageOut, Unavailable, Uncertain
from dovetail.foreign import described

Result = TypeVar("Result")
Work = Callable[[sqlite3.Connection], Result]

#: Commands of one transaction. A commit should not hold up the first of them for the last.
GROUP_MAX = 256

#: Pages (of 4 KiB) in the write-ahead log before they go to the file: 64 MiB. A smaller log means
#: more syncs; a larger one a longer recovery.
CHECKPOINT_PAGES = 16 * 1024

#: Memory for pages, in KiB: the row that moves takes some 60 bytes, so this holds the index of what
#: is due soon many times over, and does not grow with what is far away.
CACHE_KIB = 16 * 1024

_Waiting = tuple[Work[Any], "asyncio.Future[Any]"]


class SqliteThread:
    """See the module. Make it with `open`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, reserve_bytes: int) -> None:
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._log_path = path.with_name(path.name + "-wal")
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._out: str | None = None
        self._reading = ThreadPoolExecutor(1, thread_name_prefix=f"read-{path.stem}")
        self._reader: sqlite3.Connection | None = None
        self._thread = start_thread(self._run, name="timeline/write", of=path.stem)

    @classmethod
    async def open(
        cls,
        path: Path,
        schema: Callable[[sqlite3.Connection], None],
        *,
        reserve_bytes: int = 0,
    ) -> "SqliteThread":
        """Opens the file, which is made if it is not there. Raises `Unavailable`."""

        def connect() -> sqlite3.Connection:
            try:
                path.touch(mode=0o600)  # Bodies of messages are for nobody else on this machine.
            except OSError as error:
                raise Unavailable(f"the timeline file {path} cannot be made: {error}") from error
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                _configure(connection)
                schema(connection)
            except sqlite3.Error as error:
                connection.close()
                raise Unavailable(f"the timeline file {path} cannot be opened: {error}") from error
            return connection

        return cls(path, await asyncio.to_thread(connect), reserve_bytes)

    # Writing

    async def write(self, work: Work[Result]) -> Result:
        """Runs the work in the next transaction; returns when that is on disk."""
        if self._out is not None or self._closing:
            raise StorageOut(f"{self._path.name} takes no commands: {self._out or 'closing'}")
        future: asyncio.Future[Result] = self._loop.create_future()
        with self._wake:
            self._waiting.append((work, future))
            self._wake.notify()
        return await future

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                if not self._waiting:
                    return
                group = [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP_MAX))]
            outcomes = self._commit(group)
            self._loop.call_soon_threadsafe(_settle, group, outcomes)
            self._cut_log()

    def _commit(self, group: list[_Waiting]) -> list[Any]:
        connection = self._connection
        if self._out is not None:
            return [StorageOut(f"{self._path.name} takes no commands: {self._out}")] * len(group)
        works = [work for work, _ in group]
        try:
            outcomes = _together(connection, works)
            if outcomes is None:
                connection.execute("BEGIN IMMEDIATE")
                outcomes = [_attempt(connection, work) for work in works]
                connection.execute("COMMIT")
        except BaseException as error:  # noqa: BLE001 - a defect must not leave callers waiting
            return [self._failed(error)] * len(group)
        return outcomes

    def _failed(self, error: BaseException) -> DovetailError:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            undone = True
        except sqlite3.Error:
            undone = False
        if undone and _is(error, "SQLITE_FULL", "SQLITE_TOOBIG"):
            return DiskFull(f"no room for {self._path.name}; nothing was stored")
        if undone and _is(error, "SQLITE_BUSY", "SQLITE_LOCKED"):
            return Unavailable(
                f"another process holds the lock of {self._path.name}; nothing was stored"
            )
        self._out = f"a commit failed: {described(error)}"
        return Uncertain(f"{self._path.name}: {self._out}; it may or may not be stored")

    def check_room(self) -> None:
        """For commands that make the file grow, on the thread. Raises `DiskFull` if only the
        reserve is left."""
        with contextlib.suppress(OSError):
            if self._bytes_free() >= self._reserve_bytes:
                return
            raise DiskFull(
                f"less than {self._reserve_bytes} bytes free on the disk of {self._path.name}; "
                "nothing was stored; free some room"
            )

    def _bytes_free(self) -> int:
        found = os.statvfs(self._path.parent)
        return found.f_bavail * found.f_frsize

    def _cut_log(self) -> None:
        """Moves the log into the file, which may grow by as much, and frees its room, if the disk
        has no more than twice that."""
        with contextlib.suppress(sqlite3.Error, OSError):  # Without room, or while somebody reads.
            log_bytes = self._log_path.stat().st_size
            if log_bytes and self._bytes_free() < 2 * log_bytes:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # Reading

    async def read(self, work: Work[Result]) -> Result:
        """Runs the work on the reading thread, on what is committed."""
        if self._closing:
            raise StorageOut(f"{self._path.name} is closing")

        def run() -> Result:
            if self._reader is None:
                self._reader = sqlite3.connect(
                    self._path, isolation_level=None, check_same_thread=False
                )
                self._reader.execute("PRAGMA query_only = ON")
            try:
                return work(self._reader)
            except sqlite3.Error as error:
                raise Unavailable(f"reading {self._path.name}: {error}") from error

        return await self._loop.run_in_executor(self._reading, run)

    async def close(self) -> None:
        """Finishes what waits, and closes the file."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._thread.join()
        self._reading.shutdown()
        if self._reader is not None:
            self._reader.close()
        self._connection.close()


def _configure(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute("PRAGMA temp_store = MEMORY")


def _together(connection: sqlite3.Connection, works: list[Work[Any]]) -> list[Any] | None:
    """The results of all commands in one transaction; None, with nothing done, if one is refused.

    Without a savepoint for each: those copy every page that is changed, and cost a third more.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        outcomes = [work(connection) for work in works]
    except sqlite3.Error:
        raise
    except Exception:  # noqa: BLE001 - each is tried again by itself, and gets its own error
        connection.execute("ROLLBACK")
        return None
    connection.execute("COMMIT")
    return outcomes


def _attempt(connection: sqlite3.Connection, work: Work[Any]) -> Any:
    """The result of one command, or its error with what it did undone."""
    connection.execute("SAVEPOINT command")
    try:
        found = work(connection)
    except sqlite3.Error:
        raise
    except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this command
        connection.execute("ROLLBACK TO command")
        found = error
    connection.execute("RELEASE command")
    return found


def _settle(group: list[_Waiting], outcomes: list[Any]) -> None:
    for (_, future), outcome in zip(group, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _is(error: BaseException, *names: str) -> bool:
    """Whether it is one of these errors; SQLite tells some apart by what it appends to a name."""
    return getattr(error, "sqlite_errorname", "").startswith(names)
