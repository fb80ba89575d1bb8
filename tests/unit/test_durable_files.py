"""Small files that survive a power cut."""

import os
from pathlib import Path

import pytest

from dovetail.durable_files import replace_file


def test_a_file_is_on_the_disk_before_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3, L6: a vote that was answered, or an identity, is there after a power cut: whole, under
    its name."""
    path, steps = tmp_path / "vote", list[str]()
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append(f"sync {name.name} of {name.stat().st_size}" if name.is_file() else "folder")
        fsync(descriptor)

    def noted_rename(draft: Path, target: Path) -> Path:
        steps.append(f"{draft.name} is {target.name}")
        return rename(draft, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    replace_file(path, b"whole")
    assert steps == ["sync vote.draft of 5", "vote.draft is vote", "folder"]
    assert path.read_bytes() == b"whole"
