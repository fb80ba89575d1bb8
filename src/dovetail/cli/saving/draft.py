"""The file that a backup is written to until it is complete: `FILE.part`.

Promise: one command at a time writes it; only its user can read it, whatever lay there before; it
gets its name only if no file has that name by then.

Survives: a command that was killed leaves its draft behind, and the next one removes it. A lock
tells the two cases apart; on a file system without locks the later command wins, and the earlier
one fails.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dovetail.errors import Exists

#: What a file system without hard links answers: EPERM is FAT's, ENOSYS that of some FUSE drivers.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def drafted(file: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new, empty draft of `file`, and its path; removed at the end.

    Raises `Exists` while another command writes it, `OSError`.
    """
    path = file.with_name(file.name + ".part")
    with _opened(path, file) as written:
        try:
            yield path, written
        finally:
            path.unlink(missing_ok=True)


def publish(draft: Path, file: Path) -> None:
    """Gives the draft its name. Raises `FileExistsError` if that is taken, `OSError`."""
    try:
        os.link(draft, file)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without links the name is taken first, by an empty file.
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        draft.replace(file)


def _opened(path: Path, file: Path) -> BinaryIO:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            _remove_abandoned(path, file)
            continue
        if _lock(descriptor) and _is_at(descriptor, path):
            return os.fdopen(descriptor, "wb")
        # Another command took it for abandoned in the moment before the lock.
        os.close(descriptor)


def _remove_abandoned(path: Path, file: Path) -> None:
    """Removes what is in the way. Raises `Exists` if a command writes it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        path.unlink(missing_ok=True)  # A symbolic link: what it names is somebody's.
        return

    try:
        if not _lock(descriptor):
            raise Exists(f"another command is writing a backup to {file}; wait until it has ended")
        if _is_at(descriptor, path):
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether nobody else has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # A file system without locks.
        pass
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
