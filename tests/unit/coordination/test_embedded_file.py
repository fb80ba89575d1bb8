"""The embedded coordinator and its file: restarts, the lock, damage, full and failing disks."""

import asyncio
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests import warm_python
from tests.unit.coordination.driving import open_file

from dovetail.coordination import (
    ABSENT,
    EmbeddedLimits,
    Put,
    Unchanged,
)
from dovetail.errors import (
    CoordinationDown,
    Damaged,
    DiskFull,
    InvalidSetting,
    LeaseLost,
    Unavailable,
    Uncertain,
    WatchGap,
)


@contextmanager
def file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Makes writes beyond this size fail, as a broken disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# ---- restarts


async def test_keys_and_revision_survive_a_restart(path: Path) -> None:
    """L1: what was acknowledged is there after a restart, with its revisions."""
    async with await open_file(path) as coordinator:
        start = (await coordinator.range("")).revision
        for number in range(5):
            outcome = await coordinator.transact(
                [Put("a", b"%d" % number), Put(f"k/{number}", b"")]
            )
            assert outcome.revision == start + number + 1
        before = await coordinator.range("")
    async with await open_file(path) as coordinator:
        assert await coordinator.range("") == before
        outcome = await coordinator.transact([Put("a", b"")])
        assert outcome.revision == before.revision + 1


async def test_lease_ids_do_not_return_after_idle_openings(path: Path) -> None:
    """L1: no lease id is given twice, also when a process stored nothing at all."""
    granted = []
    for _ in range(3):
        async with await open_file(path) as coordinator:
            granted.append(await coordinator.grant(ttl_ms=60_000))
    assert len(set(granted)) == 3


async def test_former_leases_end_at_opening_in_one_revision(path: Path) -> None:
    """L1: whoever held a lease was in the process that is gone; lease ids never return."""
    async with await open_file(path) as coordinator:
        lease = await coordinator.grant(ttl_ms=60_000)
        await coordinator.transact([Put("n/1", b"", lease), Put("n/2", b"", lease)])
        kept = await coordinator.transact([Put("t", b"")])
    async with await open_file(path) as coordinator:
        snapshot = await coordinator.range("")
        assert [item.key for item in snapshot.items] == ["t"]
        assert snapshot.revision == kept.revision + 1
        assert await coordinator.grant(ttl_ms=60_000) > lease
        with pytest.raises(LeaseLost):
            await coordinator.keep_alive(lease)
        async with coordinator.watch("", after=kept.revision) as events:
            with pytest.raises(WatchGap):
                await anext(events)


# ---- one process at a time


async def test_a_second_opening_is_refused_with_the_holder(path: Path) -> None:
    """L1: the file belongs to one process at a time, and the refusal names that process."""
    holder = (
        "import asyncio, sys; from pathlib import Path\n"
        "from dovetail.clock import SystemClock\n"
        "from dovetail.coordination import EmbeddedCoordinator\n"
        "async def main():\n"
        "    async with await EmbeddedCoordinator.open(Path(sys.argv[1]), clock=SystemClock()):\n"
        "        print('open', flush=True); sys.stdin.readline()\n"
        "asyncio.run(main())\n"
    )
    with warm_python.Popen(
        [sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(Unavailable, match=f"in use by process {process.pid}") as told:
            await open_file(path)
        assert not isinstance(told.value, CoordinationDown), "a node would wait for its end"
        process.stdin.write(b"\n")
    async with await open_file(path):
        with pytest.raises(Unavailable, match="in use by process"):
            await open_file(path)


async def test_a_cancelled_opening_leaves_no_lock(path: Path) -> None:
    """R: who gives up while opening does not keep the file from the next."""
    opening = asyncio.create_task(open_file(path))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})
    async with asyncio.timeout(60):
        while True:
            try:
                coordinator = await open_file(path)
            except Unavailable:
                continue
            break
    await coordinator.close()


async def test_a_path_without_a_directory_is_refused(tmp_path: Path) -> None:
    """R: a setting that cannot work says so."""
    with pytest.raises(InvalidSetting, match="directory does not exist"):
        await open_file(tmp_path / "nowhere" / "coordination.db")


# ---- damage


async def fill(path: Path) -> None:
    async with await open_file(path) as coordinator:
        for number in range(50):
            await coordinator.transact([Put(f"key/{number:03}", b"value-%03d-" % number * 20)])


async def test_a_changed_value_is_found(path: Path) -> None:
    """L6: a row that is not what was written is refused by its checksum."""
    await fill(path)
    data = path.read_bytes()
    assert data.count(b"value-033-" * 20) == 1
    path.write_bytes(data.replace(b"value-033-", b"value-034-", 1))
    with pytest.raises(Damaged, match=r"key/033.*checksum.*restore it from a copy"):
        await open_file(path)


async def test_a_changed_revision_is_found(path: Path) -> None:
    """L6: the head carries a checksum as well, so revisions cannot go back unseen."""
    await fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE head SET revision = revision + 7")
    with pytest.raises(Damaged, match="head"):
        await open_file(path)


@pytest.mark.parametrize("damage", ["garbage", "empty", "half", "foreign"])
async def test_a_file_that_is_no_coordination_file_is_refused(path: Path, damage: str) -> None:
    """L6: garbage, an emptied file, a cut one and another program's are refused, not replaced."""
    await fill(path)
    whole = path.read_bytes()
    if damage == "foreign":
        path.unlink()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE other (a)")
    else:
        garbage = b"no database at all " * 500
        path.write_bytes(
            {"garbage": garbage, "empty": b"", "half": whole[: len(whole) // 2]}[damage]
        )
    before = path.read_bytes()
    with pytest.raises(Damaged, match="restore it from a copy"):
        await open_file(path)
    assert path.read_bytes() == before


async def test_a_log_without_its_database_is_refused(path: Path) -> None:
    """L6: a write-ahead log is not played into a new database."""
    path.with_name(path.name + "-wal").write_bytes(b"left over")
    with pytest.raises(Damaged, match="write-ahead log"):
        await open_file(path)
    assert not path.exists()


# ---- full and failing disks


async def test_a_full_file_refuses_writes_and_goes_on(path: Path) -> None:
    """R: without room nothing is stored, what fits still passes, and deletion makes room."""
    limits = EmbeddedLimits(file_bytes_max=256 * 1024)
    async with await open_file(path, limits=limits) as coordinator:
        before = await coordinator.range("")
        big, small = await asyncio.gather(
            coordinator.transact([Put("big", bytes(512 * 1024))]),
            coordinator.transact([Put("small", b"")]),
            return_exceptions=True,
        )
        assert isinstance(big, DiskFull)
        assert not isinstance(small, BaseException)
        assert small.revision == before.revision + 1
        after = await coordinator.range("")
        assert [item.key for item in after.items] == ["small"]
        lease = await coordinator.grant(ttl_ms=60_000)
        await coordinator.transact([Put("half", bytes(150 * 1024), lease)])
        with pytest.raises(DiskFull):
            await coordinator.transact([Put("other", bytes(150 * 1024))])
        await coordinator.revoke(lease)
        await coordinator.transact([Put("other", bytes(150 * 1024))])
        shown = await coordinator.range("")
    async with await open_file(path) as coordinator:
        assert await coordinator.range("") == shown


async def test_a_failing_disk_takes_the_coordinator_out(path: Path) -> None:
    """L6: after a failed write the change is uncertain, and nothing more is promised."""
    coordinator = await open_file(path)
    kept = await coordinator.transact([Put("kept", b"")])
    async with coordinator.watch("", after=kept.revision) as events:
        with file_size_limit(64 * 1024):
            results = await asyncio.gather(
                coordinator.transact([Put("lost", bytes(512 * 1024))]),
                coordinator.transact([Put("kept", b"")], conditions=[Unchanged("kept", ABSENT)]),
                return_exceptions=True,
            )
        assert isinstance(results[0], Uncertain)
        assert isinstance(results[1], CoordinationDown)
        with pytest.raises(CoordinationDown):
            await anext(events)
    with pytest.raises(CoordinationDown, match="may or may not be stored"):
        await coordinator.get("kept")
    await coordinator.close()
    async with await open_file(path) as reopened:
        assert await reopened.get("kept") is not None
        assert (await reopened.transact([Put("kept", b"")])).revision > kept.revision
