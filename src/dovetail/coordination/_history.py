"""The latest revisions in memory, and the watches that read them.

Promise: a watch gets each revision after its own that touches its prefix, once, in order and whole,
or `WatchGap`. The history alone bounds the memory: a watch holds no queue, only its position, so a
reader that is too slow finds that the history has moved past it.

A watch whose prefix is not touched advances without waking its reader, so it never falls behind.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from dovetail.coordination.protocol import Revision, WatchEvent
from dovetail.errors import CoordinationDown, WatchGap


class History:
    """Revisions `floor + 1` to `revision`, each with its events."""

    def __init__(self, *, revision: Revision, events_max: int, bytes_max: int) -> None:
        self.floor = revision
        self.revision = revision
        self._events_max = events_max
        self._bytes_max = bytes_max
        self._events: dict[int, tuple[WatchEvent, ...]] = {}
        self._count = 0
        self._bytes = 0
        self._watches: set[Watch] = set()
        self._down: str | None = None

    def append(self, events: tuple[WatchEvent, ...]) -> None:
        """Adds the next revision, wakes whom it concerns, drops what exceeds the limits."""
        revision = Revision(self.revision + 1)
        assert events
        assert events[0].revision == revision
        self._events[revision] = events
        self._count += len(events)
        self._bytes += size_of(events)
        self.revision = revision
        for watch in self._watches:
            watch.offer(revision, events)
        while self._over_limit() and self.floor + 1 < self.revision:
            self._drop_oldest()

    def at(self, revision: int) -> tuple[WatchEvent, ...]:
        return self._events[revision]

    @contextmanager
    def watching(self, prefix: str, *, after: Revision) -> Iterator["Watch"]:
        watch = Watch(self, prefix, after=after)
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def end(self, reason: str) -> None:
        """Every watch raises `CoordinationDown` from now on."""
        self._down = reason
        for watch in self._watches:
            watch.wake()

    def check_up(self) -> None:
        if self._down is not None:
            raise CoordinationDown(self._down)

    def _over_limit(self) -> bool:
        return self._count > self._events_max or self._bytes > self._bytes_max

    def _drop_oldest(self) -> None:
        oldest = Revision(self.floor + 1)
        events = self._events.pop(oldest)
        self._count -= len(events)
        self._bytes -= size_of(events)
        self.floor = oldest


class Watch:
    """One reader's position in the history."""

    def __init__(self, history: History, prefix: str, *, after: Revision) -> None:
        self._history = history
        self._prefix = prefix
        self._position = after
        # A later revision than ours comes from another store: what it knew is not our history.
        self._foreign = after > history.revision
        self._ready = asyncio.Event()

    @property
    def position(self) -> Revision:
        """Everything up to this revision was given, or is not for this reader."""
        return self._position

    def at_once(self) -> tuple[WatchEvent, ...]:
        """The next revision if it is there already, else nothing. Raises as the iterator."""
        self._history.check_up()
        return self._advance()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> tuple[WatchEvent, ...]:
        while True:
            self._history.check_up()
            events = self._advance()
            if events:
                return events
            self._ready.clear()
            await self._ready.wait()

    def offer(self, revision: Revision, events: tuple[WatchEvent, ...]) -> None:
        """Takes note of a new revision: wakes the reader, or moves along if it is not for it."""
        caught_up = self._position + 1 == revision
        if caught_up and not self._mine(events):
            self._position = revision
        else:
            self.wake()

    def wake(self) -> None:
        self._ready.set()

    def _advance(self) -> tuple[WatchEvent, ...]:
        if self._foreign or self._position < self._history.floor:
            raise WatchGap(
                f"watch of {self._prefix!r} after revision {self._position}: the history holds "
                f"{self._history.floor + 1} to {self._history.revision}; "
                "read the range again, then watch from its revision"
            )
        while self._position < self._history.revision:
            self._position = Revision(self._position + 1)
            events = self._mine(self._history.at(self._position))
            if events:
                return events
        return ()

    def _mine(self, events: tuple[WatchEvent, ...]) -> tuple[WatchEvent, ...]:
        return tuple(event for event in events if event.key.startswith(self._prefix))


def size_of(events: tuple[WatchEvent, ...]) -> int:
    """Bytes of the keys and values of a revision."""
    return sum(len(event.key) + len(event.value or b"") for event in events)
