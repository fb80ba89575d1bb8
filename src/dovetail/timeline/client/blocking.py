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
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from dovetail.background import keep_thread
from dovetail.supervision import Supervisor
from dovetail.timeline import frames
from dovetail.timeline.client.client import Dovetail, HandlerType, connect
from dovetail.timeline.client.moments import Duration
from dovetail.timeline.client.timeline import Timeline

Result = TypeVar("Result")
Given = ParamSpec("Given")


class BlockingDovetail:
    """A client whose calls return when they are done."""

    def __init__(self, make_client: Callable[[], Dovetail]) -> None:
        self._make_client = make_client
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._supervisor = Supervisor()
        self._client: Dovetail | None = None

    def __enter__(self) -> Self:
        with self._supervisor.supervising():
            self._thread = keep_thread(
                self._loop.run_forever, name="client/loop", stopped=self._stopped
            )
        self._client = self.call(self._enter())
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            if self._client is not None:
                self.call(self._client.__aexit__(None, None, None))
        finally:
            self.call(self._loop.shutdown_default_executor())
            self._stopped.set()
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
        prefetch: int | None = None,
        timeout: Duration = 0,
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
                    prefetch=prefetch,
                    timeout=timeout,
                    id=id,
                    stop=stop,
                )(handler)

            self.call(start())
            return handler

        return register

    def run(self) -> None:
        """Serves until a consumer cannot go on, or Ctrl-C; raises its error then."""
        self.call(self._connected().run())

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the client and its consumers work; see `Dovetail.health`."""
        healthy, facts = self._connected().health()
        problems = [*facts["problems"], *self._supervisor.problems()]
        healthy = healthy and not problems
        return healthy, {**facts, "status": "ok" if healthy else "degraded", "problems": problems}

    def stop(self) -> None:
        """Stops the consumers gracefully."""
        self.call(self._connected().stop())

    def _connected(self) -> Dovetail:
        if self._client is None:
            raise RuntimeError("not connected; use `with dovetail.connect_blocking(...) as d:`")
        return self._client


def _waiting(
    method: Callable[Concatenate[Timeline, Given], Coroutine[Any, Any, Result]],
) -> "Callable[Concatenate[BlockingTimeline, Given], Result]":
    """The same method, which returns when it is done."""

    @wraps(method)
    def call(self: "BlockingTimeline", /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return self._client.call(method(self._timeline, *args, **kwargs))

    return call


class BlockingTimeline:
    """A timeline; each method is that of `Timeline`, and returns when it is done."""

    def __init__(self, client: BlockingDovetail, timeline: Timeline) -> None:
        self._client = client
        self._timeline = timeline
        self.name = timeline.name

    create = _waiting(Timeline.create)
    delete = _waiting(Timeline.delete)
    alter = _waiting(Timeline.alter)
    pause = _waiting(Timeline.pause)
    resume = _waiting(Timeline.resume)
    purge = _waiting(Timeline.purge)
    describe = _waiting(Timeline.describe)

    schedule = _waiting(Timeline.schedule)
    schedule_many = _waiting(Timeline.schedule_many)
    cancel = _waiting(Timeline.cancel)
    cancel_key = _waiting(Timeline.cancel_key)
    move = _waiting(Timeline.move)

    look_up = _waiting(Timeline.look_up)
    look_up_key = _waiting(Timeline.look_up_key)
    peek = _waiting(Timeline.peek)

    dead = _waiting(Timeline.dead)
    replay = _waiting(Timeline.replay)
    drop_dead = _waiting(Timeline.drop_dead)

    put_schedule = _waiting(Timeline.put_schedule)
    drop_schedule = _waiting(Timeline.drop_schedule)
    schedules = _waiting(Timeline.schedules)


def _blocking(make_client: Callable[Given, Dovetail]) -> Callable[Given, BlockingDovetail]:
    @wraps(make_client, assigned=("__module__",))
    def connect_blocking(*args: Given.args, **kwargs: Given.kwargs) -> BlockingDovetail:
        """A client of the node at `address`; use it with `with`. See `connect`."""
        return BlockingDovetail(lambda: make_client(*args, **kwargs))

    return connect_blocking


connect_blocking = _blocking(connect)
