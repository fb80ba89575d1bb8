"""Small ways to drive a coordinator in tests: waits with a deadline, plain writes, openings."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from dovetail.clock import Clock, SystemClock
from dovetail.coordination import (
    ABSENT,
    Coordinator,
    EmbeddedCoordinator,
    EmbeddedLimits,
    Put,
    Revision,
    Unchanged,
    WatchEvent,
)

CoordinatorFactory = Callable[[], AbstractAsyncContextManager[Coordinator]]
Beyond = Callable[[EmbeddedCoordinator], AbstractAsyncContextManager[Coordinator]]
Events = tuple[WatchEvent, ...]

#: How long a test waits for what must come; far above what any service needs.
DEADLINE_S = 60.0


def new_files(folder: Path, beyond: Beyond = nullcontext) -> CoordinatorFactory:
    """Each call opens a new file, and what `beyond` makes of its coordinator."""
    numbers = itertools.count()

    @asynccontextmanager
    async def open_new() -> AsyncIterator[Coordinator]:
        async with (
            await open_file(folder / f"coordination-{next(numbers)}.db") as embedded,
            beyond(embedded) as coordinator,
        ):
            yield coordinator

    return open_new


async def next_of(events: AsyncIterator[Events]) -> Events:
    """The next revision of a watch, within the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        return await anext(events)


async def take(events: AsyncIterator[Events], *, until: Revision) -> list[Events]:
    """The revisions of a watch up to and with `until`, which must touch its prefix."""
    taken: list[Events] = []
    while not taken or taken[-1][0].revision < until:
        taken.append(await next_of(events))
    return taken


async def put(coordinator: Coordinator, key: str, value: bytes = b"") -> Revision:
    """Writes one key without a condition; its revision."""
    outcome = await coordinator.transact([Put(key, value)])
    assert outcome.applied
    return outcome.revision


async def increment(coordinator: Coordinator, key: str) -> None:
    """Adds one to a number by compare-and-set, as often as it takes."""
    while True:
        item = await coordinator.get(key)
        number = 0 if item is None else int(item.value)
        seen = ABSENT if item is None else item.revision
        outcome = await coordinator.transact(
            [Put(key, str(number + 1).encode())], conditions=[Unchanged(key, seen)]
        )
        if outcome.applied:
            return


def replay(state: dict[str, bytes], revisions: Sequence[Events]) -> dict[str, bytes]:
    """The state after these events."""
    after = dict(state)
    for events in revisions:
        for event in events:
            if event.value is None:
                del after[event.key]
            else:
                after[event.key] = event.value
    return after


async def open_file(
    path: Path, *, clock: Clock | None = None, limits: EmbeddedLimits | None = None
) -> EmbeddedCoordinator:
    """The embedded coordinator on this file."""
    return await EmbeddedCoordinator.open(path, clock=clock or SystemClock(), limits=limits)
