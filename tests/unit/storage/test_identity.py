"""A storage node's number belongs to its disk."""

from pathlib import Path

import pytest

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.errors import Damaged, InvalidSetting
from dovetail.storage.identity import bind_disk, disk_identity, holds_ledgers


async def test_another_disk_under_the_same_number_is_refused(tmp_path: Path) -> None:
    """L10: it would deny entries that the lost disk acknowledged."""
    async with await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock()) as store:
        first = disk_identity(tmp_path / "first")
        await bind_disk(store, 1, first, holds_ledgers=False)
        assert disk_identity(tmp_path / "first") == first
        await bind_disk(store, 1, first, holds_ledgers=True)
        second = disk_identity(tmp_path / "second")
        with pytest.raises(InvalidSetting, match="another disk"):
            await bind_disk(store, 1, second, holds_ledgers=False)
        await bind_disk(store, 2, second, holds_ledgers=False)


async def test_ledgers_that_coordination_does_not_know_are_not_taken_over(tmp_path: Path) -> None:
    """L6: they belong to another, or to a coordination file that was lost."""
    async with await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock()) as store:
        with pytest.raises(Damaged, match="Restore it from a copy"):
            await bind_disk(store, 1, "some-disk", holds_ledgers=True)


def test_an_identity_that_was_lost_or_changed_is_noticed(tmp_path: Path) -> None:
    """L6: metadata files carry a checksum too."""
    disk_identity(tmp_path)
    (tmp_path / "0000000001.segment").write_bytes(b"x")
    assert holds_ledgers(tmp_path)
    path = tmp_path / "identity"
    good = path.read_text()
    path.write_text(good.replace(good[0], "z", 1))
    with pytest.raises(Damaged, match="fails its checksum"):
        disk_identity(tmp_path)
    path.unlink()
    with pytest.raises(Damaged, match="no file"):
        disk_identity(tmp_path)
