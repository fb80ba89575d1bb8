"""The conformance suite on SQLite, and what belongs to its file alone."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from tests.unit.timeline.store_conformance import (
    NOW_MS,
    StoreConformance,
    ask,
    message,
    put,
    take,
)

from dovetail.errors import InvalidInput, StorageOut, Unavailable, Uncertain
from dovetail.timeline.message import BatchId, NewMessage, Status, TimelineId
from dovetail.timeline.stores._sqlite_statements import prepare
from dovetail.timeline.stores._sqlite_thread import SqliteThread
from dovetail.timeline.stores.outcomes import BATCHES_KEPT
from dovetail.timeline.stores.protocol import Stores
from dovetail.timeline.stores.sqlite import SqliteStore, SqliteStores


class TestSqlite(StoreConformance):
    """A folder for each test."""

    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        yield SqliteStores(tmp_path / "timelines")


async def test_commands_that_wait_share_a_commit(tmp_path: Path) -> None:
    """B20: a hundred small inserts at once are a few transactions."""
    store = await SqliteStore.open(tmp_path / "t.sqlite")
    commits = 0
    original = store._thread._commit

    def counted(group: list[object]) -> list[object]:
        nonlocal commits
        commits += 1
        return original(group)  # type: ignore[arg-type]

    store._thread._commit = counted  # type: ignore[method-assign,assignment]
    await asyncio.gather(*(put(store, message()) for _ in range(100)))
    assert (await store.counts(now_ms=NOW_MS)).due == 100
    assert commits < 50
    await store.close()


async def test_messages_far_in_the_future_cost_nothing_now(tmp_path: Path) -> None:
    """B20, F76: with 100,000 of them, leasing and deleting what is due takes SQLite no more steps
    than with none, and the process no more than its cache of pages."""
    steps: list[int] = []
    memory = psutil.Process().memory_info
    store = await SqliteStore.open(tmp_path / "t.sqlite")

    async def counted() -> int:
        """Steps of SQLite's machine for ten messages from lease to deletion."""
        await put(store, *[message() for _ in range(10)])
        steps.clear()
        connection = store._thread._connection
        connection.set_progress_handler(lambda: steps.append(1), 1)
        taken = await take(store, ask(limit=10))
        assert await store.delete([leased.handle for leased in taken]) == [Status.OK] * 10
        connection.set_progress_handler(None, 0)
        return len(steps)

    alone = await counted()
    before = memory().rss
    far = [NewMessage(NOW_MS + 10**9 + number, b"x" * 100) for number in range(1_000)]
    for _ in range(100):
        await store.insert(far, buckets=[0] * len(far), now_ms=NOW_MS)
    assert await counted() < 1.2 * alone
    assert memory().rss - before < 64 * 1024 * 1024
    await store.close()


async def test_a_command_that_fails_is_undone_alone(tmp_path: Path) -> None:
    """B18: its neighbours in the same commit are stored."""
    thread = await SqliteThread.open(
        tmp_path / "t.sqlite", lambda connection: connection.executescript("CREATE TABLE t (n)")
    )

    def add(number: int, *, fail: bool) -> int:
        def work(connection: sqlite3.Connection) -> int:
            connection.execute("INSERT INTO t VALUES (?)", (number,))
            if fail:
                raise InvalidInput("no")
            return number

        return asyncio.ensure_future(thread.write(work))  # type: ignore[return-value]

    tasks = [add(number, fail=number % 3 == 0) for number in range(30)]
    results = await asyncio.gather(*tasks, return_exceptions=True)  # type: ignore[call-overload]
    kept = await thread.read(lambda c: [row[0] for row in c.execute("SELECT n FROM t ORDER BY n")])
    assert kept == [number for number in range(30) if number % 3]
    assert all(isinstance(results[number], InvalidInput) for number in range(0, 30, 3))
    await thread.close()


async def test_names_of_batches_that_are_settled_are_forgotten(tmp_path: Path) -> None:
    """F4: but for a few, which may be sent again by a request that is late."""
    store = await SqliteStore.open(tmp_path / "t.sqlite")
    for sequence in range(1, 200):
        batch = BatchId(9, sequence, settled=sequence - 1)
        await store.insert([message()], buckets=[0], now_ms=NOW_MS, batch=batch)
    trimmed = await store.trim(dead_max=0, batches_before_ms=NOW_MS + 1)
    assert trimmed.batches == BATCHES_KEPT + 1
    await store.close()


async def test_a_lock_of_another_process_delays_commands_and_no_more(tmp_path: Path) -> None:
    """F27: a shell that holds the file's lock longer than we wait does not take the file out."""
    store = await SqliteStore.open(tmp_path / "t.sqlite")
    store._thread._connection.execute("PRAGMA busy_timeout = 10")
    shell = sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)
    shell.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="another process holds the lock"):
        await put(store, message())

    shell.execute("ROLLBACK")
    shell.close()
    await put(store, message())
    assert (await store.counts(now_ms=NOW_MS)).due == 1
    await store.close()


async def test_a_commit_that_failed_takes_the_file_out(tmp_path: Path) -> None:
    """B13: it may or may not be stored, and nothing is built upon it."""
    store = await SqliteStore.open(tmp_path / "t.sqlite")
    thread = store._thread

    class Failing:
        """A connection whose commits fail, as on a broken disk."""

        def __init__(self, inner: sqlite3.Connection) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self._inner, name)

        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            if statement == "COMMIT":
                raise sqlite3.OperationalError("disk I/O error")
            return self._inner.execute(statement, *values)  # type: ignore[arg-type]

    thread._connection = Failing(thread._connection)  # type: ignore[assignment]
    with pytest.raises(Uncertain, match="may or may not"):
        await put(store, message())
    with pytest.raises(StorageOut, match="disk I/O error"):
        await put(store, message())
    await store.close()


async def test_files_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    """B18, R6: copies that an operator made; a node did not start beside one."""
    stores = SqliteStores(tmp_path)
    await stores.provision(TimelineId(5))
    for name in ("0000000005 (1)", "notes", "0000000005.old", "5", "\N{SUPERSCRIPT TWO}" * 10):
        (tmp_path / f"{name}.sqlite").write_bytes(b"a copy")
    assert await stores.existing() == {TimelineId(5)}


async def test_a_file_that_is_no_timeline_is_refused(tmp_path: Path) -> None:
    """B18: another program's database is neither read nor changed."""
    stores = SqliteStores(tmp_path)
    path = tmp_path / "0000000005.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (n)")
    connection.close()
    with pytest.raises(Unavailable, match="not a timeline of format"):
        await stores.open(TimelineId(5))
    path.write_bytes(b"this is no database at all, and long enough to look at" * 100)
    with pytest.raises(Unavailable, match="cannot be opened"):
        await stores.open(TimelineId(5))


def test_two_that_make_the_tables_at_once_both_have_them(tmp_path: Path) -> None:
    """B18: who creates a timeline and who learns of it may open its file at the same moment."""
    path = tmp_path / "1.sqlite"

    class Late(sqlite3.Connection):
        """Another one is faster, between the look and the making."""

        def executescript(self, script: str) -> sqlite3.Cursor:  # type: ignore[override]
            with sqlite3.connect(path, isolation_level=None) as other:
                prepare(other)
            other.close()
            return super().executescript(script)

    late = sqlite3.connect(path, isolation_level=None, factory=Late)
    prepare(late)
    assert not late.in_transaction
    assert late.execute("SELECT next FROM ids").fetchall() == [(1,)]
    late.close()
