"""Whether a disk is above its reserve."""

from typing import cast

import pytest

from dovetail.storage.disk import room as module
from dovetail.storage.disk.files import Disk
from dovetail.storage.disk.options import StoreSettings
from dovetail.storage.disk.room import Room


class _Disk:
    free = 100

    def bytes_free(self) -> int:
        return self.free


def test_room_is_remembered_and_its_want_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is asked at every append, so that writes go on as soon as it has room."""
    now_s = 50.0
    monkeypatch.setattr(module, "monotonic", lambda: now_s)
    disk = _Disk()
    room = Room(cast(Disk, disk), StoreSettings(disk_free_bytes_min=10, room_known_s=0.02))
    assert not room.was_there()
    assert room.is_there()
    assert room.was_there()

    disk.free = 9
    assert room.was_there()
    now_s += 0.021
    assert not room.was_there()
    assert not room.is_there()
    assert not room.was_there()
    disk.free = 10
    assert room.is_there()


def test_nothing_is_remembered_by_default() -> None:
    """A store that is not told otherwise asks before every group."""
    room = Room(cast(Disk, _Disk()), StoreSettings(disk_free_bytes_min=10))
    assert room.is_there()
    assert not room.was_there()
