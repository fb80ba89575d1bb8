"""The simulation of the shared stream notices: known bugs are planted, and it must go red."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.stream.stream_world import SimEvent
from tests.sim.stream.test_stream_sim import run_seed

from dovetail.election.bully import BullyElection
from dovetail.election.effects import Effect, StepDown, Vote
from dovetail.election.election import Role
from dovetail.election.fold import Claim, LogState
from dovetail.election.identifiers import Algorithm, MemberName, Position, Term
from dovetail.election.majority import MajorityElection
from dovetail.election.messages import VoteAnswer, VoteRequest
from dovetail.stream.delivery import Delivery, Handle, Phase, Step
from dovetail.stream.settings import Takeover

#: A planted bug must show within so many seeds.
SEEDS_MAX = 400


def turns_red(symptom: str, **planted: Any) -> bool:
    """Whether one of the seeds finds a problem with this symptom."""
    problems = (p for seed in range(SEEDS_MAX) for p in run_seed(seed, **dict(planted)))
    return any(symptom in problem for problem in problems)


def vote_not_kept(*given: Any, vote: Vote, now_ms: float) -> MajorityElection:
    """Planted: a restart forgets the vote."""
    del vote
    return MajorityElection(*given, vote=Vote(), now_ms=now_ms)


class AnyReply(MajorityElection):
    """Planted: answers to earlier rounds and terms are counted."""

    def _is_of_this_round(self, answer: VoteAnswer) -> bool:
        return self.role is Role.CANDIDATE


class CountTheDead(MajorityElection):
    """Planted: whoever was once announced is counted for ever."""

    def members(self, now_ms: float) -> list[MemberName]:
        counted = self.state.counted(now_ms=now_ms, interval_ms=float("inf"), grace_ms=float("inf"))
        return sorted({*counted, self.me.name})


class SilentVote(MajorityElection):
    """Planted: a leader that votes for another is one no more, and does not say so."""

    def _on_vote_request(self, request: VoteRequest, now_ms: float) -> list[Effect]:
        effects = super()._on_vote_request(request, now_ms)
        return [effect for effect in effects if not isinstance(effect, StepDown)]


@pytest.mark.parametrize(
    ("planted", "symptom"),
    [
        (vote_not_kept, "voted twice"),
        (AnyReply, "with the votes"),
        (CountTheDead, "no leader"),
        (SilentVote, "was not told"),
    ],
)
def test_planted_bug_in_the_election_is_found(
    planted: Callable[..., MajorityElection], symptom: str
) -> None:
    """R1, S3, S6: vote not persisted, stale reply or dead member counted, end not told."""
    assert turns_red(symptom, algorithm=Algorithm.MAJORITY, factory=planted)


class WithoutBarrier(Delivery[SimEvent]):
    """Planted: events are handled without asking the log once more."""

    def _next_batch(self) -> list[Step[SimEvent]]:
        super()._next_batch()
        self.phase = Phase.HANDLING if self._batch else Phase.READING
        return [Handle(self._term, self._batch)] if self._batch else []


def test_handling_without_the_barrier_is_found() -> None:
    """R1, S8: two leaders handle one event, each under its own term."""
    assert turns_red(
        "handled under", takeover=Takeover.SKIP, delivery=WithoutBarrier, clock_rates=(0.5, 2.0)
    )


class CommitBeforeHandling(Delivery[SimEvent]):
    """Planted: the position moves when events are received."""

    def _next_batch(self) -> list[Step[SimEvent]]:
        steps = super()._next_batch()
        for event in self._batch:
            self.handled[event.lane] = event.offset + 1
        return [self._report()] if steps else []


def test_a_commit_before_the_handling_is_found() -> None:
    """R1, S9: what a leader had received and not handled is lost with it."""
    assert turns_red("never handled", takeover=Takeover.RESUME, delivery=CommitBeforeHandling)


class OldEnd(Delivery[SimEvent]):
    """Planted: `skip` begins at the committed position instead of the end."""

    def on_lead(self, term: Term, committed: Position | None) -> list[Step[SimEvent]]:
        super().on_lead(term, committed)
        return self.on_end(term, committed or {})


def test_skipping_to_an_old_end_is_found() -> None:
    """R1, S9: a new leader must look for the end after its claim."""
    assert turns_red("handled under", takeover=Takeover.SKIP, delivery=OldEnd)


class Stubborn(BullyElection):
    """Planted: goes on claiming a term that it has read another's claim to."""

    def _on_claim(self, claim: Claim, now_ms: float) -> list[Effect]:
        mine = claim.incarnation == self.me.incarnation
        if self.role is Role.CLAIMING and claim.term == self.term and not mine:
            return []
        return super()._on_claim(claim, now_ms)


def test_a_log_that_accepts_a_term_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, S7: the first writer of a term wins; else two that see each other not both lead."""
    accepts = LogState._claim

    def lenient(self: LogState, claim: Any, moment: Any) -> bool:
        if claim.term == self.term:
            self.claim = None
        return accepts(self, claim, moment)

    monkeypatch.setattr(LogState, "_claim", lenient)
    assert turns_red("two leaders", algorithm=Algorithm.BULLY, factory=Stubborn)


def test_a_log_that_accepts_old_commits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, S9: the commit of an old leader must not count."""
    monkeypatch.setattr(LogState, "_is_of_claim", lambda _self, _report: True)
    assert turns_red("back to", takeover=Takeover.RESUME)
