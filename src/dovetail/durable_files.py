"""Small files that survive a power cut: written whole, synced, and only then given their name."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replaces the file: after a crash at any line it is the old one or the new one, and whole.

    It is there after a power cut when this returns. Raises `OSError`.
    """
    draft = path.with_name(path.name + ".draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes created, renamed and removed names in the folder durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
