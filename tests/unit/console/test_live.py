"""Live documents: sampled while somebody watches, and no slower for a slow reader."""

import asyncio
from typing import Any

import pytest

from dovetail.console import live as live_module
from dovetail.console.live import QUEUE_MAX, WATCHERS_MAX, Live, Watcher
from dovetail.console.web.errors import HttpRefusal
from dovetail.console.web.event_stream import EventStream
from dovetail.errors import Unavailable


class Audit:
    """A document that changes with every look."""

    def __init__(self) -> None:
        self.looks = 0
        self.away = False

    async def page(self, *, limit: int) -> dict[str, int]:
        self.looks += 1
        if self.away:
            raise Unavailable("away")
        return {"looks": self.looks}


class Desk:
    def __init__(self) -> None:
        self.audit = Audit()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    desk = Desk()
    kind = live_module._Kind(lambda given, _: given.audit.page(limit=1), 0.001)
    monkeypatch.setitem(live_module.KINDS, "audit", kind)
    return desk


def live_of(desk: Any) -> Live:
    return Live(desk)


async def next_event(watcher: Watcher) -> bytes:
    async with asyncio.timeout(60):
        event = await watcher.queue.get()
    assert event is not None
    return event


async def test_nothing_runs_without_a_watcher(desk: Desk) -> None:
    """U5: sampling begins with the first reader, is shared, and ends with the last."""
    live = live_of(desk)
    assert live.sampling == 0
    first = live.join(("audit",))
    await next_event(first)
    second = live.join(("audit",))
    assert live.sampling == 1
    await next_event(second)
    live.leave(first)
    await next_event(second)
    live.leave(second)
    assert live.sampling == 0
    looks = desk.audit.looks
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert desk.audit.looks <= looks + 1


async def test_a_slow_reader_is_dropped_and_holds_up_nobody(desk: Desk) -> None:
    """R3: its queue has a limit; another reader of the same document goes on."""
    live = live_of(desk)
    slow, quick = live.join(("audit",)), live.join(("audit",))
    async with asyncio.timeout(60):
        while not slow.dropped.is_set():
            await quick.queue.get()
    assert slow.queue.qsize() == QUEUE_MAX
    await next_event(quick)
    assert not quick.dropped.is_set()
    live.leave(slow)
    live.leave(quick)


async def test_trouble_is_told_and_ends(desk: Desk) -> None:
    """U7: what cannot be had is told with its watch, once, until it can be had again."""
    live = live_of(desk)
    desk.audit.away = True
    watcher = live.join(("audit",))
    assert b'event: trouble\ndata: {"watch":"audit","error":{"kind":"Unavailable"' in (
        await next_event(watcher)
    )
    desk.audit.away = False
    assert (await next_event(watcher)).startswith(b"event: audit\n")
    live.leave(watcher)


async def test_readers_have_a_limit_and_are_sent_away(desk: Desk) -> None:
    """R3: one more is refused; a stopping node lets nobody in and says bye."""
    live = live_of(desk)
    watchers = [live.join(("audit",)) for _ in range(WATCHERS_MAX)]
    with pytest.raises(HttpRefusal, match="close a page"):
        live.join(("audit",))
    live.leave(watchers.pop())
    watchers.append(live.join(("audit",)))
    live.stop()
    with pytest.raises(HttpRefusal):
        live.join(("audit",))
    events = [event async for event in watchers[0].events()]
    assert events[0].startswith(b"event: hello")
    assert events[-1] == b"event: bye\ndata: {}\n\n"
    for watcher in watchers:
        live.leave(watcher)


async def test_a_reader_that_does_not_read_is_let_go(desk: Desk) -> None:
    """R3: a connection that takes nothing ends, and its reader is forgotten."""
    live = live_of(desk)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 3:
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(live, live.join(("audit",)))
    async with asyncio.timeout(60):
        await stream({"type": "http"}, receive, send)
    assert live.sampling == 0
    assert len(sent) == 4


async def test_a_reader_that_goes_is_forgotten(desk: Desk) -> None:
    """U5: closing a page ends its sampling."""
    live = live_of(desk)

    async def send(message: Any) -> None:
        return

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    stream = EventStream(live, live.join(("audit",)))
    async with asyncio.timeout(60):
        await stream({"type": "http"}, receive, send)
    assert live.sampling == 0
