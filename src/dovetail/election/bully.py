"""BULLY: the strongest reachable member leads. For clusters of two.

    FOLLOWER  a weaker member's ping is heard  -> CLAIMING, at once: the primary takes over
              the leader is missed             -> CLAIMING, the stronger ones sooner
    LEADER    no report of it was accepted by the shared log for two timeouts -> FOLLOWER

Strength is a stable hash of the endpoint, ties by name. There is no vote: two members that cannot
see each other both want to lead. The shared log decides between them: it accepts one claim after
the other, the last one leads, and its reports in the log count as pings. So a cut between the
members alone changes nothing, and a member that is cut off from the log cannot lead. The only cost
against MAJORITY: a hasty claim can move the leadership once more than needed.

Survives: the loss of either member, a cut between them, the primary's return.
"""

import random
from hashlib import blake2b

from dovetail.election.effects import Effect, Renew
from dovetail.election.election import Election, Identity, Role, Times
from dovetail.election.fold import LogState, Report
from dovetail.election.identifiers import MemberName, Term
from dovetail.election.messages import Ping, PingAnswer
from dovetail.election.pinging import Pinging

#: A member of rank n stands after 1 + n * `PER_RANK` timeouts and a little at random.
PER_RANK = 0.4
#: Ranks above this wait no longer: the strong ones can all be dead.
RANK_MAX = 2
JITTER = 0.2
#: Reports of the leader in one timeout.
RENEWALS_PER_TIMEOUT = 3
#: A leader that cannot write for so many timeouts stops.
UNHEARD_TIMEOUTS = 2
#: A claim that failed is tried again after so many timeouts.
RETRY = (0.3, 0.6)


def strength(name: MemberName) -> tuple[bytes, str]:
    """What members are compared by; the same on every machine."""
    return blake2b(name.encode(), digest_size=8).digest(), name


class BullyElection(Election):
    """One member's part in elections by strength."""

    def __init__(
        self, me: Identity, times: Times, state: LogState, rng: random.Random, *, now_ms: float
    ) -> None:
        super().__init__(me, times, state, rng, now_ms=now_ms)
        self._pinging = Pinging(times.heartbeat_ms, times.event_ping_ms)
        self._renewed_ms = now_ms
        self._not_before_ms = now_ms
        self._jitter = 0.0
        self._reset_timer(now_ms)

    def _reset_timer(self, now_ms: float) -> None:
        self._jitter = self._rng.uniform(0.0, JITTER)
        self._not_before_ms = now_ms

    def _stand_ms(self, now_ms: float) -> float:
        stronger = [name for name in self.others(now_ms) if strength(name) > strength(self.me.name)]
        waits = 1.0 + PER_RANK * min(len(stronger), RANK_MAX) + self._jitter
        missed_ms = self.watch.missed_since_ms()
        return max(missed_ms + waits * self.times.timeout_ms, self._not_before_ms)

    def _algorithm_wake_ms(self) -> float:
        if self.role is Role.LEADER:
            return min(self._pinging.due_ms, self._renewal_due_ms, self.valid_until_ms)
        if self.role is Role.FOLLOWER and self._source_alive:
            return self._stand_ms(self.watch.heard_ms)
        return float("inf")

    @property
    def _renewal_due_ms(self) -> float:
        return self._renewed_ms + self.times.timeout_ms / RENEWALS_PER_TIMEOUT

    def _tick(self, now_ms: float) -> list[Effect]:
        if self.role is Role.LEADER:
            return self._lead_on(now_ms)
        stands = self.role is Role.FOLLOWER and self._source_alive
        if stands and now_ms >= self._stand_ms(now_ms):
            return self._claim(self._next_term(), now_ms)
        return []

    def _on_heard_leader(self, ping: Ping, now_ms: float) -> list[Effect]:
        weaker = strength(ping.sender) < strength(self.me.name)
        stands = self.role is Role.FOLLOWER and self._source_alive
        if weaker and stands and now_ms >= self._not_before_ms:
            return self._claim(Term(max(self._next_term(), ping.term + 1)), now_ms)
        return []

    def _on_report(self, report: Report, now_ms: float) -> list[Effect]:
        if report.member == self.me.name:
            return []
        if report.received is None:
            self.watch.on_heard(now_ms)
        else:
            self.watch.on_ping(report.received, busy=report.busy, now_ms=now_ms)
        return []

    def _on_vacant(self, now_ms: float) -> list[Effect]:
        if self.role is Role.FOLLOWER:
            self.watch.heard_ms = now_ms - self.times.timeout_ms
        return []

    def _on_led(self, now_ms: float) -> list[Effect]:
        self._pinging.start(self.others(now_ms), now_ms)
        return self._on_renewed(now_ms) + self._lead_on(now_ms)

    def _on_renewed(self, now_ms: float) -> list[Effect]:
        self.valid_until_ms = now_ms + UNHEARD_TIMEOUTS * self.times.timeout_ms
        return []

    def _lead_on(self, now_ms: float) -> list[Effect]:
        if now_ms >= self.valid_until_ms:
            return self._step_down("the shared log could not be written", now_ms)
        effects: list[Effect] = []
        if now_ms >= self._renewal_due_ms:
            self._renewed_ms = now_ms
            effects.append(Renew(self.term, dict(self.watch.received), self._busy))
        if now_ms >= self._pinging.due_ms:
            self._pinging.on_sent(now_ms)
            effects += self._ping(now_ms)
        return effects

    def _on_ping_answer(self, answer: PingAnswer, now_ms: float) -> list[Effect]:
        self._pinging.on_answer(answer.sender, sent_ms=answer.sent_ms, now_ms=now_ms)
        return []

    def _on_own_event(self, now_ms: float) -> list[Effect]:
        self._pinging.on_event()
        return self._lead_on(now_ms)

    def _on_stepped_down(self, now_ms: float) -> list[Effect]:
        self._not_before_ms = now_ms + self.times.timeout_ms * self._rng.uniform(*RETRY)
        return []
