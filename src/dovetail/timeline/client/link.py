"""One node, as a client calls it: a request in, its answer or its error out.

`Link` is the seam between the client and the node: over a connection (`NetworkLink`), or in one
process (`fake`). A request that changes something and whose answer was lost is `Uncertain`; the
client repeats only what is safe to repeat.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from dovetail.addresses import parse_addresses
from dovetail.background import Tasks, start_task
from dovetail.errors import DovetailError, InvalidInput, Unavailable, Uncertain
from dovetail.timeline.frames import CALLS
from dovetail.wire.calls import Answer, Request, decode_answer, greeting
from dovetail.wire.login import NOBODY, ClientLogin
from dovetail.wire.peer import Peer, PeerSettings
from dovetail.wire.peer import Request as WireRequest

Answered = TypeVar("Answered", bound=Answer)

#: From a command to its answer. A store needs milliseconds; a node that hangs is found after this.
COMMAND_MS_MAX: Final = 10_000
#: A node that is not connected after this is left, if there is another one.
CONNECT_MS_MAX: Final = 2_000
#: Between two looks whether it is.
LOOK_S: Final = 0.02
_PORT_DEFAULT: Final = 9092


def checked(message: Request, *, changes: bool) -> tuple[WireRequest, Request]:
    """The request to send, and the message as the node will read it.

    Raises `InvalidInput` for what the node could not read: it would close the connection, and the
    caller would not learn why.
    """
    try:
        request = CALLS.request(message, lost=Uncertain if changes else Unavailable)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{type(message).__name__}: {error}") from error
    return request, CALLS.read_back(request)


class Link(Protocol):
    """A connection to a node, whatever carries it."""

    @property
    def address(self) -> str:
        """Where the node is that is asked now; what is asked next may go to another one."""
        ...

    def beside(self, call_ms_max: int) -> "Link":
        """One more connection to the node that is asked now, and to no other."""
        ...

    async def ask(
        self, message: Request, kind: type[Answered], *, changes: bool = True
    ) -> Answered:
        """The answer. Raises the node's error, `Unavailable`, or `Uncertain` if it `changes`, and
        `InvalidInput` at once for what no node would read."""
        ...

    def turn_away(self) -> None:
        """This node cannot serve us now: asks the next one, if another one is known."""
        ...

    def go_to(self, address: str) -> None:
        """What is asked from now on goes to this node; what was asked is answered as it was."""
        ...

    async def close(self) -> None: ...


class NetworkLink:
    """A connection of its own, made again when it breaks: to the same node, or the next one.

    With several addresses, a node that cannot be reached is left for the next in the list. What was
    asked is asked there, if it cannot have happened; otherwise it fails as it is, and what is asked
    next goes there.
    """

    def __init__(
        self,
        addresses: str,
        *,
        client_id: str,
        call_ms_max: int = COMMAND_MS_MAX,
        login: ClientLogin = NOBODY,
    ) -> None:
        """`addresses`: host:port, with commas between several. Does nothing yet. Call it inside
        the event loop. Raises `InvalidInput`."""
        self._login = login
        self._addresses = parse_addresses(addresses, port_default=_PORT_DEFAULT)
        # Where there are others, a dead node is not waited for as long as a busy one.
        waits_ms = call_ms_max if len(self._addresses) == 1 else CONNECT_MS_MAX
        self._settings = PeerSettings(
            call_ms_max=call_ms_max, connect_ms_max=waits_ms, login=login, hints=True
        )
        self._client_id = client_id
        self._at = 0
        self._closed = False
        #: Requests that are not answered, by where they were asked.
        self._asked: Counter[Peer] = Counter()
        self._peer = self._make_peer()
        self._leaving = Tasks()

    def _make_peer(self) -> Peer:
        return Peer(
            *self._addresses[self._at],
            greeting=greeting(self.address, CALLS.service),
            client_id=self._client_id,
            settings=self._settings,
            rng=random.SystemRandom(),
        )

    @property
    def address(self) -> str:
        return str(self._addresses[self._at])

    def beside(self, call_ms_max: int) -> "NetworkLink":
        return NetworkLink(
            self.address, client_id=self._client_id, call_ms_max=call_ms_max, login=self._login
        )

    async def ask(
        self, message: Request, kind: type[Answered], *, changes: bool = True
    ) -> Answered:
        request, _ = checked(message, changes=changes)
        tries = len(self._addresses)
        while True:
            peer, tries = self._peer, tries - 1
            self._asked[peer] += 1
            asking = peer.ask(request, lambda data: decode_answer(kind, data))
            try:
                if len(self._addresses) == 1 or peer.connected:
                    return await asking
                return await self._ask_unconnected(peer, asking)
            except (Unavailable, Uncertain) as error:
                if peer.connected:
                    raise
                self._leave(peer)
                if isinstance(error, Uncertain) or tries <= 0 or self._closed:
                    raise
            finally:
                self._asked[peer] -= 1

    async def _ask_unconnected(self, peer: Peer, asking: Coroutine[Any, Any, Answered]) -> Answered:
        """Waits for the connection, but not for long: there are others."""
        asked = start_task(asking, name="client/ask", of=peer.address, expected=(DovetailError,))
        deadline_s = asyncio.get_running_loop().time() + CONNECT_MS_MAX / 1000
        try:
            while not (peer.connected or asked.done()):
                if asyncio.get_running_loop().time() > deadline_s:
                    self._leave(peer)
                    break
                await asyncio.sleep(LOOK_S)
            return await asked
        finally:
            asked.cancel()

    def turn_away(self) -> None:
        self._leave(self._peer)

    def go_to(self, address: str) -> None:
        (found,) = parse_addresses(address, port_default=_PORT_DEFAULT)
        if found == self._addresses[self._at]:
            return
        if found not in self._addresses:
            self._addresses = (*self._addresses, found)
        self._at = self._addresses.index(found)
        old, self._peer = self._peer, self._make_peer()
        self._leaving.start(self._close_when_idle(old), name="client/leave")

    def _leave(self, peer: Peer) -> None:
        """Goes on with the next address, unless another request has done that already."""
        if len(self._addresses) == 1 or peer is not self._peer:
            return
        self._at = (self._at + 1) % len(self._addresses)
        self._peer = self._make_peer()
        self._leaving.start(peer.close(), name="client/leave")

    async def close(self) -> None:
        self._closed = True
        await self._peer.close()
        await self._leaving.finish()

    async def _close_when_idle(self, peer: Peer) -> None:
        """Closes a connection when what was asked on it is answered: within its time limit."""
        while self._asked[peer] and not self._closed:
            await asyncio.sleep(LOOK_S)
        await peer.close()
