"""The console as a client of its cluster's timelines, through the same door as everybody.

A link is made with the first request and lives as long as the server; it costs a connection.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.broker.security import OwnWay
from dovetail.errors import Unavailable

if TYPE_CHECKING:
    from dovetail.sdk import Dovetail
    from dovetail.sdk.timeline import Timeline


class TimelineLink:
    """Timelines by name."""

    def __init__(self, door: Callable[[], str], way: Callable[[], OwnWay]) -> None:
        """`door` gives the address of the node's door, `way` how to come in; both raise
        `Unavailable`."""
        self._door = door
        self._way = way
        self._client: Dovetail | None = None

    async def client(self) -> "Dovetail":
        """The client of the node."""
        if self._client is None:
            from dovetail.sdk import connect

            way = self._way()
            client = connect(
                self._door(),
                client_id="dovetail-console",
                tls=way.tls,
                user=way.user,
                password=way.password,
            )
            self._client = await client.__aenter__()
        return self._client

    async def timeline(self, name: str) -> "Timeline":
        """A timeline; nothing is asked yet."""
        return (await self.client()).timeline(name)

    async def close(self) -> None:
        """Ends the connection; the next request makes another."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)


def serves_none(error: Unavailable) -> bool:
    """Whether an error says that the node has no timelines at all."""
    return "serves no timelines" in str(error)
