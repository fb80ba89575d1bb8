"""A backup of the node, as the answer to a request: a file that is made while it is sent."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from dovetail.background import first_of
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Caller
from dovetail.console.web.event_stream import gone
from dovetail.console.web.guard import Receive, Scope, Send
from dovetail.errors import NotFound


class Download:
    """An ASGI answer that sends pieces, until there are no more or the reader has gone."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            # A reader that breaks its connection has had enough, too.
            with suppress(OSError):
                await first_of(self._send(send), gone(receive))

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", b"application/x-tar")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for piece in self._rest:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def begin_backup(desk: Desk, caller: Caller) -> Download:
    """Takes the snapshots; the file follows. Raises `NotFound` on a node that stores nothing."""
    backups = desk.insight.backups
    if backups is None:
        raise NotFound("this node stores nothing; ask a node with the role `storage`")
    entry = await desk.audit.begin(caller, "take a backup", "", {})
    pieces = backups.take()
    try:
        first = await anext(pieces)
    except Exception as error:
        await desk.audit.end(entry, "failed", str(error))
        raise
    await desk.audit.end(entry, "done")
    return Download(first, pieces)
