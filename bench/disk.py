"""What the disk does without us: the raw limits that figures are held against."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.run import percentile

_CHUNK_BYTES = 1024 * 1024


@contextmanager
def _new_file(folder: Path) -> Iterator[int]:
    """A file that stays until the folder goes, as a log's files do; see `reuse_memory`."""
    descriptor, _ = tempfile.mkstemp(prefix="raw-limit-", dir=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def reuse_memory(folder: Path, *, total_bytes: int) -> None:
    """Writes a file and removes it, so that what is written next gets its pages of memory.

    On a virtual machine whose host takes unused memory back, a page that was not in use lately
    takes data at a tenth of the speed (1 to 2 s a gigabyte instead of 0.2). That decides figures
    by the gigabyte, for us and for a plain loop alike, so both are measured with and without.
    """
    chunk = bytes(8 * _CHUNK_BYTES)
    descriptor, name = tempfile.mkstemp(prefix="memory-", dir=folder)
    try:
        for _ in range(total_bytes // len(chunk)):
            os.write(descriptor, chunk)
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
        Path(name).unlink()


def write_and_sync_rate(folder: Path, *, total_bytes: int) -> float:
    """Bytes a second of a plain loop: write 1 MiB to the end of a new file, sync, repeat."""
    chunk = os.urandom(_CHUNK_BYTES)
    with _new_file(folder) as descriptor:
        started = time.perf_counter()
        for _ in range(total_bytes // _CHUNK_BYTES):
            os.write(descriptor, chunk)
            os.fdatasync(descriptor)
        return total_bytes / (time.perf_counter() - started)


def sync_ms(folder: Path, *, times: int = 200) -> float:
    """Median milliseconds to append 100 bytes and sync them."""
    found = []
    with _new_file(folder) as descriptor:
        for _ in range(times):
            started = time.perf_counter()
            os.write(descriptor, b"x" * 100)
            os.fdatasync(descriptor)
            found.append((time.perf_counter() - started) * 1000)
    return percentile(found, 50)


def evict(folder: Path) -> None:
    """Drops the system's copies of all files below, so that they are read from the disk again."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
