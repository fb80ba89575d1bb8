"""The client without asyncio: runs it on an event loop in its own thread.

    with dovetail.connect_blocking("127.0.0.1:9092") as d:
        d.timeline("reminders").schedule(b"call Ada", delay="2h")

        @d.consumer("reminders", lease="30s", concurrency=8)
        def handle(message):
            ...

        d.run()

Handlers are plain functions; each runs in a thread. Any thread may call the client.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from dovetail.blocking import Blocking
from dovetail.timeline import frames
from dovetail.timeline.client.client import Dovetail, HandlerType, connect
from dovetail.timeline.client.consumer import Consumer
from dovetail.timeline.client.leading import Lead
from dovetail.timeline.client.moments import Duration
from dovetail.timeline.client.timeline import Timeline

Result = TypeVar("Result")
Given = ParamSpec("Given")


class BlockingDovetail(Blocking[Dovetail]):
    """A client whose calls return when they are done."""

    def timeline(self, name: str) -> "BlockingTimeline":
        """A timeline by its name."""

        async def make() -> Timeline:
            return self.held.timeline(name)

        return BlockingTimeline(self, self.call(make()))

    def timelines(self) -> list[tuple[str, str]]:
        """Names of all timelines, with their states."""
        return self.call(self.held.timelines())

    def brokers(self, timeline: str = "") -> list[frames.BrokerState]:
        """The brokers of the cluster, the best one for a client of the timeline first."""
        return self.call(self.held.brokers(timeline))

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

        start = self.held.consumer(
            timeline,
            lease=lease,
            concurrency=concurrency,
            batch=batch,
            prefetch=prefetch,
            timeout=timeout,
            id=id,
            stop=stop,
        )

        def register(handler: HandlerType) -> HandlerType:
            async def within() -> None:
                start(handler)

            self.call(within())
            return handler

        return register

    @contextmanager
    def lead(self, name: str, *, lease: Duration = "10s") -> "Iterator[Lead]":
        """Waits until this program leads under a name; see `Dovetail.lead`.

        `valid` and `term` may be asked from any thread; `lost` belongs to the client's loop.
        """
        context = self.held.lead(name, lease=lease)
        lead = self.enter(context)
        try:
            yield lead
        finally:
            self.leave(context)

    @property
    def consumers(self) -> list[Consumer]:
        """Those that were registered."""
        return self.held.consumers

    def run(self) -> None:
        """Serves until a consumer cannot go on, or Ctrl-C; raises its error then."""
        self.call(self.held.run())

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether the client and its consumers work; see `Dovetail.health`."""
        healthy, facts = self.held.health()
        problems = [*facts["problems"], *self._supervisor.problems()]
        healthy = healthy and not problems
        return healthy, {**facts, "status": "ok" if healthy else "degraded", "problems": problems}

    def stop(self) -> None:
        """Stops the consumers gracefully."""
        self.call(self.held.stop())


def _waiting(
    method: Callable[Concatenate[Timeline, Given], Coroutine[Any, Any, Result]],
) -> "Callable[Concatenate[BlockingTimeline, Given], Result]":
    """The same method, which returns when it is done."""

    @wraps(method)
    def call(self: "BlockingTimeline", /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        return self._client.call(method(self._timeline, *args, **kwargs))

    return call


def _each(
    method: Callable[Concatenate[Timeline, Given], AsyncIterator[Result]],
) -> "Callable[Concatenate[BlockingTimeline, Given], Iterator[Result]]":
    """The same iterator, which waits for each."""

    @wraps(method)
    def call(
        self: "BlockingTimeline", /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Iterator[Result]:
        found = method(self._timeline, *args, **kwargs)

        async def following() -> tuple[Result, ...]:
            try:
                return (await anext(found),)
            except StopAsyncIteration:
                return ()

        while one := self._client.call(following()):
            yield from one

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

    @property
    def signals(self) -> frames.Signals | None:
        """The last that the broker said about the timeline; None before something was stored."""
        return self._timeline.signals

    insert = _waiting(Timeline.insert)
    schedule = _waiting(Timeline.schedule)
    schedule_many = _waiting(Timeline.schedule_many)
    cancel = _waiting(Timeline.cancel)
    cancel_key = _waiting(Timeline.cancel_key)
    move = _waiting(Timeline.move)

    look_up = _waiting(Timeline.look_up)
    look_up_key = _waiting(Timeline.look_up_key)
    peek = _waiting(Timeline.peek)

    dead = _waiting(Timeline.dead)
    all_dead = _each(Timeline.all_dead)
    replay = _waiting(Timeline.replay)
    drop_dead = _waiting(Timeline.drop_dead)

    select = _each(Timeline.select)
    preview = _waiting(Timeline.preview)
    cancel_where = _waiting(Timeline.cancel_where)
    move_where = _waiting(Timeline.move_where)
    replay_where = _waiting(Timeline.replay_where)
    drop_where = _waiting(Timeline.drop_where)

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
