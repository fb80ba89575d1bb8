"""The id of a query, in its checkpoint: the first master creates it, and all others use it.

The id names the producers of a query (`exactly_once`), so all masters of a team need the same one.
Spark creates it at the first start: it checks for the file, then renames one into place. On a local
file system two masters that start at once can both do that, and each goes on with its own id. So
in a local checkpoint we create the id first, by a hard link, which only one of them gets.

On other file systems Spark's own way is enough: they refuse to rename onto an existing file.
"""

import contextlib
import json
import os
import uuid
from pathlib import Path
from urllib.parse import urlsplit


def claim_query_id(location: str) -> None:
    """Creates the id of a checkpoint that has none."""
    folder = local_folder(location)
    if folder is None or (folder / "metadata").exists():
        return

    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f".metadata.{uuid.uuid4()}.tmp"
    with made.open("w") as file:
        json.dump({"id": str(uuid.uuid4())}, file)
        file.flush()
        os.fsync(file.fileno())

    # Another master was faster, or this file system has no links: then Spark creates it.
    with contextlib.suppress(OSError):
        (folder / "metadata").hardlink_to(made)
    made.unlink()


def local_folder(location: str) -> Path | None:
    """The folder of a location that is on this machine; None for any other."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc:
        return None
    return Path(parts.path)
