"""The draft of a backup: one command writes it, nobody else reads it, and it replaces nothing."""

import errno
import os
from pathlib import Path

import pytest

from dovetail.cli.saving.draft import drafted, publish
from dovetail.errors import Exists


def written(file: Path, content: bytes) -> None:
    with drafted(file) as (draft, out):
        out.write(content)
        out.flush()
        publish(draft, file)


def test_a_second_command_leaves_the_draft_of_the_first_alone(tmp_path: Path) -> None:
    """R9: it emptied it and removed it, and the first one failed, or named what was half there."""
    file = tmp_path / "node.tar"
    with drafted(file) as (draft, out):
        out.write(b"whole")
        out.flush()
        with pytest.raises(Exists, match="another command is writing"), drafted(file):
            pass
        assert draft.read_bytes() == b"whole"
        publish(draft, file)
    assert file.read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["node.tar"]


@pytest.mark.parametrize("planted", ["abandoned", "readable by all", "link", "broken link", "fifo"])
def test_what_lies_in_the_place_of_a_draft_is_not_written_to(tmp_path: Path, planted: str) -> None:
    """R9, R4: a backup holds login keys: it is its user's alone, and overwrites nobody's file."""
    file, part, other = (tmp_path / name for name in ("node.tar", "node.tar.part", "other"))
    other.write_bytes(b"precious")
    if planted == "link":
        part.symlink_to(other)
    elif planted == "broken link":
        part.symlink_to(tmp_path / "none")
    elif planted == "fifo":
        os.mkfifo(part)
    else:
        part.write_bytes(b"old")
        part.chmod(0o666 if planted == "readable by all" else 0o600)

    written(file, b"whole")
    assert not file.is_symlink()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"whole", 0o600)
    assert other.read_bytes() == b"precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node.tar", "other"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_takes_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """R9: FAT, SMB and some FUSE drivers have none; nor is a file there replaced."""

    def no_link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_link)
    written(tmp_path / "node.tar", b"whole")
    assert (tmp_path / "node.tar").read_bytes() == b"whole"
    with pytest.raises(FileExistsError):
        written(tmp_path / "node.tar", b"another")
    assert (tmp_path / "node.tar").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["node.tar"]
