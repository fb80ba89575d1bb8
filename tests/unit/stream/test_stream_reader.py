"""The robust reader: reconnects, and a seek that nothing overtakes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from dovetail.election import Position
from dovetail.errors import Unavailable
from dovetail.stream import Event, RobustStreamHandler, StreamMetrics


class ScriptedSource:
    """Hands out one batch in each reading, and can do something right before it."""

    name = "scripted"

    def __init__(self) -> None:
        self.opened: list[Position] = []
        self.third = asyncio.Event()
        self.before_first_batch = lambda: None
        self.failures = 0

    async def beginning(self) -> Position:
        return {0: 0}

    async def end(self) -> Position:
        return {0: 0}

    async def close(self) -> None:
        return

    @asynccontextmanager
    async def read(self, position: Position) -> AsyncIterator[AsyncIterator[Sequence[Event]]]:
        self.opened.append(dict(position))
        if self.failures:
            self.failures -= 1
            raise Unavailable("not now")
        yield self._batches(len(self.opened))

    async def _batches(self, number: int) -> AsyncIterator[Sequence[Event]]:
        if number == 1:
            self.before_first_batch()
            yield [Event(0, offset, b"stale") for offset in range(150, 160)]
        self.third.set()
        await asyncio.Event().wait()


class Receiver:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.alive: list[bool] = []

    async def on_events(self, events: Sequence[Event], generation: int) -> None:
        return

    def on_source(self, *, alive: bool) -> None:
        self.alive.append(alive)


@pytest.mark.parametrize("turns", range(6))
async def test_a_seek_is_not_moved_by_what_was_read_before(turns: int) -> None:
    """S9: however the seek and the last batch interleave, reading goes on where it was sought."""
    source, loop = ScriptedSource(), asyncio.get_running_loop()
    handler = RobustStreamHandler(source, StreamMetrics())

    def seek_after(left: int) -> None:
        if left:
            loop.call_soon(seek_after, left - 1)
        else:
            handler.seek({0: 100}, 2)

    source.before_first_batch = lambda: seek_after(turns)
    handler.seek({0: 150}, 1)
    running = asyncio.create_task(handler.run(Receiver()))
    async with asyncio.timeout(60):
        while len(source.opened) < 2:
            await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert source.opened == [{0: 150}, {0: 100}]


async def test_a_source_that_fails_is_opened_again_and_again() -> None:
    """S1: with a pause, and the receiver knows."""
    source, receiver = ScriptedSource(), Receiver()
    source.failures = 3
    handler = RobustStreamHandler(source, StreamMetrics())
    handler.seek({0: 7}, 1)
    running = asyncio.create_task(handler.run(receiver))
    async with asyncio.timeout(60):
        await source.third.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert source.opened == [{0: 7}] * 4
    assert receiver.alive == [False, False, False, True]
