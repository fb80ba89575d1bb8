"""Restores a backup into an empty data folder.

The order makes an interrupted restore recognisable: a mark first, then files, then the keys of
coordination, and the mark goes last. A node refuses a folder with the mark, and a restore into it
begins anew. A folder that holds anything else is left untouched.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.backup.archive import COORDINATION, MARK, Archive, Contents, Key
from dovetail.backup.renumbering import renumber_timeline, renumbered
from dovetail.clock import Clock
from dovetail.coordination import TRANSACTION_CHANGES_MAX, EmbeddedCoordinator, Put
from dovetail.coordination.protocol import TRANSACTION_BYTES_MAX
from dovetail.durable_files import replace_file, sync_folder
from dovetail.errors import DiskFull, Exists, Unavailable
from dovetail.timeline.catalog import Catalog
from dovetail.timeline.stores.sqlite import SqliteStores

#: What a new file system has.
_NOBODYS = frozenset({"lost+found"})


async def restore(archive: Archive, folder: Path, clock: Clock) -> Contents:
    """Restores the backup; the node can start when this returns.

    Raises `Exists` if the folder is not empty, `Damaged`, `DiskFull`, `Unavailable`, also while
    another restore into the folder is under way.
    """
    with _alone(folder):
        _prepare(folder)
        return await _restore(archive, folder, clock)


async def _restore(archive: Archive, folder: Path, clock: Clock) -> Contents:
    contents = archive.contents
    try:
        for name in contents.files:
            if name != COORDINATION:
                _extract(archive, name, folder / name)
        for path in sorted((folder / "timelines").glob("*.sqlite")):
            with contextlib.closing(sqlite3.connect(path)) as connection, connection:
                renumber_timeline(connection)
        await _restore_keys(renumbered(archive.keys()), folder, clock)
        (folder / MARK).unlink()
        sync_folder(folder)
    except OSError as error:
        raise _explained(error, folder) from error
    except sqlite3.Error as error:
        raise Unavailable(f"cannot restore to {folder}: {error}") from error
    return contents


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Makes the folder, if it does not exist, this process's alone. Raises `Unavailable`.

    Another restore would take what this one writes for what one that was interrupted has left.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _explained(error, folder) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Unavailable(
                f"another restore into {folder.absolute()} is under way; wait until it has ended"
            ) from error
        except OSError:  # A file system without locks.
            pass
        yield
    finally:
        os.close(descriptor)


def _prepare(folder: Path) -> None:
    """Makes the folder ready. Raises `Exists`, `Unavailable`."""
    try:
        there = {path.name for path in folder.iterdir()} - _NOBODYS
        if there and MARK not in there:
            raise Exists(
                f"{folder.absolute()} is not empty: a backup is restored into an empty folder "
                "only. Move what is there away, or choose another with --data-dir"
            )

        # What an earlier restore, which did not end, has left.
        for name in there - {MARK}:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        replace_file(folder / MARK, b"a backup is being restored; run `dovetail restore` again\n")
    except OSError as error:
        raise _explained(error, folder) from error


def _extract(archive: Archive, name: str, path: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for chunk in archive.chunks(name):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


async def _restore_keys(keys: list[Key], folder: Path, clock: Clock) -> None:
    async with await EmbeddedCoordinator.open(folder / "coordination.sqlite", clock=clock) as kept:
        for group in _groups(keys):
            await kept.transact([Put(item.key, item.value) for item in group])

        # A timeline that was made while the backup began has no file in it, and holds nothing yet.
        stores = SqliteStores(folder / "timelines")
        records = await Catalog(kept, stores, node="restore", leases=None).records()
        there = await stores.existing()
        for record in records.values():
            if record.state == "ready" and record.id not in there:
                await stores.provision(record.id)


def _groups(keys: Iterable[Key]) -> Iterator[list[Key]]:
    """Keys that fit into one transaction each."""
    group: list[Key] = []
    size = 0
    for item in keys:
        item_bytes = len(item.key.encode()) + len(item.value)
        full = len(group) == TRANSACTION_CHANGES_MAX or size + item_bytes > TRANSACTION_BYTES_MAX
        if group and full:
            yield group
            group, size = [], 0
        group.append(item)
        size += item_bytes
    if group:
        yield group


def _explained(error: OSError, folder: Path) -> DiskFull | Unavailable:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no room in {folder}: {reason}; make room, then restore again")
    return Unavailable(f"cannot restore to {folder}: {reason}")
