"""Masters that wait: who takes part in the election, and when."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stream.memory_cluster import MemoryCluster

from dovetail.teams import Pipeline, Team, master
from dovetail.teams.master import Master


async def test_a_standby_is_elected_before_it_is_warm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: on a full Spark cluster its warm-up waits for the slots of the master that is gone."""
    slots, leads = threading.Event(), asyncio.Event()

    async def lead(self: Master, term: int, lost: asyncio.Event) -> None:
        leads.set()
        await lost.wait()

    monkeypatch.setattr(master, "warm_up", lambda _spark: slots.wait(30))
    monkeypatch.setattr(Master, "_lead", lead)
    events: list[str] = []
    spark: Any = None
    async with MemoryCluster(tmp_path) as cluster:
        one = Master(
            Pipeline("p", Team("t", dict)),
            spark,
            cluster.member("a"),
            bootstrap="nowhere:1",
            checkpoint="",
            on_event=lambda event, _term: events.append(event),
        )
        running = asyncio.ensure_future(one.run())
        try:
            async with asyncio.timeout(20):
                await leads.wait()
        finally:
            slots.set()
            running.cancel()
            await asyncio.wait([running])
    assert events[:1] == ["standby"]
    assert "warm" not in events
