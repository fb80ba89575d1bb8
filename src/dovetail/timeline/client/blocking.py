"""The client without asyncio: the same, run by a loop in a thread of its own.

    with dovetail.connect_blocking("127.0.0.1:9092") as d:
        d.timeline("reminders").schedule(b"call Ada", delay="2h")

        @d.consumer("reminders", lease="30s", concurrency=8)
        def handle(message):
            ...

        d.run()

Handlers are plain functions; each runs in a thread. Calls may come from any thread.
"""

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Self, TypeVar

from dovetail.background import start_thread
from dovetail.timeline import frames
from dovetail.timeline.client.client import Dovetail, HandlerType, connect
from dovetail.timeline.client.message import Scheduled
from dovetail.timeline.client.moments import Duration, Moment
from dovetail.timeline.client.timeline import Draft, Timeline
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import Shown, Status
from dovetail.wire.login import SCRAM_SHA_512

Result = TypeVar("Result")


def connect_blocking(
    address: str = "127.0.0.1:9092",
    *,
    client_id: str = "",
    rack: str = "",
    tls: ssl.SSLContext | None = None,
    user: str = "",
    password: str = "",
    mechanism: str = SCRAM_SHA_512,
) -> "BlockingDovetail":
    """A client of the node at `address`; use it with `with`. See `connect`."""
    return BlockingDovetail(
        lambda: connect(
            address,
            client_id=client_id,
            rack=rack,
            tls=tls,
            user=user,
            password=password,
            mechanism=mechanism,
        )
    )


class BlockingDovetail:
    """A client whose calls return when they are done."""

    def __init__(self, make_client: Callable[[], Dovetail]) -> None:
        self._make_client = make_client
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._client: Dovetail | None = None

    def __enter__(self) -> Self:
        self._thread = start_thread(self._loop.run_forever, name="dovetail-client")
        self._client = self.call(self._enter())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._client is not None:
                self.call(self._client.__aexit__(None, None, None))
        finally:
            self.call(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            assert self._thread is not None
            self._thread.join()
            self._loop.close()

    async def _enter(self) -> Dovetail:
        return await self._make_client().__aenter__()

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs the work in the client's loop, and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def timeline(self, name: str) -> "BlockingTimeline":
        """A timeline by its name."""

        async def make() -> Timeline:
            return self._connected().timeline(name)

        return BlockingTimeline(self, self.call(make()))

    def timelines(self) -> list[tuple[str, str]]:
        """Names of all timelines, with their states."""
        return self.call(self._connected().timelines())

    def brokers(self, timeline: str = "") -> list[frames.BrokerState]:
        """The brokers of the cluster, the best one for a client of the timeline first."""
        return self.call(self._connected().brokers(timeline))

    def consumer(
        self,
        timeline: str,
        *,
        lease: Duration = "30s",
        concurrency: int = 16,
        batch: int = 0,
        id: str = "",  # noqa: A002 - as in the asyncio client
        stop: Duration = "30s",
    ) -> Callable[[HandlerType], HandlerType]:
        """Has a plain function handle the messages of a timeline; see `Dovetail.consumer`."""

        def register(handler: HandlerType) -> HandlerType:
            async def start() -> None:
                self._connected().consumer(
                    timeline,
                    lease=lease,
                    concurrency=concurrency,
                    batch=batch,
                    id=id,
                    stop=stop,
                )(handler)

            self.call(start())
            return handler

        return register

    def run(self) -> None:
        """Serves until a consumer cannot go on, or Ctrl-C; raises its error then."""
        self.call(self._connected().run())

    def stop(self) -> None:
        """Stops the consumers gracefully."""
        self.call(self._connected().stop())

    def _connected(self) -> Dovetail:
        if self._client is None:
            raise RuntimeError("not connected; use `with dovetail.connect_blocking(...) as d:`")
        return self._client


class BlockingTimeline:
    """A timeline; each method is that of `Timeline`, and returns when it is done."""

    def __init__(self, client: BlockingDovetail, timeline: Timeline) -> None:
        self._client = client
        self._timeline = timeline
        self.name = timeline.name

    def schedule(
        self,
        body: bytes,
        *,
        at: Moment | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
    ) -> Scheduled:
        work = self._timeline.schedule(
            body, at=at, delay=delay, key=key, headers=headers, priority=priority
        )
        return self._client.call(work)

    def schedule_many(self, drafts: Sequence[Draft]) -> list[Scheduled]:
        return self._client.call(self._timeline.schedule_many(drafts))

    def cancel(self, *ids: int) -> list[Status]:
        return self._client.call(self._timeline.cancel(*ids))

    def cancel_key(self, key: str) -> bool:
        return self._client.call(self._timeline.cancel_key(key))

    def move(
        self, message: int, *, at: Moment | None = None, delay: Duration | None = None
    ) -> Status:
        return self._client.call(self._timeline.move(message, at=at, delay=delay))

    def look_up(self, *ids: int) -> list[Shown | None]:
        return self._client.call(self._timeline.look_up(*ids))

    def look_up_key(self, key: str) -> Shown | None:
        return self._client.call(self._timeline.look_up_key(key))

    def peek(self, limit: int = 10) -> list[Shown]:
        return self._client.call(self._timeline.peek(limit))

    def describe(self) -> frames.Described:
        return self._client.call(self._timeline.describe())

    def dead(self, *, after: int = 0, limit: int = 100) -> list[Shown]:
        return self._client.call(self._timeline.dead(after=after, limit=limit))

    def replay(self, *ids: int) -> list[Status]:
        return self._client.call(self._timeline.replay(*ids))

    def drop_dead(self, *ids: int) -> list[Status]:
        return self._client.call(self._timeline.drop_dead(*ids))

    def put_schedule(
        self,
        name: str,
        body: bytes,
        *,
        cron: str = "",
        zone: str = "UTC",
        every: Duration | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
    ) -> None:
        work = self._timeline.put_schedule(
            name, body, cron=cron, zone=zone, every=every, headers=headers, priority=priority
        )
        self._client.call(work)

    def drop_schedule(self, name: str) -> None:
        self._client.call(self._timeline.drop_schedule(name))

    def schedules(self) -> list[frames.ScheduleState]:
        return self._client.call(self._timeline.schedules())

    def create(self, config: TimelineConfig | None = None) -> None:
        self._client.call(self._timeline.create(config))

    def delete(self) -> None:
        self._client.call(self._timeline.delete())
