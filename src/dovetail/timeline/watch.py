"""Notices what other brokers change in the store of the timelines that this one serves.

A broker notifies the others when it stores something that is due soon and, less urgently, when
something has changed. So a broker whose consumers wait need not poll each timeline: an idle
timeline costs the store nothing, and all of them together one look in `LOOK_MS` (F63).

A missed notification only delays: if its broker died before it sent one, the next look finds the
change. While the broker cannot listen to the store, every timeline polls by itself (`POLL_MS`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from dovetail.errors import Unavailable
from dovetail.timeline.engine.loader import NEVER_MS
from dovetail.timeline.message import TimelineId
from dovetail.timeline.stores.protocol import Look, News

if TYPE_CHECKING:
    from dovetail.timeline.running import RunningTimeline

#: How often all timelines are looked at, in one statement. Leases are longer, most of them, and so
#: their ends are seen before they come; schedules are fired further ahead.
LOOK_MS: Final = 1_500
#: What is due within this is told at once, but not more often than each `TELL_MS`; the rest, and
#: that something has changed, after a second.
SOON_MS: Final = 3_000
TELL_MS: Final = 25
_LEISURE_MS: Final = 1_000


class Pump(Protocol):
    """Whoever takes messages of a timeline beside its consumers."""

    def stored(self, due_ms: int) -> None:
        """Something is due then that was not before."""


class Watch:
    """See the module. One for each broker on stores that it shares."""

    def __init__(
        self,
        news: News,
        timelines: Mapping[str, "RunningTimeline"],
        now_ms: Callable[[], int],
    ) -> None:
        self._news = news
        self._timelines = timelines
        self._now_ms = now_ms
        #: Whether what others tell is heard, and everything from before was seen.
        self.listening = False
        self._untold: dict[TimelineId, int] = {}
        self._some, self._soon = asyncio.Event(), asyncio.Event()
        self._wanted = asyncio.Event()
        self._asked: list[asyncio.Future[int]] = []

    # Telling

    def tell(self, timeline: TimelineId, due_ms: int = NEVER_MS) -> None:
        """Something was stored that is due then; without a time, something has changed."""
        self._untold[timeline] = min(due_ms, self._untold.get(timeline, NEVER_MS))
        self._some.set()
        if due_ms < self._now_ms() + SOON_MS:
            self._soon.set()

    async def tell_others(self) -> None:
        """Tells what there is to be told, once. Raises `Unavailable`: then it is not told."""
        await self._some.wait()
        try:
            async with asyncio.timeout(_LEISURE_MS / 1000):
                await self._soon.wait()
        except TimeoutError:
            pass
        news, self._untold = self._untold, {}
        self._some.clear()
        self._soon.clear()
        await self._news.tell(news)
        await asyncio.sleep(TELL_MS / 1000)

    # Listening

    async def follow(self) -> None:
        """Listens and looks for as long as the connection lasts. Raises `Unavailable`."""
        try:
            async with self._news.following(self._hear) as look:
                while True:
                    await self._look(look)
                    await self._rest()
        finally:
            self._set_listening(False)
            for asked in self._asked:
                if not asked.done():
                    asked.set_exception(Unavailable("the store cannot be looked at"))
            self._asked.clear()

    def time_ms(self) -> Awaitable[int]:
        """The store's own clock, from a look that begins now."""
        asked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._wanted.set()
        return asked

    async def _look(self, look: Look) -> None:
        running = {each.record.id: each for each in self._timelines.values()}
        asked, self._asked = self._asked, []
        for each in running.values():
            each.loader.begin_look()
        try:
            found = await look(running, self._now_ms())
        except BaseException:
            self._asked += asked
            raise

        for one in asked:
            if not one.done():
                one.set_result(found.time_ms)
        for number, seen in found.timelines.items():
            running[number].seen(seen)
        self._set_listening(True)

    async def _rest(self) -> None:
        self._wanted.clear()
        if self._asked:
            return
        try:
            async with asyncio.timeout(LOOK_MS / 1000):
                await self._wanted.wait()
        except TimeoutError:
            pass

    def _hear(self, timeline: TimelineId, due_ms: int) -> None:
        for running in self._timelines.values():
            if running.record.id == timeline:
                running.heard(due_ms)

    def _set_listening(self, listening: bool) -> None:
        if listening != self.listening:
            self.listening = listening
            for running in self._timelines.values():
                running.set_listening(listening)
