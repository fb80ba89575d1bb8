"""A timeline whose file cannot be opened: said, and opened when it can be."""

import asyncio
from pathlib import Path

import pytest
from tests.process.timeline.test_lost_coordination import bodies, lone_node, schedule

from dovetail.errors import Unavailable
from dovetail.timeline import connect, service

WAIT_S = 60.0


async def test_a_timeline_that_cannot_be_opened_is_told_and_opened_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B18, R5, U6: `/readyz` says so and stays 200: the others are served; no restart is needed."""
    monkeypatch.setattr(service, "UPKEEP_MS", 50)
    async with lone_node(tmp_path) as node:
        await schedule(node, "bad")
        await schedule(node, "good")
    path = tmp_path / "timelines" / "0000000001.sqlite"
    whole = path.read_bytes()
    path.write_bytes(b"no database" + whole[11:])
    copied = path.with_name("0000000001 (1).sqlite")
    copied.write_bytes(whole)

    async with lone_node(tmp_path) as node:
        assert node.ready() == (True, [])
        (reason,) = node.unwell()
        assert "'bad' cannot be opened" in reason
        assert await bodies(node, "good") == [b"good"]
        async with connect(node.endpoints.kafka) as client:
            with pytest.raises(Unavailable, match="cannot be opened here"):
                await client.timeline("bad").peek()

        path.write_bytes(whole)
        async with asyncio.timeout(WAIT_S):
            while node.unwell():
                await asyncio.sleep(0.02)
        assert await bodies(node, "bad") == [b"bad"]
    assert copied.read_bytes() == whole, "an operator's copy is nobody's to remove"
