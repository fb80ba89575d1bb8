"""The id of a team's chain, in the checkpoint, which all masters share.

The first master creates it, together with the number of results partitions: a job's outcome has one
place, as long as the chain lives, even when the results topic grows. On a local file system a hard
link decides who was first; on others, renaming onto an existing file is refused.

Beside it lies a copy of a snapshot of each partition. Brokers forget positions of groups that were
not used for some days; a chain continues from any older snapshot that was true, and never without
one.
"""

import contextlib
import hashlib
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dovetail.kafka.client.client import Partition
from dovetail.teams.chains.snapshot import Stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "chain.json"
#: A snapshot as a group holds it.
Copy = dict[Partition, Stored]

#: Set in all our producer ids: brokers hand out small numbers, from 0 up.
_OURS = 1 << 62
_PARTITION_BITS = 20


@dataclass(frozen=True, slots=True)
class ChainId:
    """The chain of a team, as the checkpoint has it."""

    id: str
    results: int


def local_folder(location: str) -> Path | None:
    """The folder of a location that is on this machine; None for any other."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc:
        return None
    return Path(parts.path)


def producer_of(chain: str, number: int) -> int:
    """The producer id of a partition; all attempts at it share it."""
    digest = hashlib.blake2b(f"chain/{chain}".encode(), digest_size=8).digest()
    bits = int.from_bytes(digest, "big") % (1 << 62 - _PARTITION_BITS)
    return _OURS | bits << _PARTITION_BITS | number


def group_of(chain: str, number: int) -> str:
    """The group that holds the snapshots of a partition."""
    return f"dovetail-chain-{chain}-{number}"


def claim_chain(spark: "SparkSession | None", location: str, *, results: int) -> ChainId:
    """The chain of a checkpoint; one that is not there is created."""
    proposed = json.dumps(asdict(ChainId(uuid.uuid4().hex, results))).encode()
    folder = local_folder(location)
    stored = _claim_local(folder, proposed) if folder else _claim_remote(spark, location, proposed)
    return ChainId(**json.loads(stored))


def copy_of(spark: "SparkSession | None", location: str, number: int) -> Copy | None:
    """The snapshot of a partition that `keep_copy` kept; None if it never had one.

    What cannot be read is empty: there was a snapshot, and nobody knows which.
    """
    folder, name = local_folder(location), f"begun-{number}"
    if folder is not None:
        path = folder / name
        data = path.read_bytes() if path.exists() else None
    else:
        files, target = _remote(spark, f"{location}/{name}")
        data = _read_remote(files, target) if files.exists(target) else None
    if data is None:
        return None
    try:
        rows = json.loads(data)
        return {(str(row[0]), int(row[1])): (int(row[2]), str(row[3])) for row in rows}
    except (ValueError, TypeError, IndexError):
        return {}


def keep_copy(spark: "SparkSession | None", location: str, number: int, stored: Copy) -> None:
    """Keeps a snapshot of a partition: from here on, one that is lost is not begun anew."""
    rows = [[*place, *entry] for place, entry in stored.items()]
    data, name = json.dumps(rows).encode(), f"begun-{number}"
    folder = local_folder(location)
    if folder is not None:
        made = folder / f".{name}.{uuid.uuid4()}.tmp"
        made.write_bytes(data)
        made.replace(folder / name)
        return
    files, path = _remote(spark, f"{location}/{name}")
    stream = files.create(path, True)
    stream.write(bytearray(data))
    stream.close()


def _claim_local(folder: Path, proposed: bytes) -> bytes:
    target = folder / _FILE
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f".{_FILE}.{uuid.uuid4()}.tmp"
        with made.open("wb") as file:
            file.write(proposed)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            target.hardlink_to(made)
        made.unlink()
    return target.read_bytes()


def _claim_remote(spark: "SparkSession | None", location: str, proposed: bytes) -> bytes:
    files, target = _remote(spark, f"{location}/{_FILE}")
    if not files.exists(target):
        _, made = _remote(spark, f"{location}/.{_FILE}.{uuid.uuid4()}.tmp")
        stream = files.create(made, False)
        stream.write(bytearray(proposed))
        stream.close()
        # Whoever is second is refused, or told that it was not done.
        with contextlib.suppress(Exception):
            files.rename(made, target)
        files.delete(made, False)
    return _read_remote(files, target)


def _read_remote(files: Any, path: Any) -> bytes:
    stream = files.open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def _remote(spark: "SparkSession | None", location: str) -> tuple[Any, Any]:
    """Hadoop's file system for a location, and its path there."""
    assert spark is not None, "a location that is not local needs a session"
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(location)
    return path.getFileSystem(spark._jsc.hadoopConfiguration()), path
