"""What names the chain of a team: an id in the checkpoint, which all masters share.

The first master creates it, together with the number of results partitions: a job's outcome has one
place, as long as the chain lives, also when the results topic grows. On a local file system a hard
link decides who was first; on others, renaming onto a file that exists is refused.
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE = "chain.json"
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


def has_begun(spark: "SparkSession | None", location: str, number: int) -> bool:
    """Whether the partition had a snapshot once, as `note_begun` noted."""
    folder = local_folder(location)
    if folder is not None:
        return (folder / f"begun-{number}").exists()
    files, path = _remote(spark, f"{location}/begun-{number}")
    return bool(files.exists(path))


def note_begun(spark: "SparkSession | None", location: str, number: int) -> None:
    """Notes that a partition has a snapshot: from here on, a lost one is not begun anew."""
    folder = local_folder(location)
    if folder is not None:
        (folder / f"begun-{number}").touch()
        return
    files, path = _remote(spark, f"{location}/begun-{number}")
    files.create(path, True).close()


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
    stream = files.open(target)
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
