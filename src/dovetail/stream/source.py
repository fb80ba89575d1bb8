"""The contract of a source of events, and the type of an event.

Every replica reads its `Source`, from any position that the source still holds. A source is
reopened after every failure; it need not repair itself, only report that it failed.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from dovetail.election import Position
from dovetail.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the stream; `lane` and `offset` are its place."""

    lane: int
    offset: int
    value: bytes
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())
    #: The stream that it is of, where one handler may serve several: the name of a topic.
    stream: str = ""
    #: It came without a value, which is more than an empty one: it deletes its key.
    tombstone: bool = False


class Source(Protocol):
    """A stream with lanes, each with its own offsets."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    async def end(self) -> Position:
        """The next offset of every lane, as the stream has it now. Raises `Unavailable`."""
        ...

    def read(
        self, position: Position
    ) -> AbstractAsyncContextManager[AsyncIterator[Sequence[Event]]]:
        """Events from a position on, in the order of each lane; lanes not named from their start.

        An empty sequence says that the stream is there and has nothing new; it comes at least
        every timeout. The iterator raises `Unavailable` when the stream is lost.
        """
        ...

    async def close(self) -> None:
        """Releases what is held; safe to call again."""
        ...


class MemorySource:
    """A stream in memory, for tests; `connected = False` cuts its readers off."""

    def __init__(self, lanes: int = 1, *, quiet_ms: float = 50.0) -> None:
        self._events: list[list[Event]] = [[] for _ in range(lanes)]
        self._quiet_s = quiet_ms / 1000
        self._changed = asyncio.Condition()
        self.connected = True

    @property
    def name(self) -> str:
        return "memory"

    async def close(self) -> None:
        self.connected = False

    async def send(self, value: bytes, *, lane: int = 0, key: bytes | None = None) -> Event:
        """Puts an event at the end."""
        events = self._events[lane]
        event = Event(lane, len(events), value, key)
        events.append(event)
        async with self._changed:
            self._changed.notify_all()
        return event

    async def end(self) -> Position:
        self._check_connected()
        return {lane: len(events) for lane, events in enumerate(self._events)}

    @asynccontextmanager
    async def read(self, position: Position) -> AsyncIterator[AsyncIterator[Sequence[Event]]]:
        yield self._read(dict(position))

    async def _read(self, position: dict[int, int]) -> AsyncIterator[Sequence[Event]]:
        while True:
            self._check_connected()
            found = [
                event
                for lane, events in enumerate(self._events)
                for event in events[position.get(lane, 0) :]
            ]
            for event in found:
                position[event.lane] = event.offset + 1
            yield found
            if not found:
                await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._quiet_s), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return

    def _check_connected(self) -> None:
        if not self.connected:
            raise Unavailable("this reader is cut off from the stream in memory")
