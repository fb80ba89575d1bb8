"""The answer that stays open: events of a watcher, until either side ends it."""

import contextlib

from dovetail.background import first_of
from dovetail.console.live import Live, Watcher
from dovetail.console.web.guard import Receive, Scope, Send


class EventStream:
    """An ASGI answer that sends what a watcher gets."""

    def __init__(self, live: Live, watcher: Watcher) -> None:
        self._live = live
        self._watcher = watcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # A reader that breaks its connection while something is sent has had enough, too.
            with contextlib.suppress(OSError):
                await first_of(self._send(send), gone(receive), self._watcher.dropped.wait())
        finally:
            self._live.leave(self._watcher)

    async def _send(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for event in self._watcher.events():
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def gone(receive: Receive) -> None:
    """Returns when the reader has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
