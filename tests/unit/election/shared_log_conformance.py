"""What every shared log promises; each kind runs this suite.

`make()` gives another member's view of one and the same log.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dovetail.election import MemberName, SharedLog, Term
from dovetail.election.fold import Challenge, Claim, LogState, Register, Report
from dovetail.election.identifiers import Incarnation
from dovetail.election.shared_log import Entry
from dovetail.errors import Fenced

DEADLINE_S = 60.0

Make = Callable[[], Awaitable["Opened"]]


class Opened:
    """A log that was opened, with what it passed on."""

    def __init__(self, log: SharedLog) -> None:
        self.log = log
        self.entries: list[Entry] = []
        self._changed = asyncio.Event()

    def on_entry(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._changed.set()

    @property
    def state(self) -> LogState:
        return self.log.state

    async def until(self, reached: Callable[[LogState], bool]) -> None:
        """Waits until the state is as wanted."""
        async with asyncio.timeout(DEADLINE_S):
            while not reached(self.state):
                self._changed.clear()
                await self._changed.wait()


def register(name: str, position: int | None = None) -> Register:
    where = None if position is None else {0: position}
    return Register(MemberName(name), Incarnation(f"{name}1"), where)


def claim(term: int, name: str) -> Claim:
    return Claim(Term(term), MemberName(name), Incarnation(f"{name}1"))


def report(term: int, name: str, sequence: int, offset: int) -> Report:
    life = Incarnation(f"{name}1")
    return Report(Term(term), MemberName(name), life, sequence, {0: offset})


class SharedLogConformance:
    """The suite; subclasses give `make`."""

    async def test_records_reach_every_member(self, make: Make) -> None:
        """S6: those that are there and those that come later, in one order, each once."""
        first = await make()
        await first.log.append(register("a", 3))
        second = await make()
        assert second.state.heard_of(MemberName("a")) is not None
        await second.log.append(register("b"))
        await first.until(lambda state: state.heard_of(MemberName("b")) is not None)
        assert [entry.record for entry in first.entries] == [register("a", 3), register("b")]
        assert [entry.record for entry in second.entries] == [register("b")]
        assert first.state.position == second.state.position == {0: 3}

    async def test_a_term_is_claimed_once(self, make: Make) -> None:
        """S7, S8: the first writer wins, the second is told; lower terms as well."""
        first, second = await make(), await make()
        await first.log.append(claim(2, "a"))
        for term in (1, 2):
            with pytest.raises(Fenced, match="term 2, led by a"):
                await second.log.append(claim(term, "b"))
        await second.log.append(claim(3, "b"))
        await first.until(lambda state: state.leader == "b")
        assert first.state.term == second.state.term == 3

    async def test_claims_at_once_have_one_winner_a_term(self, make: Make) -> None:
        """S8: ten members claim the same terms at the same moment."""
        members = [await make() for _ in range(3)]

        async def try_claim(number: int) -> list[int]:
            won = []
            for term in range(1, 6):
                try:
                    await members[number % 3].log.append(claim(term, f"m{number}"))
                    won.append(term)
                except Fenced:
                    continue
            return won

        won = await asyncio.gather(*(try_claim(number) for number in range(10)))
        claimed = [term for terms in won for term in terms]
        assert len(claimed) == len(set(claimed))
        assert max(claimed) == 5
        for member in members:
            await member.until(lambda state: state.term == 5)
        assert len({member.state.leader for member in members}) == 1

    async def test_the_commit_of_an_old_leader_is_refused(self, make: Make) -> None:
        """S8, S9: the position that the log holds moves by the leader of the highest term alone."""
        old, new = await make(), await make()
        await old.log.append(claim(1, "a"))
        await old.log.append(report(1, "a", 1, 10))
        await new.log.append(claim(2, "b"))
        with pytest.raises(Fenced, match="report of term 1 by a refused"):
            await old.log.append(report(1, "a", 2, 99))
        await new.log.append(report(2, "b", 1, 11))
        later = await make()
        assert later.state.position == new.state.position == {0: 11}

    async def test_what_was_trimmed_is_still_known(self, make: Make) -> None:
        """S6, S9: a member that comes after the trimming agrees with those that were there."""
        first, there = await make(), await make()
        await first.log.append(register("a", 3))
        await first.log.append(claim(1, "a"))
        for number in range(20):
            await first.log.append(report(1, "a", number, number))
        await first.log.trim()
        assert first.log.untrimmed_count <= 2
        later = await make()
        assert later.log.untrimmed_count <= 2
        assert (later.state.term, later.state.leader) == (1, "a")
        assert later.state.position == {0: 19}
        assert later.state.heard_of(MemberName("a")) is not None
        with pytest.raises(Fenced):
            await later.log.append(claim(1, "b"))
        await later.log.append(claim(2, "b"))
        await there.until(lambda state: state.term == 2)
        await later.log.append(Challenge(MemberName("a"), Incarnation("a1"), MemberName("b")))
        with pytest.raises(Fenced):
            await first.log.append(report(1, "a", 99, 99))
