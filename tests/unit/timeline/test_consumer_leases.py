"""The client's consumer against a broker whose answers the test chooses."""

import asyncio
from typing import Any

from dovetail.clock import SystemClock
from dovetail.errors import Unavailable
from dovetail.timeline import frames
from dovetail.timeline.client.consumer import Consumer
from dovetail.timeline.client.message import Message
from dovetail.timeline.client.options import ConsumerOptions
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import Leased, MessageId, Status, Version

DEADLINE_S = 20


def lease(identity: int) -> Leased:
    until_ms = SystemClock().wall_ms() + 60_000
    return Leased(MessageId(identity), Version(1), 0, until_ms, 1, 0, 0, b"body", b"", None)


class Broker:
    """Holds a lease of the consumer when its session begins, and pushes the same one later."""

    address = "here"

    def __init__(self, held: Leased, handled: asyncio.Event, *pushed: Leased) -> None:
        self._held, self._handled = held, handled
        self._pushed = [*pushed]
        self.deleted: list[int] = []
        self.told = asyncio.Event()

    def beside(self, _: int) -> "Broker":
        return self

    async def ask(self, message: Any, kind: type[Any], *, changes: bool = True) -> Any:
        if isinstance(message, frames.Open):
            return frames.Opened(1, TimelineConfig())
        if isinstance(message, frames.Held):
            return frames.Pushed([self._held])
        if isinstance(message, frames.Consume):
            await self._handled.wait()  # The lease that was taken up is done by now.
            if not self._pushed:
                await asyncio.get_running_loop().create_future()
            return frames.Pushed([self._pushed.pop(0)])
        if isinstance(message, frames.Delete):
            self.deleted += [handle.id for handle in message.handles]
            if len(self.deleted) == 2:
                self.told.set()
            return frames.Statuses([Status.OK for _ in message.handles])
        raise Unavailable(f"{type(message).__name__} is of no interest here")

    def turn_away(self) -> None:
        raise AssertionError("there is no other one")

    async def close(self) -> None:
        pass


async def test_a_lease_that_comes_twice_is_handled_once() -> None:
    """B13: a session that begins anew takes up what the consumer holds; a push of the session
    before may bring the same lease later, also when it is long done."""
    seen: list[int] = []
    handled = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.id)
        handled.set()

    broker = Broker(lease(7), handled, lease(7), lease(8))
    options = ConsumerOptions(id="a", lease_ms=60_000, concurrency=1)
    consumer = Consumer(
        "t", handle, options, connect=lambda _ms, _address: broker, clock=SystemClock()
    )
    running = asyncio.create_task(consumer.run())
    await asyncio.wait_for(broker.told.wait(), DEADLINE_S)
    running.cancel()
    await asyncio.wait([running])
    assert seen == [7, 8]
    assert broker.deleted == [7, 8]
