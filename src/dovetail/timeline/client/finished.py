"""Reports the messages that a consumer has finished or returned to the broker.

Deletions and releases are gathered and sent in as few requests as possible: while one is in flight
the next gathers. Up to `REPORTING_MAX` are in flight at once, so that the store is not idle while
an answer travels. A failed request is repeated, which is safe: a handle fits once.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from dovetail.timeline.message import Handle, Release

#: Requests that are on their way at once.
REPORTING_MAX: Final = 2
#: Messages of one request.
REPORT_MAX: Final = 1_000

Delete = Callable[[list[Handle]], Awaitable[object]]
GiveBack = Callable[[list[Release]], Awaitable[object]]


class Finished:
    """See the module. `any` is set while there may be something to report."""

    def __init__(self) -> None:
        self._done: list[Handle] = []
        self._back: list[Release] = []
        self._on_the_way = 0
        self._reporting = asyncio.Semaphore(REPORTING_MAX)
        self._hushing = asyncio.Lock()
        self.any = asyncio.Event()

    def done(self, handles: Sequence[Handle]) -> None:
        """Messages were handled; they are to be deleted."""
        self._done += handles
        self.any.set()

    def back(self, release: Release) -> None:
        """A message is given back."""
        self._back.append(release)
        self.any.set()

    @property
    def reported(self) -> bool:
        """Whether the broker knows of everything."""
        return not (self._done or self._back or self._on_the_way)

    def handles(self) -> set[Handle]:
        """What the broker does not know of yet; for one who holds `hushed`."""
        return {*self._done, *(release.handle for release in self._back)}

    async def report(self, delete: Delete, release: GiveBack) -> None:
        """Reports a part of it. Raises what these do; what was not reported then stays here."""
        async with self._reporting:
            done, self._done = self._done[:REPORT_MAX], self._done[REPORT_MAX:]
            back, self._back = self._back[:REPORT_MAX], self._back[REPORT_MAX:]
            self._on_the_way += 1
            try:
                if done:
                    await delete(done)
                    done = []
                if back:
                    await release(back)
                    back = []
            finally:
                self._on_the_way -= 1
                self._done[:0], self._back[:0] = done, back
        if self._done or self._back:
            self.any.set()

    @asynccontextmanager
    async def hushed(self) -> AsyncIterator[None]:
        """While held, nothing is on its way."""
        async with self._hushing, AsyncExitStack() as stack:
            for _ in range(REPORTING_MAX):
                await stack.enter_async_context(self._reporting)
            yield
