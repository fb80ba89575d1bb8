"""A backup is one moment of a node: what its chains name is in its segments."""

import asyncio
import io
import random
import sqlite3
import tarfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from dovetail.backup.archive import (
    COORDINATION,
    FORMAT,
    IDENTITY,
    LIST,
    Archive,
    Contents,
    Key,
    Member,
)
from dovetail.backup.renumbering import NUMBERS_APART, renumbered
from dovetail.backup.restoring import MARK, restore
from dovetail.backup.taking import Backups, Source
from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator, Put
from dovetail.coordination.protocol import Snapshot
from dovetail.errors import Damaged, DovetailError, Exists, NotFound, Throttled, Unavailable
from dovetail.storage import (
    EntryId,
    LedgerId,
    LedgerStore,
    LocalStorageNode,
    RealDisk,
    StoreSettings,
    Term,
    chain,
)
from dovetail.storage.disk.commands import Append
from dovetail.storage.identity import disk_identity
from dovetail.timeline.stores.sqlite import SqliteStores

SETTINGS = StoreSettings(segment_bytes=4096, reserve_bytes=4096, disk_free_bytes_min=0)


class Coordination(EmbeddedCoordinator):
    """Does something while all keys are read."""

    meanwhile: asyncio.Task[None] | None = None
    node: LocalStorageNode | None = None

    async def range(self, prefix: str) -> Snapshot:
        found = await super().range(prefix)
        if self.node is not None and prefix == "":
            self.meanwhile = asyncio.create_task(self.node.delete(LedgerId(1)))
            for _ in range(5):
                await asyncio.sleep(0.01)
        return found


class World:
    """A node's folder, opened."""

    def __init__(self, folder: Path, node: LocalStorageNode, coordinator: Coordination) -> None:
        self.folder = folder
        self.node = node
        self.coordinator = coordinator
        self.backups = Backups(
            Source(1, folder, coordinator, node, SystemClock(), "embedded", "sqlite")
        )

    async def append(self, ledger: int, entry: int, payload: bytes) -> None:
        done: asyncio.Future[DovetailError | None] = asyncio.get_running_loop().create_future()
        command = Append(LedgerId(ledger), EntryId(entry), Term(1), EntryId(entry - 1), payload)
        self.node.append(command, done.set_result)
        assert await done is None

    async def take(self, file: Path) -> Path:
        async with aclosing(self.backups.take()) as pieces:
            file.write_bytes(b"".join([piece async for piece in pieces]))
        return file


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    (folder / "ledgers").mkdir(parents=True)
    disk_identity(folder / "ledgers")
    await SqliteStores(folder / "timelines").provision(1)  # type: ignore[arg-type]
    coordinator = await Coordination.open(folder / "coordination.sqlite", clock=SystemClock())
    assert isinstance(coordinator, Coordination)
    store = LedgerStore(RealDisk(folder / "ledgers"), SETTINGS, random.Random(1))
    node = LocalStorageNode(store)
    try:
        yield World(folder, node, coordinator)
    finally:
        await node.close()
        await coordinator.close()


def restored(folder: Path) -> LedgerStore:
    return LedgerStore(RealDisk(folder / "ledgers"), SETTINGS, random.Random(2))


async def test_a_ledger_that_the_chains_name_is_in_the_segments(tmp_path: Path) -> None:
    """R9: deleted while the backup began, and its segment dropped: it is in the backup."""
    async with opened(tmp_path / "node") as world:
        for entry in range(20):
            await world.append(1, entry, b"x" * 500)
        await world.append(2, 0, b"later")
        world.coordinator.node = world.node
        file = await world.take(tmp_path / "b.tar")
        assert world.coordinator.meanwhile is not None
        await asyncio.wait_for(world.coordinator.meanwhile, 10)
        assert await world.node.ledgers() == {LedgerId(2)}

    with Archive(file) as archive:
        await restore(archive, tmp_path / "again", SystemClock())
    store = restored(tmp_path / "again")
    assert store.report.damaged == []
    found = store.read(LedgerId(1), EntryId(0), last=EntryId(19), bytes_max=10**6)
    assert [entry.entry for entry in found] == list(range(20))
    store.close()


async def test_what_is_written_while_it_is_sent_is_not_in_it(tmp_path: Path) -> None:
    """R9: the file is of one moment, however long it takes to send, and segments that go are."""
    async with opened(tmp_path / "node") as world:
        for entry in range(20):
            await world.append(1, entry, b"x" * 500)
        (tmp_path / "b.tar").touch()
        async with aclosing(world.backups.take()) as pieces:
            sent = [await anext(pieces)]
            await world.append(1, 20, b"too late")
            await world.append(3, 0, b"too late")
            await world.node.delete(LedgerId(1))
            with sqlite3.connect(tmp_path / "node/timelines/0000000001.sqlite") as timeline:
                timeline.execute("UPDATE ids SET next = 77")
            timeline.close()
            with pytest.raises(Throttled, match="another backup"):
                await anext(world.backups.take())
            sent += [piece async for piece in pieces]
        (tmp_path / "b.tar").write_bytes(b"".join(sent))
        assert not (tmp_path / "node" / "backup").exists()

    with Archive(tmp_path / "b.tar") as archive:
        await restore(archive, tmp_path / "again", SystemClock())
    store = restored(tmp_path / "again")
    assert store.ledgers() == {LedgerId(1)}
    found = store.read(LedgerId(1), EntryId(0), last=EntryId(30), bytes_max=10**6)
    assert [entry.entry for entry in found] == list(range(20))
    store.close()
    with sqlite3.connect(tmp_path / "again/timelines/0000000001.sqlite") as timeline:
        assert timeline.execute("SELECT next FROM ids").fetchone() == (1 + NUMBERS_APART,)
    timeline.close()


async def test_foreign_files_beside_timelines_keep_no_backup_from_being_whole(
    tmp_path: Path,
) -> None:
    """R9: a copy that an operator left there made every backup one that cannot be restored."""
    async with opened(tmp_path / "node") as world:
        folder = world.folder / "timelines"
        (folder / "0000000001 (1).sqlite").write_bytes((folder / "0000000001.sqlite").read_bytes())
        (folder / "notes.sqlite").write_bytes(b"no database" * 1_000)
        with Archive(await world.take(tmp_path / "backup")) as archive:
            archive.check()
            kept = [name for name in archive.contents.files if name.startswith("timelines/")]
    assert kept == ["timelines/0000000001.sqlite"]


async def test_a_node_that_stops_ends_its_backup_and_says_so(tmp_path: Path) -> None:
    """R9: the file says why it is not whole, and nothing is restored from it."""
    async with opened(tmp_path / "node") as world:
        for entry in range(20):
            await world.append(1, entry, b"x" * 500)
        async with aclosing(world.backups.take()) as pieces:
            sent = [await anext(pieces)]
            stopping = asyncio.create_task(world.backups.stop())
            await asyncio.sleep(0)
            sent += [piece async for piece in pieces]
        await asyncio.wait_for(stopping, 10)
    (tmp_path / "b.tar").write_bytes(b"".join(sent))
    with pytest.raises(Unavailable, match="the node is stopping"):
        Archive(tmp_path / "b.tar")


async def test_a_reader_that_goes_away_gives_everything_back(tmp_path: Path) -> None:
    """R9: files are held while a backup is sent, and no longer; the next one begins."""
    async with opened(tmp_path / "node") as world:
        await world.append(1, 0, b"x")
        async with aclosing(world.backups.take()) as pieces:
            await anext(pieces)
        await world.take(tmp_path / "b.tar")
    with Archive(tmp_path / "b.tar") as archive:
        archive.check()


async def test_numbers_go_on_behind_a_gap(tmp_path: Path) -> None:
    """R9: what was given after the backup is not given again: terms, ids."""
    record = chain.PartitionRecord("t", 0, term=7)
    keys = [Key("/ids/producer", b"41"), Key("/partitions/t/000000", chain.encode(record))]
    keys.append(Key("/topics/a", b"as it was"))
    ids, partition, topic = renumbered(keys)
    assert int(ids.value) == 41 + NUMBERS_APART
    assert chain.decode(partition.value) == msgspec.structs.replace(record, term=7 + NUMBERS_APART)
    assert topic == keys[2]


async def test_only_a_whole_backup_is_restored_and_only_into_nothing(tmp_path: Path) -> None:
    """R9: cut at any place, changed, foreign, twice: refused by name, and nothing is touched."""
    async with opened(tmp_path / "node") as world:
        await world.coordinator.transact([Put("/a", b"\x00\xff"), Put("/b", b"x" * 10**6)])
        await world.coordinator.transact([Put("/c", b"y" * 10**6)])
        await world.append(1, 0, b"z" * 3000)
        whole = (await world.take(tmp_path / "b.tar")).read_bytes()

    for size in (0, 1, 511, 512, 600, len(whole) // 2, len(whole) - 2048):
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        with pytest.raises(Damaged):
            Archive(tmp_path / "cut.tar")
    changed = bytearray(whole)
    changed[whole.index(b"z" * 3000) + 5] ^= 1
    (tmp_path / "changed.tar").write_bytes(changed)
    refused = pytest.raises(Damaged, match=r"segment fails its checksum")
    with Archive(tmp_path / "changed.tar") as archive, refused:
        await restore(archive, tmp_path / "half", SystemClock())
    assert (tmp_path / "half" / MARK).exists()
    with pytest.raises(NotFound, match="there is no file"):
        Archive(tmp_path / "none.tar")
    with tarfile.open(tmp_path / "evil.tar", "w") as evil:
        evil.add(tmp_path / "b.tar", "../../b.tar")
    with pytest.raises(Damaged):
        Archive(tmp_path / "evil.tar")

    # What a restore left half done is restored again; what is anybody's is left alone.
    with Archive(tmp_path / "b.tar") as archive:
        await restore(archive, tmp_path / "half", SystemClock())
        with pytest.raises(Exists, match="not empty"):
            await restore(archive, tmp_path / "half", SystemClock())
    assert not (tmp_path / "half" / MARK).exists()
    again = await EmbeddedCoordinator.open(
        tmp_path / "half" / "coordination.sqlite", clock=SystemClock()
    )
    async with again:
        snapshot = await again.range("")
    assert {item.key: item.value[:2] for item in snapshot.items} == {
        "/a": b"\x00\xff",
        "/b": b"xx",
        "/c": b"yy",
    }


def packed(files: dict[str, bytes], file: Path, **links: str) -> Path:
    """A file with a true list of these members; with links in place of some."""
    listed = {name: Member(len(content), crc32c(content)) for name, content in files.items()}
    contents = msgspec.json.encode(Contents(FORMAT, "1", 1, 0, "none", listed))
    with tarfile.open(file, "w") as made:
        for name, content in {**files, LIST: contents}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            made.addfile(info)
    return file


def test_a_file_that_only_looks_like_a_backup_is_refused(tmp_path: Path) -> None:
    """R9, F53: without what every backup has, or with links that name each other."""
    keys = msgspec.msgpack.encode([])
    for files in ({}, {COORDINATION: keys}, {IDENTITY: b"x"}):
        with pytest.raises(Damaged, match="every backup has"):
            Archive(packed(files, tmp_path / "missing.tar"))
    whole = {COORDINATION: keys, IDENTITY: b"x"}
    with Archive(packed(whole, tmp_path / "whole.tar")) as archive:
        archive.check()
    linked = packed(whole, tmp_path / "linked.tar", again="again")
    with pytest.raises(Damaged, match=r"linked.tar.*not a plain file"):
        Archive(linked)
    with tarfile.open(tmp_path / "loop.tar", "w") as made:
        info = tarfile.TarInfo(LIST)
        info.type, info.linkname = tarfile.SYMTYPE, LIST
        made.addfile(info)
    with pytest.raises(Damaged, match="not a plain file"):
        Archive(tmp_path / "loop.tar")


async def test_a_second_restore_leaves_what_the_first_one_writes_alone(tmp_path: Path) -> None:
    """R9: it took it for the rest of a restore that was interrupted, and removed it."""
    file = packed(
        {COORDINATION: msgspec.msgpack.encode([]), IDENTITY: b"identity"}, tmp_path / "b.tar"
    )
    folder = tmp_path / "again"

    class Slow(Archive):
        """Another restore begins while this one's files are written."""

        def chunks(self, name: str) -> Iterator[bytes]:
            if name == IDENTITY:
                with Archive(file) as other, pytest.raises(Unavailable, match="under way"):
                    beside.submit(asyncio.run, restore(other, folder, SystemClock())).result(60)
            return super().chunks(name)

    with ThreadPoolExecutor(1) as beside, Slow(file) as archive:
        await restore(archive, folder, SystemClock())
    assert (folder / IDENTITY).read_bytes() == b"identity"
    assert not (folder / MARK).exists()
