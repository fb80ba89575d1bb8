"""Live documents: what a page shows, sent again whenever it changes, by server-sent events.

A *watch* names a document of the API (`topics`, `topic:orders`, or a part of a list with its
parameters: `topics?filter=orders&sort=-records`). While somebody has a watch, one task of this node
samples it at its interval and gives it to all its watchers; without a watcher nothing runs. A
watcher has a bounded queue: a reader that is slower than the changes is disconnected and may
reconnect, so no reader can delay the node or another reader.

    event: hello     once: the interval, and what is watched
    event: <watch>   the whole document, as its GET endpoint gives it
    event: trouble   instead of it, while it is not available
    event: bye       reconnect: the node stops, or the reader is too slow
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from dovetail.background import keep_task
from dovetail.console.desk import Desk
from dovetail.console.nouns.access import show_access
from dovetail.console.nouns.clients import list_clients
from dovetail.console.nouns.dead import DeadQuery, ReasonsQuery, list_dead, list_reasons
from dovetail.console.nouns.groups import GroupsQuery, list_groups, show_group
from dovetail.console.nouns.history import HourQuery, show_group_hour, show_hour
from dovetail.console.nouns.outbox import show_outbox
from dovetail.console.nouns.overview import show_overview
from dovetail.console.nouns.pipelines import list_pipelines, show_failures, show_pipeline
from dovetail.console.nouns.streams import StreamQuery, list_streams, show_stream
from dovetail.console.nouns.timelines import list_timelines, show_held, show_timeline
from dovetail.console.nouns.topics import TopicsQuery, list_topics, show_topic
from dovetail.console.web.endpoint import Handler, asked_by_node
from dovetail.console.web.errors import HttpRefusal, Problem, problem_of
from dovetail.console.web.query import ListQuery, decode_query
from dovetail.errors import DovetailError, InvalidInput
from dovetail.logging import get_logger

#: Readers at once; each is a connection and a queue.
WATCHERS_MAX = 50
#: Watches of one reader; a page has one or two.
WATCHES_MAX = 10
#: Events that wait for a slow reader.
QUEUE_MAX = 64
#: Shortest silence after which a comment shows that the connection lives.
HEARTBEAT_S = 15.0
INTERVAL_S = 1.0
#: For what costs more, or changes by the hand of people.
SLOW_INTERVAL_S = 5.0
#: For what reads many messages.
DEAR_INTERVAL_S = 15.0
_WATCH_CHARACTERS_MAX = 600

_log = get_logger("console")

Sample = Callable[[Desk, str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A document that can be watched."""

    sample: Sample
    interval_s: float = INTERVAL_S
    #: Whether it is one of many, and the watch must name it.
    named: bool = False
    #: The parameters that a list takes.
    query: type | None = None


def _document(handler: Handler, query: object = None) -> Sample:
    """A document of its own, as the API answers it."""
    return lambda desk, _: handler(desk, asked_by_node(query))


def _list(handler: Handler, query: type, interval_s: float = INTERVAL_S) -> _Kind:
    """A list, as the API answers it; the watch has its parameters."""
    sample: Sample = lambda desk, rest: handler(  # noqa: E731
        desk, asked_by_node(decode_query(query, QueryParams(rest)))
    )
    return _Kind(sample, interval_s, query=query)


def _one(handler: Handler, name: str) -> Sample:
    """One of many, which the watch names."""
    return lambda desk, rest: handler(desk, asked_by_node(None, **{name: rest}))


def _stream(desk: Desk, rest: str) -> Awaitable[object]:
    log, _, environment = rest.rpartition("/")
    query = StreamQuery(environment if log else None)
    return show_stream(desk, asked_by_node(query, log=log or environment))


KINDS = {
    "overview": _Kind(_document(show_overview), 2 * INTERVAL_S),
    "topics": _list(list_topics, TopicsQuery),
    "topic": _Kind(_one(show_topic, "topic"), named=True),
    "history": _Kind(_document(show_hour, HourQuery()), SLOW_INTERVAL_S),
    "groups": _list(list_groups, GroupsQuery),
    "group": _Kind(_one(show_group, "group"), named=True),
    "lag": _Kind(_one(show_group_hour, "group"), SLOW_INTERVAL_S, named=True),
    "timelines": _Kind(_document(list_timelines)),
    "timeline": _Kind(_one(show_timeline, "timeline"), named=True),
    "held": _Kind(_one(show_held, "timeline"), SLOW_INTERVAL_S, named=True),
    "reasons": _list(list_reasons, ReasonsQuery, DEAR_INTERVAL_S),
    "dead": _Kind(_document(list_dead, DeadQuery()), SLOW_INTERVAL_S),
    "streams": _Kind(_document(list_streams), SLOW_INTERVAL_S),
    "stream": _Kind(_stream, 2 * INTERVAL_S, named=True),
    "pipelines": _Kind(_document(list_pipelines)),
    "pipeline": _Kind(_one(show_pipeline, "pipeline"), named=True),
    "failures": _Kind(_one(show_failures, "pipeline"), DEAR_INTERVAL_S, named=True),
    "outbox": _Kind(_document(show_outbox), 2 * INTERVAL_S),
    "access": _Kind(_document(show_access), SLOW_INTERVAL_S),
    "clients": _list(list_clients, ListQuery, 2 * INTERVAL_S),
    "audit": _Kind(lambda desk, _: desk.audit.page(limit=100), SLOW_INTERVAL_S),
}


def _parts(watch: str) -> tuple[str, str]:
    """The kind of document, and which one of many or which part of a list; empty if it is all."""
    kind, *rest = re.split("[:?]", watch, maxsplit=1)
    return kind, "".join(rest)


def check_watch(watch: str) -> None:
    """Raises `InvalidInput` if there is no such document."""
    name, rest = _parts(watch)
    kind = KINDS.get(name)
    asks = kind is not None and kind.query is not None and watch[len(name) :][:1] in ("", "?")
    if kind is None or not (asks or kind.named == bool(rest)):
        known = ", ".join(f"{n}:NAME" if k.named else n for n, k in KINDS.items())
        raise InvalidInput(f"{watch[:80]!r} cannot be watched; what can: {known}")
    if len(watch) > _WATCH_CHARACTERS_MAX or not watch.isprintable():
        raise InvalidInput("the name in a watch is too long or has characters that no name has")
    if asks:
        decode_query(kind.query, QueryParams(rest))


@dataclass(eq=False, slots=True)
class Watcher:
    """A reader: events that wait for it; None in the queue ends it."""

    watches: tuple[str, ...]
    queue: asyncio.Queue[bytes | None] = field(
        default_factory=lambda: asyncio.Queue(maxsize=QUEUE_MAX)
    )
    #: Set when it did not keep up.
    dropped: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, event: bytes) -> None:
        """Queues an event; drops the reader if there is no room."""
        try:
            self.queue.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped.set()

    def end(self) -> None:
        """Sends the reader away after what waits, or at once if that is too much."""
        try:
            self.queue.put_nowait(None)
        except asyncio.QueueFull:
            self.dropped.set()

    async def events(self) -> AsyncIterator[bytes]:
        """What is sent, from `hello` to `bye`."""
        hello = {"interval_ms": int(INTERVAL_S * 1000), "watch": list(self.watches)}
        yield event_of("hello", hello)
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    event = await self.queue.get()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if event is None:
                yield event_of("bye", {})
                return
            yield event


@dataclass(slots=True)
class _Sampler:
    """One watch: who has it, the last event, the task that samples."""

    watchers: set[Watcher] = field(default_factory=set)
    last: bytes | None = None
    task: "asyncio.Task[None] | None" = None


class Live:
    """All watchers of a node."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._samplers: dict[str, _Sampler] = {}
        self._watchers: set[Watcher] = set()
        self._stopping = False

    @property
    def sampling(self) -> int:
        """Tasks that run now."""
        return len(self._samplers)

    def join(self, watches: tuple[str, ...]) -> Watcher:
        """A new reader; `leave` must follow. Raises `InvalidInput`, `HttpRefusal`."""
        if not watches or len(watches) > WATCHES_MAX:
            raise InvalidInput(f"give 1 to {WATCHES_MAX} parameters `watch`, not {len(watches)}")
        for watch in watches:
            check_watch(watch)

        if self._stopping or len(self._watchers) >= WATCHERS_MAX:
            raise HttpRefusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{len(self._watchers)} readers watch this node, and it takes {WATCHERS_MAX}; "
                "close a page, or ask another node",
            )

        watcher = Watcher(tuple(dict.fromkeys(watches)))
        self._watchers.add(watcher)
        for watch in watcher.watches:
            sampler = self._samplers.setdefault(watch, _Sampler())
            sampler.watchers.add(watcher)
            if sampler.last is not None:
                watcher.give(sampler.last)
            if sampler.task is None:
                sample = partial(self._sample, watch, sampler)
                sampler.task = keep_task(sample, name="console/sample", of=watch)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Forgets a reader; what nobody watches any more is not sampled any more."""
        self._watchers.discard(watcher)
        for watch in watcher.watches:
            sampler = self._samplers[watch]
            sampler.watchers.discard(watcher)
            if not sampler.watchers:
                del self._samplers[watch]
                if sampler.task is not None:
                    sampler.task.cancel()

    def stop(self) -> None:
        """Sends everybody away."""
        self._stopping = True
        for watcher in tuple(self._watchers):
            watcher.end()

    async def _sample(self, watch: str, sampler: _Sampler) -> None:
        name, rest = _parts(watch)
        kind = KINDS[name]

        while True:
            event = await self._event(watch, kind.sample, rest)
            if event != sampler.last:
                sampler.last = event
                for watcher in sampler.watchers:
                    watcher.give(event)
            await asyncio.sleep(kind.interval_s)

    async def _event(self, watch: str, sample: Sample, rest: str) -> bytes:
        try:
            return event_of(watch, await sample(self._desk, rest))
        except DovetailError as error:
            problem = problem_of(error)
        except Exception as error:  # noqa: BLE001 - the next sample may be better
            _log.exception("a live sample met a defect", watch=watch, error=repr(error))
            problem = Problem("Defect", "the node met a defect; its log has the details", True)
        return event_of("trouble", {"watch": watch, "error": problem})


def event_of(name: str, document: Any) -> bytes:
    """An event on the wire; JSON has no line ends of its own."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(document) + b"\n\n"
