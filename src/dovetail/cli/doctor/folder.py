"""The data folder: whether it is writable, has space, and a sync reaches a disk."""

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dovetail.cli.doctor.finding import Finding, failed, ok, skipped, warning
from dovetail.settings import format_bytes

#: Syncs that are timed; the middle one counts.
SYNCS = 5

#: Above this, a node with one writer stays below 20 acknowledged requests a second.
SYNC_MS_MAX = 50.0

#: Free room below which a disk fills within an ordinary day's work.
FREE_BYTES_COMFORTABLE = 2 * 1024**3

_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_OF_A_CONTAINER = frozenset({"overlay", "aufs"})
_OVER_A_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"})


@dataclass(frozen=True, slots=True)
class FolderFact:
    """The folder, or the nearest one above it that exists."""

    path: Path
    exists: bool
    error: str = ""
    free_bytes: int = 0
    filesystem: str = ""
    sync_ms: float = 0.0


def gather_folder(path: Path) -> FolderFact:
    """Looks; writes and syncs one small file, and removes it."""
    exists = path.exists()
    nearest = path.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        return FolderFact(path, exists, f"{nearest} is a file")
    try:
        sync_ms = _timed_sync(nearest)
        free_bytes = shutil.disk_usage(nearest).free
    except OSError as error:
        return FolderFact(path, exists, f"{nearest}: {(error.strerror or str(error)).lower()}")
    return FolderFact(path, exists, "", free_bytes, filesystem_of(nearest), sync_ms)


def _timed_sync(folder: Path) -> float:
    times_ms = []
    handle, name = tempfile.mkstemp(prefix=".dovetail-doctor-", dir=folder)
    try:
        for _ in range(SYNCS):
            os.write(handle, bytes(4096))
            began_s = time.perf_counter()
            os.fdatasync(handle)
            times_ms.append((time.perf_counter() - began_s) * 1000)
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            Path(name).unlink()
    return sorted(times_ms)[SYNCS // 2]


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The kind of file system below a path; empty where the system does not say."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        _, mounted, found, *_ = line.split(" ")
        mounted = mounted.replace("\\040", " ")
        inside = path.is_relative_to(mounted)
        if inside and len(mounted) >= len(best):
            best, kind = mounted, found
    return kind


def judge_folder(fact: FolderFact, *, disk_free_bytes_min: int, has_storage: bool) -> list[Finding]:
    """Writable, room, and what a sync is worth there."""
    if not has_storage:
        return [skipped("data folder", "this node has no storage role, and keeps no ledgers")]
    if fact.error:
        return [
            failed(
                "data folder",
                f"{fact.path.absolute()} cannot be used: {fact.error}",
                fix="give the node's user write permission, or set node.data_dir (--data-dir)",
            )
        ]
    there = "" if fact.exists else " (made at the first start)"
    return [
        ok("data folder", f"{fact.path.absolute()} can be written{there}"),
        _judge_room(fact, disk_free_bytes_min),
        _judge_sync(fact),
    ]


def _judge_room(fact: FolderFact, disk_free_bytes_min: int) -> Finding:
    free = f"{fact.free_bytes / 1024**3:,.1f} GiB"
    if fact.free_bytes < disk_free_bytes_min:
        return failed(
            "disk room",
            f"{free} free: the node refuses writes below {format_bytes(disk_free_bytes_min)}",
            fix="free space, retain less (log.retention_ms, log.retention_bytes), or use a larger "
            "disk; storage.disk_free_bytes_min is the limit",
        )
    if fact.free_bytes < FREE_BYTES_COMFORTABLE:
        return warning(
            "disk room",
            f"{free} free, which a normal day can fill",
            fix="free space, or retain less: log.retention_ms, log.retention_bytes",
        )
    return ok("disk room", f"{free} free")


def _judge_sync(fact: FolderFact) -> Finding:
    text = f"{fact.filesystem or 'unknown file system'}, a sync takes {fact.sync_ms:.1f} ms"

    if fact.filesystem in _IN_MEMORY:
        return failed(
            "disk sync",
            f"{text}: it is in memory, and a restart of the machine loses everything",
            fix="set node.data_dir to a folder on a disk",
        )
    if fact.filesystem in _OF_A_CONTAINER:
        return warning(
            "disk sync",
            f"{text}: a layer of a container, which is deleted with the container",
            fix="mount a volume and set node.data_dir to it",
        )

    if fact.filesystem in _OVER_A_NETWORK:
        return warning(
            "disk sync",
            f"{text}: a network file system, where syncs and locks may not be reliable",
            fix="use a disk of this machine; copies on other machines are what quorums are for",
        )
    if fact.sync_ms > SYNC_MS_MAX:
        return warning(
            "disk sync",
            f"{text}: every acknowledged write waits for one",
            fix="use a faster disk, or see docs/tuning.md about larger batches",
        )
    return ok("disk sync", text)
