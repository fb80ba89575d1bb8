"""For users' tests: a whole node in memory, whose time advances when the test says so.

    async with fake_dovetail() as d:
        await d.timeline("reminders").create()
        await d.timeline("reminders").schedule(b"call Ada", delay="2h")
        d.consumer("reminders")(handle)
        await d.advance("2h")          # `handle` has run when this returns

The client, the broker and the codec are the real ones. Only the store (`MemoryStores`), the
coordination and the link between them are in memory, and the clock stands still between two calls
of `advance`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry

from dovetail.background import Tasks
from dovetail.clock import ManualClock, SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.errors import DovetailError, Unavailable
from dovetail.timeline.client.client import Dovetail
from dovetail.timeline.client.link import Link, checked
from dovetail.timeline.client.moments import Duration, duration_ms
from dovetail.timeline.service import TimelineService
from dovetail.timeline.stores.memory import MemoryStores
from dovetail.wire.calls import ANSWER_START, Answer, Request, decode_answer, encode_answer

Answered = TypeVar("Answered", bound=Answer)

#: Time goes on in steps, so that what becomes due in between is handled in its order.
_STEPS_MAX: Final = 50
#: Turns of the loop without anything to do, after which everything is done.
_QUIET_TURNS: Final = 20
#: Longest wait for handlers, in real time.
_SETTLE_S_MAX: Final = 30.0


class _FakeLink:
    """Asks the service in this process; what travels is encoded, as between machines."""

    def __init__(self, service: TimelineService) -> None:
        self._service = service
        self._asking = Tasks()
        self._closed = False

    @property
    def address(self) -> str:
        return "in this process"

    def beside(self, call_ms_max: int) -> Link:
        return _FakeLink(self._service)

    def turn_away(self) -> None:
        """There is no other node."""

    def go_to(self, address: str) -> None:
        """There is no other node."""

    async def ask(
        self, message: Request, kind: type[Answered], *, changes: bool = True
    ) -> Answered:
        if self._closed:
            raise Unavailable("the link was closed by this side")
        _, read = checked(message, changes=changes)
        answer = await self._asking.start(
            self._service.answer(read), name="ask", expected=(DovetailError,)
        )
        data = b"".join(encode_answer(0, answer))
        decoded = decode_answer(kind, memoryview(data)[ANSWER_START:])
        assert isinstance(decoded, kind)
        return decoded

    async def close(self) -> None:
        self._closed = True
        await self._asking.stop()


class FakeDovetail(Dovetail):
    """A client with a node of its own, and a time of its own."""

    def __init__(self, service: TimelineService, clock: ManualClock) -> None:
        def make_link(call_ms_max: int, where: str) -> Link:
            return _FakeLink(service)

        super().__init__(make_link, client_id="test", clock=clock)
        self._service = service
        self._manual = clock

    @property
    def now_ms(self) -> int:
        """The time that it is, for the node and for the client."""
        return self._manual.wall_ms()

    async def advance(self, duration: Duration = 0) -> None:
        """Lets time go on, and returns when everything that is due by then has been handled."""
        left_ms = duration_ms(duration)
        await self.settle()
        step_ms = max(1, left_ms // _STEPS_MAX)
        while left_ms:
            self._manual.advance(min(step_ms, left_ms))
            left_ms -= min(step_ms, left_ms)
            await self._service.look_after()
            await self.settle()

    async def settle(self) -> None:
        """Returns when nothing happens any more at this time; handlers have ended."""
        quiet = 0
        async with asyncio.timeout(_SETTLE_S_MAX):
            while quiet < _QUIET_TURNS:
                for running in self._service.timelines.values():
                    running.wake()
                idle = all(consumer.idle for consumer in self.consumers)
                quiet = quiet + 1 if idle else 0
                await asyncio.sleep(0 if idle else 0.001)


@asynccontextmanager
async def fake_dovetail(*, timelines: Sequence[str] = ()) -> AsyncIterator[FakeDovetail]:
    """A client for tests; `timelines` are made with their default settings."""
    clock = ManualClock()
    with TemporaryDirectory(prefix="dovetail-fake-") as folder:
        coordinator = await EmbeddedCoordinator.open(
            Path(folder) / "coordination.sqlite", clock=SystemClock()
        )
        service = TimelineService(
            coordinator,
            MemoryStores(clock.wall_ms),
            node="fake",
            clock=clock,
            registry=CollectorRegistry(),
            tags={},
            drift_ms_max=100,
            rng=random.Random(0),  # noqa: S311 - a test should be the same each time
        )

        try:
            async with service, FakeDovetail(service, clock) as client:
                for name in timelines:
                    await client.timeline(name).create()
                yield client
        finally:
            await coordinator.close()
