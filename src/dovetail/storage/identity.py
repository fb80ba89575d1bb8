"""The identity of a storage node's disk: made once, kept with its ledgers.

A storage node that lost its disk must not return under its old number: it would answer "not here"
for entries that it once acknowledged, and a recovery would believe it. So the number is bound to
the disk's identity for good. Another disk is refused and needs another number.
"""

import fcntl
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from crc32c import crc32c

from dovetail.coordination import ABSENT, Coordinator, Put, Unchanged
from dovetail.coordination.mirror import NumberedMirror
from dovetail.durable_files import replace_file
from dovetail.errors import Damaged, InvalidSetting, Unavailable

_NAME = "identity"

#: The identity of the disk behind each storage node; stays for good.
STORAGE = "/storage/"


async def bind_disk(
    coordinator: Coordinator, node_id: int, identity: str, *, holds_ledgers: bool
) -> None:
    """Binds a storage node's number to its disk.

    Raises `InvalidSetting` for another disk than the one that has this number, `Damaged` if the
    coordination service does not know a disk that holds ledgers: it is not the one that belongs
    to them, and would have them swept away as nobody's.
    """
    key = f"{STORAGE}{node_id:06d}"
    found = await coordinator.get(key)
    if found is None and holds_ledgers:
        raise Damaged(
            f"the data folder holds ledgers of storage node {node_id}, but the coordination "
            "service does not know that node: it lost its state, or it is another cluster's. "
            "Restore it from a copy; to give the ledgers up, move the folder 'ledgers' away"
        )
    if found is None:
        await coordinator.transact(
            [Put(key, identity.encode())], conditions=[Unchanged(key, ABSENT)]
        )
        found = await coordinator.get(key)
    if found is None or found.value.decode() != identity:
        raise InvalidSetting(
            f"storage node {node_id} is bound to another disk than the one in this data folder; "
            "give this node a number of its own (node.node_id)"
        )


class Disks(NumberedMirror[str]):
    """The storage nodes that ever joined, with the identities of their disks, as last seen."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(coordinator, STORAGE, bytes.decode)

    def numbers(self) -> frozenset[int]:
        return frozenset(self.values)

    def identity(self, number: int) -> str | None:
        """Who must answer for this number; None if it never joined."""
        return self.values.get(number)


def lock_folder(folder: Path) -> Callable[[], None]:
    """Locks the ledgers for this process; call the result to unlock them.

    Two processes would cut each other's newest segment. Raises `Unavailable` if another has it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise Unavailable(
            f"{folder} is in use by another process; stop that process, or give this node a data "
            "folder of its own (node.data_dir)"
        ) from error
    return lambda: os.close(descriptor)


def holds_ledgers(folder: Path) -> bool:
    """Whether anything was ever stored here."""
    return any(folder.glob("*.segment"))


def disk_identity(folder: Path) -> str:
    """The identity in the folder; a new one if the folder holds no ledgers. Raises `Damaged`."""
    path = folder / _NAME
    try:
        identity, checksum = path.read_text().split()
    except FileNotFoundError:
        if holds_ledgers(folder):
            raise Damaged(
                f"{folder} holds ledgers but no file {_NAME!r}; restore it from a copy"
            ) from None
        return _make(path)
    except ValueError:
        identity, checksum = "", ""
    if checksum != f"{crc32c(identity.encode()):08x}":
        raise Damaged(f"{path} fails its checksum; restore it from a copy of the folder")
    return identity


def _make(path: Path) -> str:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    identity = uuid.uuid4().hex
    replace_file(path, f"{identity} {crc32c(identity.encode()):08x}\n".encode())
    return identity
