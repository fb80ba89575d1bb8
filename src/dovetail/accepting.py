"""Listening sockets, and the connections that they accept.

A connection is passed on as soon as the system has it, before its TLS handshake: so one that never
completes the handshake is counted and can be closed like any other.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from functools import partial

from dovetail.background import Tasks

#: Connections that wait to be accepted while the node is busy.
BACKLOG = 1024

#: Accepted in one turn of the loop; others are served in between.
_TURN_MAX = 100

#: Pause when the system has no file handles or memory for one more.
_PAUSE_S = 0.2


class Acceptor:
    """Listens on all addresses of a host, or on a socket that somebody else has bound."""

    def __init__(self, on_accepted: Callable[[socket.socket], None]) -> None:
        self._on_accepted = on_accepted
        self._sockets: list[socket.socket] = []
        self._tasks = Tasks()

    async def open(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((one[0], one[4]) for one in found):
                made = socket.create_server(address[:2], family=family, backlog=BACKLOG)
                made.setblocking(False)
                self._sockets.append(made)
        except OSError:
            self._close_sockets()
            raise
        self._attend()
        return int(self._sockets[0].getsockname()[1])

    def adopt(self, bound: socket.socket) -> None:
        """Listens on a socket that has its address already, and closes it in the end."""
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._sockets.append(bound)
        self._attend()

    def _attend(self) -> None:
        for listening in self._sockets:
            self._tasks.keep(partial(self._accept, listening), name="accept")

    async def close(self) -> None:
        """Listens no more."""
        await self._tasks.stop()
        self._close_sockets()

    def _close_sockets(self) -> None:
        while self._sockets:
            self._sockets.pop().close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted: socket.socket | None = (await loop.sock_accept(listening))[0]
            except OSError as error:
                if not _passes(error):
                    raise
                await asyncio.sleep(_PAUSE_S)
                continue

            count = 0
            while accepted is not None:
                self._on_accepted(accepted)
                count += 1
                accepted = _next(listening) if count < _TURN_MAX else None


def _next(listening: socket.socket) -> socket.socket | None:
    """One more that waits already."""
    try:
        accepted = listening.accept()[0]
    except OSError:
        # None is there, or the next turn meets the same error.
        return None
    accepted.setblocking(False)
    return accepted


def _passes(error: OSError) -> bool:
    """Whether it is of this moment: no room in the system, or a client that is gone again."""
    busy = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
    return error.errno in (*busy, errno.ECONNABORTED, errno.EPERM, errno.EPROTO)
