"""Files at the lowest level: write, sync, read.

`Disk` is a folder of files. Promise: what was written before `sync` returned is there after a power
cut; what was not synced may be there, in part, or not at all. A name is durable after `sync_names`.
Errors of the system pass through as `OSError`; the layers above interpret them.

`RealDisk` is the folder; `FaultyDisk` in the tests keeps exactly these promises and no more.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dovetail.buffers import Buffer
from dovetail.durable_files import sync_folder

#: Linux takes at most this many buffers in one writev.
IOV_MAX = 1024

#: What the system says when there is no room.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

#: What it says when this process, or the machine, has too much open; that passes.
PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)

#: What a disk fails to read is this much at least.
SECTOR_BYTES = 4096


class File(Protocol):
    """One open file."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Writes all buffers one after another from `position`; returns the bytes written."""
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def sync(self) -> None:
        """Makes what was written durable."""
        ...

    def reserve(self, position: int, length: int) -> None:
        """Takes room on the disk ahead of writing; the room reads as zeros."""
        ...

    def truncate(self, length: int) -> None:
        """Cuts the file."""
        ...

    def size(self) -> int:
        """Bytes in the file, reserved room included."""
        ...

    def close(self) -> None:
        """Gives the handle back; syncs nothing."""
        ...


class Disk(Protocol):
    """A folder of files."""

    def names(self) -> list[str]:
        """All files, in no order."""
        ...

    def open(self, name: str, *, create: bool = False) -> File:
        """Opens a file for reading and writing."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file; no error if it is gone."""
        ...

    def sync_names(self) -> None:
        """Makes created and removed names durable."""
        ...

    def bytes_free(self) -> int:
        """Room left on the disk."""
        ...


class RealFile:
    """A file by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, position: int, buffers: Sequence[Buffer]) -> int:
        start = position
        for at in range(0, len(buffers), IOV_MAX):
            chunk = buffers[at : at + IOV_MAX]
            wanted = sum(map(_length, chunk))
            written = os.pwritev(self._descriptor, chunk, position)
            if written < wanted:  # A short write: the rest one by one, so that its error shows.
                rest = memoryview(b"".join(chunk))[written:]
                while rest:
                    step = os.pwrite(self._descriptor, rest, position + wanted - len(rest))
                    rest = rest[step:]
            position += wanted
        return position - start

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        while len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def reserve(self, position: int, length: int) -> None:
        os.posix_fallocate(self._descriptor, position, length)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)


class RealDisk:
    """A folder of the file system."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder

    def names(self) -> list[str]:
        return os.listdir(self._folder)  # noqa: PTH208 - names, not paths

    def open(self, name: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(self._folder / name, flags, 0o600))

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def sync_names(self) -> None:
        sync_folder(self._folder)

    def bytes_free(self) -> int:
        found = os.statvfs(self._folder)
        return found.f_bavail * found.f_frsize


class Salvage:
    """Reads a file of which the disk may not give all: what it does not is filled with 0xFF.

    No record looks like that, and no room that was never written to: it reads as damage.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        #: Whether something could not be read.
        self.failed = False

    def read(self, position: int, length: int) -> bytes:
        """As `File.read`; errors other than of the disk itself pass through."""
        try:
            return self._file.read(position, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        self.failed = True
        if length <= SECTOR_BYTES:
            return b"\xff" * max(0, min(length, self.size() - position))
        end = position + length
        starts = range(position, end, SECTOR_BYTES)
        return b"".join(self.read(at, min(SECTOR_BYTES, end - at)) for at in starts)

    def size(self) -> int:
        """As `File.size`."""
        return self._file.size()


def _length(buffer: Buffer) -> int:
    return len(buffer)
