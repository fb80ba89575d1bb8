"""Work whose task ends before it has begun."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.background import Tasks
from dovetail.console.nouns import overview
from dovetail.timeline.running import RunningTimeline


async def _unbegun(task: "asyncio.Task[Any]", *, steps: int) -> None:
    """Ends the task before its children have begun; a coroutine that is left over is an error."""
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()


async def test_a_timeline_that_stops_leaves_no_coroutine() -> None:
    """R5: what it was about to give back comes back when its lease ends."""
    timeline: Any = object.__new__(RunningTimeline)
    timeline.record, timeline._tasks = SimpleNamespace(name="t"), Tasks()
    timeline.consumers, timeline.loader = {}, SimpleNamespace(leave=lambda _: None)
    ended = SimpleNamespace(on_lease=lambda *_, **__: None)
    drift = SimpleNamespace(forget=lambda *_: None)
    timeline._context = SimpleNamespace(health=ended, on_consumers=lambda: None, drift=drift)
    consumer = SimpleNamespace(
        member=SimpleNamespace(id=1), fail=lambda _: None, outbox=[1], take_back=lambda: [1]
    )
    timeline.consumers[7] = consumer
    timeline.producers = {}
    timeline.close_session(7)
    (task,) = timeline._tasks._tasks
    await _unbegun(task, steps=0)


async def test_a_request_for_the_overview_that_ends_leaves_no_coroutine() -> None:
    """R5, U5: its five questions are asked at once, and none of them may have begun."""
    kafka, pipelines = SimpleNamespace(run=_answer), SimpleNamespace(list=None)
    desk: Any = SimpleNamespace(kafka=kafka, pipelines=pipelines)
    await _unbegun(asyncio.create_task(overview._ask(desk)), steps=1)


async def _answer(_: object) -> None:
    raise AssertionError
