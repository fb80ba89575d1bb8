"""Standing by for a lead: the lease may arrive at any step of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

from dovetail.timeline.client.client import Dovetail
from dovetail.timeline.client.leading import leading


class _Line:
    """A client whose message arrives while the timeline is made ready for the second time."""

    def __init__(self) -> None:
        self._handler: Callable[[Any], Awaitable[None]] | None = None
        self._handling: asyncio.Task[None] | None = None
        self.schedules = 0

    def timeline(self, _name: str) -> "_Line":
        return self

    async def schedule(self, _body: bytes, *, key: str) -> None:
        self.schedules += 1
        if self.schedules == 2:
            assert self._handler is not None
            handle = SimpleNamespace(version=7)
            message = SimpleNamespace(id=3, handle=handle, until_s=time.monotonic() + 60)
            self._handling = asyncio.ensure_future(cast("Any", self._handler(message)))
            await asyncio.sleep(0)

    def consumer(self, _name: str, **_options: object) -> Callable[[Any], None]:
        def register(handler: Any) -> None:
            self._handler = handler

        return register

    async def run(self) -> None:
        await asyncio.Event().wait()


async def test_a_lease_that_arrives_between_two_looks_is_led() -> None:
    """S13: it was held, extended for ever, and nobody led."""
    line = _Line()
    async with asyncio.timeout(60):
        async with leading(cast("Dovetail", line), "nightly", lease="20ms") as lead:
            assert lead.valid
    assert line.schedules == 2
