"""The client's consumer against a broker whose answers the test chooses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dovetail.clock import SystemClock
from dovetail.errors import InvalidInput, NotFound, Unavailable, Uncertain
from dovetail.timeline import frames
from dovetail.timeline.client.consumer import Consumer
from dovetail.timeline.client.credit import Credit
from dovetail.timeline.client.message import Message
from dovetail.timeline.client.options import ConsumerOptions
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import Handle, Leased, MessageId, Release, Status, Version

DEADLINE_S = 60
LEASE_MS = 1_000


def lease(identity: int, *, left_ms: int = 60_000, version: int = 1) -> Leased:
    until_ms = SystemClock().wall_ms() + left_ms
    handle = Handle(MessageId(identity), Version(version))
    return Leased(handle.id, handle.version, 0, until_ms, 1, 0, 0, b"body", b"", None)


class Broker:
    """Pushes what the test puts into `pushes`, an error as an error; notes what it is asked."""

    def __init__(self) -> None:
        self.pushes: asyncio.Queue[Leased | Exception] = asyncio.Queue()
        self.held: list[Leased] = []
        self.opened = 0
        self.known: list[list[Handle]] = []
        self.deleted: list[Handle] = []
        self.released: list[Release] = []
        #: How many other consumers are idle, as the broker reports.
        self.idle = 0
        self.paused = 0
        self.asked: list[int] = []
        self.extending: Callable[[frames.Extend], Awaitable[frames.Statuses]] = all_extended
        #: Links on which a request for messages is outstanding.
        self.waiting: set[Line] = set()

    async def answer(self, line: "Line", message: Any) -> Any:
        if isinstance(message, frames.Open):
            self.opened += 1
            return frames.Opened(self.opened, TimelineConfig())
        if isinstance(message, frames.Held):
            assert not self.waiting, "a push may still come on the link of the session before"
            self.known.append(message.known)
            return frames.Pushed(self.held)
        if isinstance(message, frames.Consume):
            self.asked.append(message.limit)
            if message.session != self.opened:
                raise NotFound("no such session")
            pushed = await self.pushes.get()
            if isinstance(pushed, Exception):
                self.opened += 100  # No session that was opened before is known any more.
                raise pushed
            return frames.Pushed([pushed])
        if isinstance(message, frames.Delete):
            self.deleted += message.handles
            return frames.Statuses([Status.OK for _ in message.handles])
        if isinstance(message, frames.ReleaseAll):
            self.released += message.releases
            return frames.Statuses([Status.OK for _ in message.releases])
        if isinstance(message, frames.Extend):
            return await self.extending(message)
        if isinstance(message, frames.Report):
            signals = frames.Signals(0, 0, 0, [], 2, 2, "healthy", [], "", self.idle)
            return frames.Reported(signals, SystemClock().wall_ms())
        if isinstance(message, frames.Pause):
            self.paused += 1
            return frames.Done()
        raise Unavailable(f"{type(message).__name__} is of no interest here")


async def all_extended(message: frames.Extend) -> frames.Statuses:
    return frames.Statuses([Status.OK for _ in message.extensions])


class Line:
    """A link to the broker."""

    address = "here"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asking: set[asyncio.Task[Any]] = set()

    def beside(self, _: int) -> "Line":
        return Line(self._broker)

    async def ask(self, message: Any, kind: type[Any], *, changes: bool = True) -> Any:
        task = asyncio.create_task(self._broker.answer(self, message))
        self._asking.add(task)
        if isinstance(message, frames.Consume):
            self._broker.waiting.add(self)
        try:
            return await task
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                task.cancel()
                raise
            raise Unavailable("closed by this side") from None
        finally:
            self._asking.discard(task)
            if isinstance(message, frames.Consume) and not self._asking:
                self._broker.waiting.discard(self)

    def turn_away(self) -> None:
        raise AssertionError("there is no other one")

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()


@asynccontextmanager
async def consuming(
    broker: Broker, handler: Callable[[Message], Any], **options: Any
) -> AsyncIterator[Consumer]:
    given = ConsumerOptions(id="a", **{"lease_ms": 60_000, "concurrency": 4, **options})
    consumer = Consumer(
        "t", handler, given, connect=lambda _ms, _address: Line(broker), clock=SystemClock()
    )
    running = asyncio.create_task(consumer.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield consumer
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def test_a_session_that_begins_anew_takes_up_what_it_does_not_know() -> None:
    """B13: it names what is here, after the last push of the session before has come; so the store
    gives a new version to the rest, and each lease is handled once. One session is opened, however
    many requests find that the old one is over."""
    seen: list[Handle] = []
    go_on = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.handle)
        await go_on.wait()

    broker = Broker()
    async with consuming(broker, handle):
        broker.pushes.put_nowait(lease(7))
        await until(lambda: len(seen) == 1)
        broker.held = [lease(8, version=2)]
        for _ in range(3):
            broker.pushes.put_nowait(NotFound("session 1 is not open here"))
        await until(lambda: len(seen) == 2)
        go_on.set()
        await until(lambda: len(broker.deleted) == 2)
        await asyncio.sleep(0.2)  # Time for a second session, which nobody should open.
    assert [handle.id for handle in seen] == [7, 8]
    assert broker.known == [[], [seen[0]]]


async def test_an_attempt_of_the_process_before_is_not_taken_back() -> None:
    """B13, B22: it may have begun with what this one takes up and gives back unbegun. What was
    pushed to this process and lost on the way nobody began with."""
    seen: list[int] = []

    async def handle(message: Message) -> None:
        seen.append(message.id)
        await asyncio.Event().wait()

    broker = Broker()
    broker.held = [lease(6, version=2), lease(7, version=2)]
    async with consuming(broker, handle, concurrency=1, prefetch=8, stop_ms=50) as consumer:
        await until(lambda: bool(seen))
        broker.held = [lease(8, version=2)]
        broker.pushes.put_nowait(NotFound("session 1 is not open here"))
        await until(lambda: len(broker.known) == 2)
        broker.held = []
        await until(lambda: len(consumer._leases) == 3)
        consumer.stop()
        await until(lambda: len(broker.released) == 3)
    counted = {release.handle.id: release.counted for release in broker.released}
    assert counted == {6: True, 7: True, 8: False}


async def test_a_lost_lease_is_not_taken_up_again() -> None:
    """B13: an extension whose answer was lost may have come through, so the store may know the
    lease as ours for longer than we do. It is the same attempt, and is not begun twice."""
    seen: list[Message] = []

    async def handle(message: Message) -> None:
        seen.append(message)
        await asyncio.Event().wait()

    async def unanswered(message: frames.Extend) -> frames.Statuses:
        raise Uncertain("the answer was lost")

    broker = Broker()
    broker.extending = unanswered
    async with consuming(broker, handle, lease_ms=LEASE_MS):
        broker.pushes.put_nowait(lease(7, left_ms=LEASE_MS))
        await until(lambda: len(seen) == 1 and seen[0].lease_lost)
        await asyncio.sleep(LEASE_MS / 1000 / 2)  # Beyond the end that the consumer knew of.
        for _ in range(3):
            broker.pushes.put_nowait(NotFound("session 1 is not open here"))
        await until(lambda: len(broker.known) == 2)
    assert broker.known == [[], [seen[0].handle]]


async def test_a_handler_begins_with_enough_of_its_lease_left() -> None:
    """F18: a delivery that comes late is extended before its handler is called."""
    left_ms: list[int] = []

    async def handle(message: Message) -> None:
        left_ms.append(message.until_ms - SystemClock().wall_ms())

    broker = Broker()
    async with consuming(broker, handle, lease_ms=LEASE_MS):
        broker.pushes.put_nowait(lease(7, left_ms=LEASE_MS // 4))
        await until(lambda: len(broker.deleted) == 1)
    assert left_ms[0] >= LEASE_MS // 2


async def test_a_handler_does_not_begin_when_its_lease_cannot_be_extended() -> None:
    """F18: what came late and is another's by now, or cannot be asked for, goes back uncounted."""
    seen: list[Message] = []
    stale = [Status.STALE]

    async def refused(message: frames.Extend) -> frames.Statuses:
        if stale:
            return frames.Statuses([stale.pop() for _ in message.extensions])
        raise Unavailable("out of reach")

    broker = Broker()
    broker.extending = refused
    async with consuming(broker, seen.append, lease_ms=LEASE_MS):
        for identity in (7, 8):
            broker.pushes.put_nowait(lease(identity, left_ms=LEASE_MS // 4))
            await until(lambda count=identity - 6: len(broker.released) == count)  # type: ignore[misc]
    assert not seen
    assert [release.counted for release in broker.released] == [False, False]


async def test_a_lease_counts_as_lost_before_the_store_ends_it() -> None:
    """F18: a handler whose lease is not extended, because the broker does not answer at all, ends
    with a part of it left."""
    left_ms: list[int] = []

    async def handle(message: Message) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left_ms.append(message.until_ms - SystemClock().wall_ms())

    async def silent(message: frames.Extend) -> frames.Statuses:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    broker = Broker()
    broker.extending = silent
    async with consuming(broker, handle, lease_ms=2 * LEASE_MS):
        # It comes with little more than what a handler begins with.
        broker.pushes.put_nowait(lease(7, left_ms=int(1.2 * LEASE_MS)))
        await until(lambda: len(left_ms) == 1)
    assert left_ms[0] > 0.1 * LEASE_MS, left_ms


async def test_what_waits_for_a_handler_goes_back_while_another_consumer_is_idle() -> None:
    """B21, F30: uncounted; what is being handled stays, and nothing more is fetched ahead."""
    begun: list[int] = []

    async def handle(message: Message) -> None:
        begun.append(message.id)
        await asyncio.Event().wait()

    broker = Broker()
    async with consuming(broker, handle, concurrency=2):
        for identity in (1, 2, 3, 4):
            broker.pushes.put_nowait(lease(identity))
        await until(lambda: broker.pushes.empty() and len(begun) == 2)
        await asyncio.sleep(0.6)  # Nobody is idle, so what waits may wait.
        assert not broker.released
        broker.idle = 1
        await until(lambda: len(broker.released) == 2)
        await until(lambda: broker.paused > 0)
    assert begun == [1, 2]
    assert {release.handle.id for release in broker.released} == {3, 4}
    assert {release.counted for release in broker.released} == {False}


async def test_prefetch_can_be_switched_off() -> None:
    """B21, F30: no more is asked for than handlers can begin with, and a single free one is."""
    go_on = asyncio.Event()
    begun: list[int] = []

    async def handle(message: Message) -> None:
        begun.append(message.id)
        if message.id == 1:
            await go_on.wait()

    broker = Broker()
    async with consuming(broker, handle, concurrency=8, prefetch=0):
        for identity in range(1, 10):
            broker.pushes.put_nowait(lease(identity))
        await until(lambda: len(begun) == 9)
        await until(lambda: sum(broker.asked[:1]) <= 8)
        go_on.set()
    with pytest.raises(InvalidInput, match="prefetch -1"):
        ConsumerOptions(prefetch=-1)


def test_credit_is_never_more_than_there_is_room_for() -> None:
    """B21: with 8 handlers and nothing ahead, all requests together ask for 8."""

    async def run() -> None:
        credit = Credit(ConsumerOptions(concurrency=8, prefetch=0))
        taken = [credit.take(outstanding=number) for number in range(10)]
        assert sum(taken) == 8
        credit.give(1)
        assert credit.take(outstanding=0) == 0, "one is not worth a request at once"
        await credit.changed()
        assert credit.take(outstanding=0) == 1
        credit.fetch_ahead(False)
        assert credit.capacity == 8

    asyncio.run(run())
