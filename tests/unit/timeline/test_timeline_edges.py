"""What happens at the edges of a timeline: defects, foreign text, wrong arguments, wrong clocks."""

import pytest
from tests.unit.timeline.test_fake import seen_by

from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.engine.health import Condition
from dovetail.timeline.stores.memory import MemoryStore


async def test_a_defect_of_the_store_does_not_end_leasing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F26: an exception of any class delays leases, counts against storage, and is tried again."""
    async with fake_dovetail(timelines=["t"]) as d:
        seen = await seen_by(d)
        failed = 0

        async def fail(*args: object, **options: object) -> None:
            nonlocal failed
            failed += 1
            raise KeyError("planted")

        monkeypatch.setattr(MemoryStore, "lease", fail)
        await d.timeline("t").schedule(b"x")
        await d.advance("1m")
        assert failed > 3
        assert d._service.report().condition is Condition.DEGRADED

        monkeypatch.undo()
        await d.advance("2m")
        assert [message.body for message in seen] == [b"x"]
        assert d._service.report().condition is Condition.HEALTHY
