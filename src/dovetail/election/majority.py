"""MAJORITY: numbered elections, one vote per term on disk, more than half of the counted members.

    FOLLOWER   the leader is missed for a fresh random time -> trial round (CANDIDATE)
    CANDIDATE  trial: more than half would vote  -> real round with the next term, vote on disk
               real:  more than half voted       -> CLAIMING
               neither within the time           -> FOLLOWER, and the silent ones are challenged
    LEADER     fewer than half answer within the timeout -> FOLLOWER

The trial round (pre-vote) costs no term: a member that is cut off, or that alone misses the leader,
disturbs nobody. A member that hears the leader grants neither trial nor vote. Granting postpones
its own candidacy, so that proposals are staggered.

Survives: any minority lost, cut off or paused; stale, late and repeated answers (they name the
round and the term); restarts with the vote on disk. Without the disk two candidates can win one
term; the shared log then accepts the first claim and refuses the second. When most members are gone
for good, the rest challenge them in the log, and lead on when they do not answer there: a member
that cannot reach the log cannot lead either, and need not be counted.

The voting term may run ahead of the claimed one. A ping is judged by the claim in the log, so a
candidate that lost follows the old leader again and disturbs nothing.
"""

import random

from dovetail.election.effects import Effect, Persist, Reply, Send, Vote
from dovetail.election.election import Election, Identity, Role, Times
from dovetail.election.fold import LogState
from dovetail.election.identifiers import MemberName, Term
from dovetail.election.messages import Message, Ping, PingAnswer, VoteAnswer, VoteRequest
from dovetail.election.pinging import Pinging

#: A follower stands after so many timeouts without the leader, drawn anew each time.
PATIENCE = (1.0, 1.5)
#: After a round without a winner, or a vote for another, the next try comes after so many.
RETRY = (0.3, 1.0)
#: A round that has no majority after so many timeouts is over.
ROUND = 0.5
#: A member that heard the leader within so many timeouts votes for nobody.
LOYALTY = 0.75
#: The leader challenges who did not answer for so many timeouts.
SILENCE = 0.5


def majority_of(count: int) -> int:
    """More than half."""
    return count // 2 + 1


class MajorityElection(Election):
    """One member's part in elections by majority."""

    def __init__(
        self,
        me: Identity,
        times: Times,
        state: LogState,
        rng: random.Random,
        *,
        now_ms: float,
        vote: Vote,
    ) -> None:
        super().__init__(me, times, state, rng, now_ms=now_ms)
        self.vote = vote
        self._pinging = Pinging(times.heartbeat_ms, times.event_ping_ms)
        self._election = 0
        self._trial = False
        self._round_term = Term(0)
        self._round_until_ms = float("inf")
        self._granted: set[MemberName] = set()
        self._answered: set[MemberName] = set()
        self._patience_ms = 0.0
        self._not_before_ms = now_ms
        self._reset_timer(now_ms)

    def needed(self, now_ms: float) -> int:
        """How many members, this one included, make a majority."""
        return majority_of(len(self.members(now_ms)))

    def _reset_timer(self, now_ms: float) -> None:
        self._patience_ms = self.times.timeout_ms * self._rng.uniform(*PATIENCE)
        self._not_before_ms = now_ms

    def _put_off(self, now_ms: float) -> None:
        self._not_before_ms = now_ms + self.times.timeout_ms * self._rng.uniform(*RETRY)

    def _stand_ms(self) -> float:
        """When this member stands, if it hears nothing from the leader."""
        return max(self.watch.missed_since_ms() + self._patience_ms, self._not_before_ms)

    def _algorithm_wake_ms(self) -> float:
        if self.role is Role.LEADER:
            return min(self._pinging.due_ms, self.valid_until_ms)
        if self.role is Role.CANDIDATE:
            return self._round_until_ms
        return self._stand_ms() if self._source_alive else float("inf")

    def _tick(self, now_ms: float) -> list[Effect]:
        if self.role is Role.LEADER:
            return self._lead_on(now_ms)
        if self.role is Role.CANDIDATE and now_ms >= self._round_until_ms:
            return self._end_round(now_ms)
        if self.role is Role.FOLLOWER and self._source_alive and now_ms >= self._stand_ms():
            return self._begin_round(now_ms, trial=True)
        return []

    # --- candidate ----------------------------------------------------------------------------

    def _begin_round(self, now_ms: float, *, trial: bool) -> list[Effect]:
        self.role, self._trial = Role.CANDIDATE, trial
        self._election += 1
        self._round_until_ms = now_ms + ROUND * self.times.timeout_ms
        self._granted, self._answered = {self.me.name}, {self.me.name}
        effects: list[Effect] = []
        if trial:
            self._round_term = Term(max(self.vote.term, self.state.term) + 1)
        else:
            self.vote = Vote(self._round_term, self.me.name)
            effects.append(Persist(self.vote))

        request = VoteRequest(
            sender=self.me.name,
            incarnation=self.me.incarnation,
            term=self._round_term,
            election=self._election,
            trial=trial,
        )
        effects += [Send(member, request) for member in self.others(now_ms)]
        return effects + self._decide(now_ms)

    def _decide(self, now_ms: float) -> list[Effect]:
        if len(self._granted & set(self.members(now_ms))) < self.needed(now_ms):
            return []
        if not self._trial:
            return self._claim(self._round_term, now_ms)
        if self._round_term <= max(self.vote.term, self.state.term):
            return self._end_round(now_ms)
        return self._begin_round(now_ms, trial=False)

    def _end_round(self, now_ms: float) -> list[Effect]:
        silent = [name for name in self.others(now_ms) if name not in self._answered]
        self.role = Role.FOLLOWER
        self._put_off(now_ms)
        return self._challenge(silent, now_ms)

    def _on_other(self, message: Message, now_ms: float) -> list[Effect]:
        if isinstance(message, VoteRequest):
            return self._on_vote_request(message, now_ms)
        if isinstance(message, VoteAnswer) and self._is_of_this_round(message):
            self._answered.add(message.sender)
            if message.granted:
                self._granted.add(message.sender)
                return self._decide(now_ms)
            if message.known_term >= self._round_term:
                return self._catch_up(message.known_term, now_ms)
        return []

    def _is_of_this_round(self, answer: VoteAnswer) -> bool:
        return (
            self.role is Role.CANDIDATE
            and answer.election == self._election
            and answer.trial == self._trial
            and answer.term == self._round_term
        )

    def _catch_up(self, known_term: Term, now_ms: float) -> list[Effect]:
        """Somebody is ahead: this round is lost, the next one begins above."""
        self.role = Role.FOLLOWER
        self._put_off(now_ms)
        if known_term <= self.vote.term:
            return []
        self.vote = Vote(known_term)
        return [Persist(self.vote)]

    # --- voter --------------------------------------------------------------------------------

    def _on_vote_request(self, request: VoteRequest, now_ms: float) -> list[Effect]:
        known_term = Term(max(self.vote.term, self.state.term))
        if self._is_loyal(now_ms):
            # Its term is not the candidate's business: it should follow, not catch up.
            return [self._vote_answer(request, granted=False, known_term=Term(0))]
        if request.trial:
            granted = request.term > known_term
            if granted and self.role is Role.FOLLOWER:
                self._put_off(now_ms)
            return [self._vote_answer(request, granted=granted, known_term=known_term)]

        again = self.vote == Vote(request.term, request.sender)
        if not again and not self._may_vote(request, known_term):
            return [self._vote_answer(request, granted=False, known_term=known_term)]

        effects: list[Effect] = []
        if self.role is Role.LEADER:
            # Its time is over and its tick is still to come: whoever acts as leader must hear it.
            effects += self._step_down("it voted for another after its own majority", now_ms)
        self.role = Role.FOLLOWER
        if not again:
            self.vote = Vote(request.term, request.sender)
            effects.append(Persist(self.vote))
        self._reset_timer(now_ms)
        self._not_before_ms = now_ms + self._patience_ms
        return [*effects, self._vote_answer(request, granted=True, known_term=request.term)]

    def _may_vote(self, request: VoteRequest, known_term: Term) -> bool:
        free = request.term == self.vote.term and self.vote.candidate is None
        return request.term > self.state.term and (request.term > known_term or free)

    def _is_loyal(self, now_ms: float) -> bool:
        if self.role is Role.LEADER:
            return now_ms < self.valid_until_ms
        if self.state.claim is None or self.role is Role.CLAIMING:
            return False
        return now_ms - self.watch.missed_since_ms() < LOYALTY * self.times.timeout_ms

    def _vote_answer(self, request: VoteRequest, *, granted: bool, known_term: Term) -> Reply:
        return Reply(
            VoteAnswer(
                sender=self.me.name,
                incarnation=self.me.incarnation,
                term=request.term,
                election=request.election,
                trial=request.trial,
                granted=granted,
                known_term=known_term,
            )
        )

    # --- leader -------------------------------------------------------------------------------

    def _on_led(self, now_ms: float) -> list[Effect]:
        self._pinging.start(self.others(now_ms), now_ms)
        return self._lead_on(now_ms)

    def _lead_on(self, now_ms: float) -> list[Effect]:
        others = self.others(now_ms)
        self._pinging.meet(others, now_ms)
        self._renew_validity(others, now_ms)
        if now_ms >= self.valid_until_ms:
            reason = f"it reached no majority of {len(others) + 1} members within the timeout"
            return self._step_down(reason, now_ms)
        if now_ms < self._pinging.due_ms:
            return []
        self._pinging.on_sent(now_ms)
        limit_ms = now_ms - SILENCE * self.times.timeout_ms
        silent = [name for name in others if self._pinging.reached_ms(name) < limit_ms]
        return self._ping(now_ms) + self._challenge(silent, now_ms)

    def _renew_validity(self, others: list[MemberName], now_ms: float) -> None:
        self.valid_until_ms = self._pinging.quorum_until_ms(
            others,
            needed=majority_of(len(others) + 1) - 1,
            timeout_ms=self.times.timeout_ms,
            now_ms=now_ms,
        )

    def _on_ping_answer(self, answer: PingAnswer, now_ms: float) -> list[Effect]:
        self._pinging.on_answer(answer.sender, sent_ms=answer.sent_ms, now_ms=now_ms)
        self._renew_validity(self.others(now_ms), now_ms)
        return []

    def _on_own_event(self, now_ms: float) -> list[Effect]:
        self._pinging.on_event()
        return self._lead_on(now_ms)

    def _on_heard_leader(self, ping: Ping, now_ms: float) -> list[Effect]:
        if self.role is not Role.FOLLOWER:
            self.role = Role.FOLLOWER
        self._patience_ms = self.times.timeout_ms * self._rng.uniform(*PATIENCE)
        return []

    def _on_stepped_down(self, now_ms: float) -> list[Effect]:
        """Others may stand at once, and get this member's vote; it waits for them first."""
        self.watch.heard_ms = float("-inf")
        self._not_before_ms = now_ms + self._patience_ms
        return []

    def _on_vacant(self, now_ms: float) -> list[Effect]:
        if self.role is Role.FOLLOWER:
            self.watch.heard_ms = float("-inf")
            self._not_before_ms = now_ms + self.times.timeout_ms * self._rng.uniform(0.0, 0.3)
        return []
