"""A leadership: one term of one member, and what a member knows about its cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dovetail.clock import Clock
from dovetail.election.election import Election, Role
from dovetail.election.fold import PastElection
from dovetail.election.identifiers import Algorithm, MemberName, Position, Term


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What a member knows at a moment."""

    name: MemberName
    algorithm: Algorithm
    role: Role
    #: The highest term in the shared log, and who claimed it.
    term: Term
    leader: MemberName | None
    members: tuple[MemberName, ...]
    elections: tuple[PastElection, ...]
    failure: str | None = None
    #: Whether another process takes part under the same name: the two take turns to lead.
    has_twin: bool = False


class Leadership:
    """One term of this member as leader."""

    __slots__ = ("_clock", "_election", "_lost", "_report", "lost", "term")

    def __init__(
        self,
        term: Term,
        election: Election,
        clock: Clock,
        report: Callable[[Term, Position | None], Awaitable[None]],
    ) -> None:
        self.term = term
        #: Set when the leadership is lost; it does not come back.
        self.lost = asyncio.Event()
        self._lost = False
        self._election = election
        self._clock = clock
        self._report = report

    @property
    def valid(self) -> bool:
        """Whether this member still leads, as far as it can know; safe from any thread."""
        return not self._lost and self._clock.monotonic_ms() < self._election.valid_until_ms

    async def confirm(self, position: Position | None = None) -> None:
        """Returns if nobody led after this leadership until now; `position` is committed with it.

        Raises `Fenced` if somebody did, `Uncertain` or `Unavailable` if it cannot be known.
        """
        await self._report(self.term, position)

    def end(self) -> None:
        """The leadership is lost."""
        self._lost = True
        self.lost.set()
