"""The id of a query, in its checkpoint: made by one master, whoever comes first.

The id names the producers of a query (`identity`), so all masters of a team must have the same.
Spark makes it at the first start, unless it is there: it looks, and then renames a file into its
place. On a local file system two masters that start at once can both do so, and go on with an id
each. So where the checkpoint is on one, the id is put there first, by a link, which only one gets.

On other file systems Spark's own way decides: they do not rename onto what is there.
"""

import contextlib
import json
import os
import uuid
from pathlib import Path
from urllib.parse import urlsplit


def claim_query_id(location: str) -> None:
    """Makes an id in a checkpoint that has none."""
    folder = local_folder(location)
    if folder is None or (folder / "metadata").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f".metadata.{uuid.uuid4()}.tmp"
    with made.open("w") as file:
        json.dump({"id": str(uuid.uuid4())}, file)
        file.flush()
        os.fsync(file.fileno())
    # Another one was faster, or there are no links here: then Spark makes it.
    with contextlib.suppress(OSError):
        (folder / "metadata").hardlink_to(made)
    made.unlink()


def local_folder(location: str) -> Path | None:
    """The folder of a location that is on this machine; None for any other."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file") or parts.netloc:
        return None
    return Path(parts.path)
