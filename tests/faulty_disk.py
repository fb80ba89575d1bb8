"""A disk in memory that keeps the promises of `storage/disk/files.py` and not one more.

`crash` leaves of each write that was not synced nothing, all of it, or some of its sectors, in
any mixture, as a power cut may; names that were not synced may come or go. Syncs and writes can
be made to fail. All chance comes from the generator that is passed in, so a seed replays.
"""

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.buffers import Buffer
from dovetail.storage.disk.files import File

#: The unit that a disk writes whole.
SECTOR_BYTES = 512


@dataclass(slots=True)
class _Content:
    """A file: what is surely on the disk, and what came after, in order."""

    durable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes]] = field(default_factory=list)
    #: Places that the disk does not give any more.
    unreadable: set[int] = field(default_factory=set)

    def apply(self, position: int, data: bytes) -> None:
        _paste(self.current, position, data)
        self.unsynced.append((position, data))

    def settle(self) -> None:
        self.durable = bytearray(self.current)
        self.unsynced.clear()

    def crash(self, rng: random.Random) -> None:
        """Keeps the durable bytes and a random part of the others."""
        for position, data in self.unsynced:
            fate = rng.random()
            if fate < 0.35:
                continue
            if fate < 0.55:
                _paste(self.durable, position, data)
                continue
            for at in range(0, len(data), SECTOR_BYTES):
                if rng.random() < 0.5:
                    _paste(self.durable, position + at, data[at : at + SECTOR_BYTES])
        self.current = bytearray(self.durable)
        self.unsynced.clear()


def _paste(target: bytearray, position: int, data: bytes) -> None:
    if len(target) < position:
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


class FaultyDisk:
    """The evil twin of `RealDisk`."""

    def __init__(self, rng: random.Random, *, bytes_free: int = 1 << 40) -> None:
        self._rng = rng
        self._files: dict[str, _Content] = {}
        self._durable_names: dict[str, _Content] = {}
        self.free = bytes_free
        #: The next this-many syncs work, then all fail; None: all work.
        self.syncs_until_failure: int | None = None
        #: As above for writes, which then stop half-way with "no space".
        self.writes_until_full: int | None = None
        #: After this many system calls the power is cut in the middle of one; None: never.
        self.calls_until_cut: int | None = None
        self.syncs = 0

    #: What the power cut raises, to unwind whoever was at work; then call `crash`.
    power_cut: type[Exception] = ConnectionAbortedError

    def tick(self) -> None:
        """Counts a system call; the power may go now."""
        if self.calls_until_cut is not None:
            self.calls_until_cut -= 1
            if self.calls_until_cut < 0:
                raise self.power_cut

    def names(self) -> list[str]:
        return list(self._files)

    def open(self, name: str, *, create: bool = False) -> File:
        if name not in self._files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", name)
            self._files[name] = _Content()
        return _FaultyFile(self, self._files[name])

    def remove(self, name: str) -> None:
        self.tick()
        self._files.pop(name, None)

    def sync_names(self) -> None:
        self.tick()
        self._durable_names = dict(self._files)

    def bytes_free(self) -> int:
        return self.free

    def crash(self) -> None:
        """Power cut: unsynced bytes and names are at the mercy of chance."""
        names: dict[str, _Content] = {}
        for name in sorted(self._files.keys() | self._durable_names.keys()):
            now, then = self._files.get(name), self._durable_names.get(name)
            kept = now if now is then or self._rng.random() < 0.5 else then
            if kept is not None:
                kept.crash(self._rng)
                names[name] = kept
        self._files = names
        self._durable_names = dict(names)
        self.syncs_until_failure = None
        self.writes_until_full = None

    def flip(self, name: str, position: int) -> None:
        """Damages one byte that was durable, as a failing disk does."""
        content = self._files[name]
        for data in (content.current, content.durable):
            data[position] ^= 0x40

    def spoil(self, name: str, position: int) -> None:
        """The disk says that it cannot read this byte."""
        self._files[name].unreadable.add(position)


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        try:
            self._disk.tick()
        except self._disk.power_cut:
            self._content.apply(position, data)
            raise
        if self._disk.writes_until_full is not None:
            if self._disk.writes_until_full <= 0:
                self._content.apply(position, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "no space left on device")
            self._disk.writes_until_full -= 1
        self._content.apply(position, data)
        return len(data)

    def read(self, position: int, length: int) -> bytes:
        if any(position <= bad < position + length for bad in self._content.unreadable):
            raise OSError(errno.EIO, "input/output error")
        return bytes(self._content.current[position : position + length])

    def sync(self) -> None:
        self._disk.tick()
        self._disk.syncs += 1
        if self._disk.syncs_until_failure is not None:
            if self._disk.syncs_until_failure <= 0:
                raise OSError(errno.EIO, "input/output error")
            self._disk.syncs_until_failure -= 1
        self._content.settle()

    def reserve(self, position: int, length: int) -> None:
        self._disk.tick()
        missing = position + length - len(self._content.current)
        if missing > 0:
            self._content.apply(len(self._content.current), bytes(missing))

    def truncate(self, length: int) -> None:
        self._disk.tick()
        del self._content.current[length:]
        del self._content.durable[length:]
        self._content.unsynced = [
            (position, data[: max(0, length - position)])
            for position, data in self._content.unsynced
            if position < length
        ]

    def size(self) -> int:
        return len(self._content.current)

    def close(self) -> None:
        pass
