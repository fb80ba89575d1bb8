"""A node whose coordination file was lost, or is an older copy, deletes no timeline."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dovetail.errors import Damaged
from dovetail.node import Node
from dovetail.settings import load_settings
from dovetail.settings.given import Flag
from dovetail.timeline import connect


@asynccontextmanager
async def lone_node(folder: Path) -> AsyncIterator[Node]:
    given = {"node.data_dir": folder, "kafka.port": 0, "http.enabled": False}
    flags = [Flag(name, value, name) for name, value in given.items()]
    async with Node(load_settings(flags=flags, environment={}, folder=folder)) as node:
        yield node


async def schedule(node: Node, name: str) -> None:
    async with connect(node.endpoints.kafka) as client:
        await client.timeline(name).create()
        await client.timeline(name).schedule(name.encode(), delay="1d")


async def bodies(node: Node, name: str) -> list[bytes]:
    async with connect(node.endpoints.kafka) as client:
        return [shown.body for shown in await client.timeline(name).peek()]


def coordination_of(folder: Path) -> list[Path]:
    return list(folder.glob("coordination.sqlite*"))


async def test_timelines_outlive_a_coordination_file_that_is_lost(tmp_path: Path) -> None:
    """B18, B20, L6: the node refuses to start, also when its ledgers were given up."""
    data, kept = tmp_path / "data", tmp_path / "kept"
    kept.mkdir()
    async with lone_node(data) as node:
        await schedule(node, "t")
    for path in coordination_of(data):
        shutil.move(path, kept)
    with pytest.raises(Damaged, match="move the folder 'ledgers' away"):
        async with lone_node(data):
            pass
    shutil.move(data / "ledgers", kept)
    for _ in range(2):
        with pytest.raises(Damaged, match="holds timeline number 1"):
            async with lone_node(data):
                pass

    shutil.rmtree(data / "ledgers")
    for path in coordination_of(data):
        path.unlink()
    for path in kept.iterdir():
        shutil.move(path, data)
    async with lone_node(data) as node:
        assert await bodies(node, "t") == [b"t"]


async def test_timelines_outlive_an_older_copy_of_the_coordination_file(tmp_path: Path) -> None:
    """B18, B20, L6: it does not know the newer one; nothing is deleted, and no number is given a
    second time, which would mix the messages of two."""
    data, older, newer = (tmp_path / name for name in ("data", "older", "newer"))
    async with lone_node(data) as node:
        await schedule(node, "first")
        async with connect(node.endpoints.kafka) as client:
            await client.timeline("gone").create()
            await client.timeline("gone").delete()
    for folder in (older, newer):
        folder.mkdir()
    for path in coordination_of(data):
        shutil.copy(path, older)
    async with lone_node(data) as node:
        await schedule(node, "second")
    for path in coordination_of(data):
        shutil.move(path, newer)
    for path in older.iterdir():
        shutil.copy(path, data)
    with pytest.raises(Damaged, match="given numbers up to 2 only"):
        async with lone_node(data):
            pass

    for path in newer.iterdir():
        shutil.copy(path, data)
    async with lone_node(data) as node:
        assert [await bodies(node, name) for name in ("first", "second")] == [
            [b"first"],
            [b"second"],
        ]
