"""The disk of a storage node: opened at start, scrubbed for damage, and read for backups."""

import asyncio
import random
import resource
from collections.abc import Callable
from pathlib import Path

from dovetail.background import Tasks
from dovetail.backup.taking import Backups, Source
from dovetail.clock import Clock
from dovetail.coordination import Coordinator
from dovetail.logging import get_logger
from dovetail.settings import Settings
from dovetail.settings.storage import StorageSettings
from dovetail.storage import Durability, LedgerStore, LocalStorageNode, RealDisk, StoreSettings
from dovetail.storage.repair.scrubber import Scrubber
from dovetail.storage.repair.upkeep import StorageUpkeep

_log = get_logger("node")

#: For how long a disk that had room is taken to have it still: at a thousand syncs a second, asking
#: each time is a system call and a wait for the interpreter in the path of every message.
_ROOM_KNOWN_S = 0.02


def raise_file_limit() -> None:
    """Takes as many file handles as the system allows: each connection and segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def open_store(folder: Path, settings: StorageSettings) -> LedgerStore:
    """Recovers what is in the folder, and logs what was found. Raises as `LedgerStore`."""
    store_settings = StoreSettings(
        durability=Durability(settings.durability),
        segment_bytes=settings.segment_bytes,
        disk_free_bytes_min=settings.disk_free_bytes_min,
        compaction_live_ratio=settings.compaction_live_ratio,
        room_known_s=_ROOM_KNOWN_S,
    )
    store = await asyncio.to_thread(
        lambda: LedgerStore(RealDisk(folder), store_settings, random.SystemRandom())
    )

    report = store.report
    if report.torn_bytes:
        _log.warning("cut the torn tail of the last write", bytes=report.torn_bytes)
    for place in report.damaged:
        _log.error("damaged on disk; serving what is intact around it", place=place)
    _log.info(
        "storage ready",
        segments=report.segments,
        scanned=report.segments_scanned,
        bytes=store.bytes_on_disk(),
    )
    return store


def backups_of(
    settings: Settings, coordinator: Coordinator, storage: LocalStorageNode, clock: Clock
) -> Backups:
    """The backups of what this node stores."""
    timelines = "none"
    if settings.timeline.enabled and settings.timeline.store == "postgres":
        timelines = "postgres"
    elif settings.timeline.enabled and settings.coordination.alone:
        timelines = "sqlite"
    return Backups(
        Source(
            node_id=settings.node.node_id,
            data_dir=settings.node.data_dir,
            coordinator=coordinator,
            storage=storage,
            clock=clock,
            coordination=settings.coordination.kind,
            timelines=timelines,
        )
    )


def scrub(
    storage: LocalStorageNode,
    upkeep: StorageUpkeep,
    settings: StorageSettings,
    clock: Clock,
    renew: Callable[[], None],
    tasks: Tasks,
) -> None:
    """Starts the scrubber, which reads the disk through; `renew` tells other nodes of damage."""

    def found() -> None:
        upkeep.wake()
        renew()

    scrubber = Scrubber(
        storage, bytes_per_second=settings.scrub_bytes_per_second, clock=clock, on_damage=found
    )
    tasks.keep(scrubber.run, name="storage/scrub")
