"""The identity of a storage node's disk: made once, kept with its ledgers.

A disk that was replaced has another identity, so that nobody takes it for the one that held the
entries (see membership.py).
"""

import os
import uuid
from pathlib import Path

from crc32c import crc32c

from dovetail.errors import Damaged

_NAME = "identity"


def disk_identity(folder: Path) -> str:
    """The identity in the folder; a new one if the folder holds no ledgers. Raises `Damaged`."""
    path = folder / _NAME
    try:
        identity, checksum = path.read_text().split()
    except FileNotFoundError:
        if any(folder.glob("*.segment")):
            raise Damaged(
                f"{folder} holds ledgers but no file {_NAME!r}; restore it from a copy"
            ) from None
        return _make(path)
    except ValueError:
        identity, checksum = "", ""
    if checksum != f"{crc32c(identity.encode()):08x}":
        raise Damaged(f"{path} does not check; restore it from a copy of the folder")
    return identity


def _make(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = uuid.uuid4().hex
    draft = path.with_suffix(".draft")
    with draft.open("w") as file:
        file.write(f"{identity} {crc32c(identity.encode()):08x}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return identity
