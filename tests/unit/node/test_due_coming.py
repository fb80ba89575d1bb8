"""Batches of a due topic on their way to its timeline: one is stored, the next one is split."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.clock import SystemClock
from dovetail.errors import InvalidBatch
from dovetail.node.due import topics
from dovetail.node.due.records import Split
from dovetail.node.due.topics import DueTopics
from dovetail.record_batch import NewRecord, build_batch, decode_batch, read_header
from dovetail.timeline.message import NewMessage

WAIT_S = 60.0


class Desk:
    """Due topics over a timeline that stores what it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log: Any = SimpleNamespace(topic=lambda name: SimpleNamespace(name=name, id="t"))
        self.due = DueTopics(log, SystemClock())
        self.partition: Any = object()
        self.steps: list[str] = []
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stored: dict[str, asyncio.Event] = {}
        monkeypatch.setattr(topics, "split", self._split)
        monkeypatch.setattr(DueTopics, "_timeline", self._timeline)
        monkeypatch.setattr(DueTopics, "_keep", self._keep)
        monkeypatch.setattr(DueTopics, "_note_stored", lambda *_: None)

    def send(self, name: str) -> "asyncio.Future[object]":
        """A batch that is too large to be split at once."""
        batch = memoryview(build_batch([NewRecord(0, name.encode(), bytes(20_000))]))
        self._stored[name] = asyncio.Event()
        found: Any = self.due.append(self.partition, "due", 0, batch, read_header(batch))
        return found  # type: ignore[no-any-return]

    def store(self, name: str) -> None:
        self._stored[name].set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not is_so():
                self._news.clear()
                await self._news.wait()

    def _note(self, step: str) -> None:
        self.steps.append(step)
        self._news.set()

    def _split(self, batch: memoryview, header: Any, **_: object) -> Split:
        name = (next(decode_batch(batch)).key or b"").decode()
        self._loop.call_soon_threadsafe(self._note, f"split {name}")
        if name == "wrong":
            raise InvalidBatch("not a time")
        return Split(None, header, [NewMessage(0, name.encode())])

    async def _timeline(self, *_: object) -> None:
        pass

    async def _keep(self, _: object, number: int, header: object, waiting: Any) -> None:
        name = waiting[0].body.decode()
        self._note(f"storing {name}")
        await self._stored[name].wait()
        self._note(f"stored {name}")


async def test_the_next_batch_is_split_while_one_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """K11: neither the timeline nor the processor waits; the third batch is not split yet, so that
    not all that comes is held in memory twice."""
    desk = Desk(monkeypatch)
    sent = [desk.send(name) for name in ("first", "other", "third")]
    await desk.until(lambda: "split other" in desk.steps)
    assert desk.steps == ["split first", "storing first", "split other"]

    desk.store("first")
    await desk.until(lambda: "split third" in desk.steps)
    assert desk.steps[3:] == ["stored first", "storing other", "split third"]
    desk.store("other")
    desk.store("third")
    await asyncio.wait_for(asyncio.gather(*sent), WAIT_S)
    assert desk.steps[-2:] == ["storing third", "stored third"]


async def test_nobody_overtakes_behind_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """K11: what comes after a batch that was refused, or whose client went away before its turn,
    is still stored behind what came before it."""
    desk = Desk(monkeypatch)
    first, refused, gone, last = (desk.send(name) for name in ("first", "wrong", "leave", "third"))
    gone.cancel()
    await desk.until(lambda: "split wrong" in desk.steps)
    await asyncio.wait([gone], timeout=WAIT_S)
    assert not refused.done()
    assert not last.done()

    desk.store("first")
    desk.store("third")
    await asyncio.wait_for(last, WAIT_S)
    with pytest.raises(InvalidBatch):
        await refused
    await first
    wanted = ["storing first", "stored first", "storing third", "stored third"]
    assert [step for step in desk.steps if step.startswith("stor")] == wanted
