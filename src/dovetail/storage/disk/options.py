"""Settings of a store: when an append counts as stored, and how much space it takes."""

from dataclasses import dataclass
from enum import Enum

#: Room that a segment takes ahead. Syncing 1 MiB into room that is already taken costs 0.7 ms on
#: ext4 and 3.0 ms into room that is not; a small step keeps a new node's folder small.
RESERVE_BYTES = 16 * 1024 * 1024


class Durability(Enum):
    """When an append counts as stored."""

    #: On the disk.
    SYNC = "sync"
    #: In the system's memory: lost with the machine, not with the process.
    OS = "os"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How a store keeps its files."""

    durability: Durability = Durability.SYNC
    segment_bytes: int = 256 * 1024 * 1024
    disk_free_bytes_min: int = 64 * 1024 * 1024
    #: For how long a disk that had room is taken to have it still.
    room_known_s: float = 0.0
    compaction_live_ratio: float = 0.5
    reserve_bytes: int = RESERVE_BYTES
    #: A start reads the newest segment entry by entry, so tiny ones end it sooner.
    segment_entries: int = 250_000
