"""A member without asyncio: runs `ClusterMember` on an event loop in its own thread.

    with BlockingMember(lambda: ClusterMember(...)) as member:
        leadership = member.lead()                waits until this member leads
        while leadership.valid:
            leadership.confirm()                  raises `Fenced` if somebody leads after you
            ...

The function passed in makes the member, on the loop. Pings go out whatever the caller does: a
caller that hangs keeps the leadership, but a process that is paused loses it.
"""

import asyncio
from typing import Any

from dovetail.blocking import Blocking
from dovetail.election.identifiers import Position, Term
from dovetail.election.leadership import Leadership, MemberStatus
from dovetail.election.member import ClusterMember
from dovetail.errors import Unavailable


class BlockingLeadership:
    """One term of this member as leader; safe from any thread."""

    def __init__(self, client: Blocking[Any], leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership

    @property
    def term(self) -> Term:
        """Give it to the store that you write to."""
        return self._leadership.term

    @property
    def valid(self) -> bool:
        """Whether this member still leads, as far as it can know; a forked child never does."""
        return self._leadership.valid and not self._client.forked

    def confirm(self, position: Position | None = None) -> None:
        """Returns if nobody led after this leadership until now; see `Leadership.confirm`."""
        self._client.call(self._leadership.confirm(position))

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Waits until the leadership is lost; False if it is not lost in time."""
        return self._client.call(_in_time(self._leadership.lost, timeout_s))


class BlockingMember(Blocking[ClusterMember]):
    """A member whose calls return when they are done."""

    def lead(self, timeout_s: float | None = None) -> BlockingLeadership:
        """Waits until this member leads.

        Raises `Unavailable` if it does not in time, and what ended the member, if something did.
        """
        return BlockingLeadership(self, self.call(_led(self.held, timeout_s)))

    def status(self) -> MemberStatus:
        """What this member knows now."""
        return self.call(_status(self.held))


async def _led(member: ClusterMember, timeout_s: float | None) -> Leadership:
    try:
        async with asyncio.timeout(timeout_s):
            return await member.lead()
    except TimeoutError as error:
        raise Unavailable(f"this member does not lead within {timeout_s:g} s") from error


async def _status(member: ClusterMember) -> MemberStatus:
    return member.status()


async def _in_time(event: asyncio.Event, timeout_s: float | None) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
