"""The contract of messages between members: a message to a member, and perhaps its answer.

A `Transport` may lose, delay, repeat and reorder messages; the elections tolerate all of that. It
must not deliver a message that no member of the cluster has sent: the HTTP transport signs.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from dovetail.election.election import Identity
from dovetail.election.identifiers import Incarnation, MemberName
from dovetail.election.messages import Message, decode_message, encode_message
from dovetail.errors import Unavailable

#: What a member does with a message; it gives back the answer, if there is one.
Receive = Callable[[Message], Awaitable[Message | None]]
#: The present life of a member, as the shared log has it.
Directory = Callable[[MemberName], Incarnation | None]


class Transport(Protocol):
    """Messages between members."""

    async def start(self, me: Identity, receive: Receive, directory: Directory) -> None:
        """Begins to receive. Raises `Unavailable` if the address cannot be taken."""
        ...

    async def send(self, to: MemberName, message: Message) -> Message | None:
        """Sends a message and waits for the answer. Raises `Unavailable` if it did not come."""
        ...

    async def close(self) -> None:
        """Ends receiving; safe to call again."""
        ...


class MemoryNetwork:
    """What `MemoryTransport`s of one process share; `cut` holds pairs (from, to) that are cut."""

    def __init__(self) -> None:
        self.receivers: dict[MemberName, Receive] = {}
        self.cut: set[tuple[MemberName, MemberName]] = set()

    def cut_off(self, member: MemberName) -> None:
        """Cuts a member off from all others, both ways."""
        for other in self.receivers:
            self.cut |= {(member, other), (other, member)}

    def heal(self) -> None:
        """Removes all cuts."""
        self.cut.clear()


class MemoryTransport:
    """A transport in memory, for tests."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._me: MemberName | None = None

    async def start(self, me: Identity, receive: Receive, directory: Directory) -> None:
        self._me = me.name
        self._network.receivers[me.name] = receive

    async def send(self, to: MemberName, message: Message) -> Message | None:
        receive = self._network.receivers.get(to)
        if receive is None or self._me is None or (self._me, to) in self._network.cut:
            raise Unavailable(f"{to} does not answer")
        answer = await receive(decode_message(encode_message(message)))
        if (to, self._me) in self._network.cut:
            raise Unavailable(f"the answer of {to} was lost")
        return answer

    async def close(self) -> None:
        if self._me is not None:
            self._network.receivers.pop(self._me, None)
