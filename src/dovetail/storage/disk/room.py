"""Whether a disk is above its reserve; that it was is remembered for a moment.

Promise: a disk below its reserve is asked every time, so that appends go on as soon as it has room.
Not here: a write that finds no room whatever was said, which is taken back (store.py).
"""

from time import monotonic

from dovetail.storage.disk.files import Disk
from dovetail.storage.disk.options import StoreSettings


class Room:
    """See the module."""

    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self._disk = disk
        self._free_bytes_min = settings.disk_free_bytes_min
        self._known_s = settings.room_known_s
        self._there_until_s = 0.0

    def is_there(self) -> bool:
        """Asks the disk. Raises `OSError` if it does not say."""
        there = self._disk.bytes_free() >= self._free_bytes_min
        self._there_until_s = monotonic() + self._known_s if there else 0.0
        return there

    def was_there(self) -> bool:
        """Whether it said so a moment ago."""
        return monotonic() < self._there_until_s
