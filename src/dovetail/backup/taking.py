"""Takes a backup of a running node: three snapshots in a moment, then the file as a stream.

    begin → timelines pinned → [deletions wait: keys read → segments cut] → copying → end

The package says why in this order. A backup that is no longer read, or that fails, releases all
files. There is one at a time: each holds files open that the node has dropped.

SQLite's online backup copies timelines to a file beside the data before they are sent, one after
the other; the node needs space for the largest. A power cut can leave one such copy behind; the
next backup removes it.
"""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from crc32c import crc32c

from dovetail import __version__
from dovetail.backup.archive import (
    CHUNK_BYTES,
    COORDINATION,
    END,
    FORMAT,
    IDENTITY,
    LIST,
    Contents,
    Key,
    Member,
    belongs,
    gave_up,
    head,
    padding,
)
from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.errors import DovetailError, Refused, Throttled, Unavailable
from dovetail.logging import get_logger
from dovetail.storage import LocalStorageNode
from dovetail.storage.disk.commands import Cut
from dovetail.storage.disk.files import Salvage

_log = get_logger("backup")

#: Where copies of timelines wait to be sent.
_COPIES = "backup"


@dataclass(frozen=True, slots=True)
class Source:
    """What a node has to back up."""

    node_id: int
    data_dir: Path
    coordinator: Coordinator
    storage: LocalStorageNode
    clock: Clock
    #: "embedded" (alone) or "etcd" (one of a cluster); "sqlite", "postgres" or "none".
    coordination: str
    timelines: str


@dataclass(slots=True)
class _Snapshots:
    """A moment of the node, held."""

    at_ms: int
    timelines: dict[str, sqlite3.Connection]
    keys: list[Key]
    cut: Cut
    held: ExitStack


class Backups:
    """The backups of a node."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._turn = asyncio.Lock()
        self._stopping = False

    async def stop(self) -> None:
        """Ends a backup under way; its files are given back when this returns."""
        self._stopping = True
        async with self._turn:
            pass

    async def take(self) -> AsyncGenerator[bytes, None]:
        """The file, in pieces. Close it (`aclosing`) when nobody reads on.

        Raises `Refused` in a cluster, `Throttled` if another one is under way, `Unavailable`,
        `StorageOut`. What fails behind the first piece is told in the file.
        """
        if self._source.coordination != "embedded":
            raise Refused(
                "this node is one of a cluster: its ledgers lie on several nodes, and topics in "
                "etcd; docs/operations.md says how to keep a copy of a cluster"
            )
        if self._turn.locked():
            raise Throttled("another backup of this node is running; wait until it has ended")
        async with self._turn:
            snapshots = await self._begin()
            _log.info("backup started", segments=len(snapshots.cut.segments))
            sent = 0
            try:
                async for piece in self._pieces(snapshots):
                    sent += len(piece)
                    yield piece
            except (DovetailError, OSError, sqlite3.Error) as error:
                _log.error("backup failed", error=str(error))
                yield gave_up(str(error))
            else:
                _log.info("backup ended", bytes=sent)
            finally:
                await asyncio.shield(asyncio.to_thread(snapshots.held.close))

    # The snapshots

    async def _begin(self) -> _Snapshots:
        source = self._source
        at_ms = source.clock.wall_ms()
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, source.data_dir / _COPIES, ignore_errors=True)
            timelines = await asyncio.to_thread(self._pin_timelines, stack)
            with source.storage.deletions_held():
                snapshot = await source.coordinator.range("")
                cut = await source.storage.cut()
            stack.callback(cut.let_go)
            # Keys that are bound to a lease end with the process that holds it.
            keys = [Key(item.key, item.value) for item in snapshot.items if item.lease is None]
            return _Snapshots(at_ms, timelines, keys, cut, stack.pop_all())

    def _pin_timelines(self, stack: ExitStack) -> dict[str, sqlite3.Connection]:
        """A read transaction on each file: what is committed later is not seen."""
        pinned: dict[str, sqlite3.Connection] = {}
        if self._source.timelines != "sqlite":
            return pinned
        for path in sorted((self._source.data_dir / "timelines").glob("*.sqlite")):
            name = f"timelines/{path.name}"
            if not belongs(name):  # A copy that an operator made is none of ours.
                continue
            try:
                connection = sqlite3.connect(
                    f"{path.absolute().as_uri()}?mode=ro",
                    uri=True,
                    isolation_level=None,
                    check_same_thread=False,
                )
                stack.callback(connection.close)
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            except sqlite3.Error as error:
                if not path.exists():  # The timeline was deleted just now.
                    continue
                what = f"the timeline file {path.name} cannot be read: {error}"
                raise Unavailable(what) from error
            pinned[name] = connection
        return pinned

    # The file

    async def _pieces(self, snapshots: _Snapshots) -> AsyncIterator[bytes]:
        files: dict[str, Member] = {}
        unreadable: list[str] = []
        at_ms, source = snapshots.at_ms, self._source

        keys = msgspec.msgpack.encode(snapshots.keys)
        identity = (source.data_dir / IDENTITY).read_bytes()
        for name, content in ((COORDINATION, keys), (IDENTITY, identity)):
            files[name] = Member(len(content), crc32c(content))
            yield _whole(name, content, at_ms)

        for name, connection in snapshots.timelines.items():
            copy = await asyncio.to_thread(self._copy, name, connection)
            try:
                with copy.open("rb") as file:
                    read = partial(_read_at, file.fileno())
                    async for piece in self._member(name, copy.stat().st_size, read, at_ms, files):
                        yield piece
            finally:
                copy.unlink(missing_ok=True)

        for segment in snapshots.cut.segments:
            name = f"ledgers/{segment.name}"
            readable = Salvage(segment.file)
            async for piece in self._member(name, segment.size, readable.read, at_ms, files):
                yield piece
            if readable.failed:
                unreadable.append(name)

        yield _whole(LIST, msgspec.json.encode(self._list(at_ms, files, unreadable)), at_ms) + END

    async def _member(
        self,
        name: str,
        size: int,
        read: Callable[[int, int], bytes],
        at_ms: int,
        files: dict[str, Member],
    ) -> AsyncIterator[bytes]:
        """A file piece by piece; it is put on the list."""
        yield head(name, size, at_ms=at_ms)
        checksum = 0
        for at in range(0, size, CHUNK_BYTES):
            if self._stopping:
                raise Unavailable("the node is stopping")
            wanted = min(CHUNK_BYTES, size - at)
            piece, checksum = await asyncio.to_thread(_read_and_sum, read, at, wanted, checksum)
            if len(piece) != wanted:
                raise Unavailable(f"{name} is shorter than it was: {at + len(piece)} of {size}")
            yield piece
        yield padding(size)
        files[name] = Member(size, checksum)

    def _copy(self, name: str, connection: sqlite3.Connection) -> Path:
        """The timeline as it was pinned, in a file of its own."""
        folder = self._source.data_dir / _COPIES
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / Path(name).name
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as copy:
            # In one step, so within the transaction that is open. Writers do not wait for it.
            connection.backup(copy, pages=-1)
        connection.execute("ROLLBACK")
        return path

    def _list(self, at_ms: int, files: dict[str, Member], unreadable: list[str]) -> Contents:
        return Contents(
            format=FORMAT,
            version=__version__,
            node_id=self._source.node_id,
            at_ms=at_ms,
            timelines=self._source.timelines,
            files=files,
            unreadable=unreadable,
        )


def _whole(name: str, content: bytes, at_ms: int) -> bytes:
    return head(name, len(content), at_ms=at_ms) + content + padding(len(content))


def _read_at(descriptor: int, position: int, length: int) -> bytes:
    return os.pread(descriptor, length, position)


def _read_and_sum(
    read: Callable[[int, int], bytes], at: int, length: int, checksum: int
) -> tuple[bytes, int]:
    piece = read(at, length)
    return piece, crc32c(piece, checksum)
