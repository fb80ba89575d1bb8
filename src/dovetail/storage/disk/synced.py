"""A note beside the segments: up to where the newest one is certainly on disk.

Reserved space reads as zeros. So a range of zeros over the last group *and* its mark (frame.py)
looks like a segment that ends before them, and a newest segment that is gone looks like one that
never existed. The note lies in its own file and tells the difference: whatever fails its checksum
before the noted position was once there, so it is damage.

    file = magic, segment, position, checksum                                           24 bytes

It is written with every mark, when a segment is created, and at a start. It stays true: nothing
before the position is ever cut. So an old, torn or missing note says less but never anything wrong,
and a note that cannot be written is skipped.
"""

import struct
from contextlib import suppress
from typing import NamedTuple

from crc32c import crc32c

from dovetail.storage.disk.files import Disk, Salvage

SYNCED_NAME = "synced"
_NOTE = struct.Struct("<8sIQI")
_MAGIC = b"DVTLSYN1"


class Synced(NamedTuple):
    """The newest segment, and up to where it was on the disk when that was noted."""

    segment: int
    position: int

    def position_in(self, segment: int) -> int:
        """Up to where this segment was on the disk; 0 if nothing was noted of it."""
        return self.position if segment == self.segment else 0


def note_synced(disk: Disk, synced: Synced) -> None:
    """Notes it, if the disk can take that now."""
    note = _NOTE.pack(_MAGIC, *synced, 0)
    with suppress(OSError):  # The note before it stays true.
        is_new = SYNCED_NAME not in disk.names()
        file = disk.open(SYNCED_NAME, create=True)
        try:
            file.write(0, [_NOTE.pack(_MAGIC, *synced, crc32c(note[:-4]))])
            file.sync()
        finally:
            file.close()
        if is_new:
            disk.sync_names()


def read_synced(disk: Disk) -> Synced:
    """What was noted last, or of segment 0, which does not exist, if nothing can be read."""
    if SYNCED_NAME not in disk.names():
        return Synced(0, 0)
    file = disk.open(SYNCED_NAME)
    try:
        data = Salvage(file).read(0, _NOTE.size)
    finally:
        file.close()
    if len(data) < _NOTE.size:
        return Synced(0, 0)
    magic, segment, position, checksum = _NOTE.unpack(data)
    if magic != _MAGIC or checksum != crc32c(data[:-4]):
        return Synced(0, 0)
    return Synced(segment, position)
