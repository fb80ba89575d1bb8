"""The console as a client of its cluster's timelines, like every other client.

The connection is made with the first request and lives as long as the server.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.errors import Unavailable
from dovetail.node.security import OwnWay
from dovetail.settings import Settings

if TYPE_CHECKING:
    from dovetail.timeline.client import Dovetail
    from dovetail.timeline.client.timeline import Timeline


class TimelineLink:
    """Timelines by name."""

    def __init__(
        self, address: Callable[[], str], way: Callable[[], OwnWay], settings: Settings
    ) -> None:
        """`address` is the node's listener, `way` how to log in to it; both raise
        `Unavailable`."""
        self._address = address
        self._way = way
        self.missing = missing_of(settings)
        self._client: Dovetail | None = None

    async def client(self) -> "Dovetail":
        """The client of the node."""
        if self.missing is not None:
            raise Unavailable(self.missing)
        if self._client is None:
            from dovetail.timeline.client import connect

            way = self._way()
            client = connect(
                self._address(),
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


def missing_of(settings: Settings) -> str | None:
    """Why a node with these settings has no timelines; None if it has."""
    timeline = settings.timeline
    if not timeline.enabled:
        return "this node serves no timelines: timeline.enabled is false"
    if not settings.coordination.alone and timeline.store != "postgres":
        return (
            "this node serves no timelines: in a cluster they need timeline.store = 'postgres' and "
            "timeline.dsn"
        )
    return None
