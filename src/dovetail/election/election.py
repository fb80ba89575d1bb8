"""An election as a pure machine: what all three algorithms share.

Promise of every algorithm: a member is leader of a term only after the shared log accepted its
claim to that term. The log accepts each term once and never a lower one (`fold`), so no two members
lead under the same term, whatever the algorithm, the network, the clocks or the disks do. The
algorithm decides who tries, and when: it keeps the number of tries low and the choice good.

    FOLLOWER ---the algorithm decides to stand---> CANDIDATE (MAJORITY, COORDINATOR)
    CANDIDATE --it won------------------------> CLAIMING
    CLAIMING ---the log accepted the claim----> LEADER
    any --------a higher claim is read, or the leader cannot go on, or it failed---> FOLLOWER

Survives, by itself: a claim with an unknown outcome (it is given up; if it appears in the log
later, its term is used up and nobody leads under it), a leader that was paused (it reads the higher
claim, or a ping of the higher term, and steps down), a member that is no longer counted (it
registers again).

Events are calls with the time, effects are what they return; the same calls give the same effects.
`wake_ms` says when the next tick is due.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from dovetail.election.effects import Append, Effect, Lead, Reply, Send, StepDown
from dovetail.election.fold import Challenge, Claim, LogState, Record, Register, Report
from dovetail.election.identifiers import NO_TERM, Incarnation, MemberName, Position, Term
from dovetail.election.messages import Message, Ping, PingAnswer, Resign
from dovetail.election.watch import LeaderWatch

#: Registrations in one interval: two can fail and the third still comes in time.
REGISTRATIONS_PER_INTERVAL = 3
#: One life of a silent member is challenged at most once in so many timeouts.
TIMEOUTS_PER_CHALLENGE = 4
#: A claim whose fate is not known after so many timeouts is given up; a vote's sync and the append
#: both fit into it, also on a slow disk.
CLAIM_TIMEOUTS = 2
#: A challenged member that is alive reads the log and answers within this many timeouts.
GRACE_TIMEOUTS = 2


class Role(Enum):
    """What a member is at the moment."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    CLAIMING = "claiming"
    LEADER = "leader"


class AppendOutcome(Enum):
    """What became of a record that was to be appended."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this member is, in this life."""

    name: MemberName
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Times:
    """The times of an election, in milliseconds."""

    timeout_ms: float
    heartbeat_ms: float
    #: Least time between two pings that events cause.
    event_ping_ms: float
    #: Members must report in within this time to be counted.
    interval_ms: float

    @property
    def grace_ms(self) -> float:
        """How long a challenged member has to show itself."""
        return GRACE_TIMEOUTS * self.timeout_ms


class Election(ABC):
    """One member's part; the algorithms fill in how a leader is found and kept."""

    def __init__(
        self, me: Identity, times: Times, state: LogState, rng: random.Random, *, now_ms: float
    ) -> None:
        self.me = me
        self.times = times
        self.state = state
        self.role = Role.FOLLOWER
        #: The term that this member claims or leads under.
        self.term = NO_TERM
        #: Until when this member surely leads, unless it hears otherwise; monotonic time.
        self.valid_until_ms = float("-inf")
        self.watch = LeaderWatch(heard_ms=now_ms)
        self._rng = rng
        self._source_alive = True
        self._busy = False
        self._stopped = False
        self._registered_ms = now_ms
        self._challenged_ms: dict[Incarnation, float] = {}
        self._claim_until_ms = float("inf")

    # --- events ------------------------------------------------------------------------------

    def on_tick(self, *, now_ms: float) -> list[Effect]:
        """Time went on."""
        if self._stopped:
            return []
        effects = self._register_if_due(now_ms)
        if self.role is Role.CLAIMING and now_ms >= self._claim_until_ms:
            effects += self._give_up(now_ms)
        return effects + self._tick(now_ms)

    def on_message(self, message: Message, *, now_ms: float) -> list[Effect]:
        """A member's message; one that is stale or of another algorithm changes nothing."""
        if self._stopped:
            return []
        if isinstance(message, Ping):
            return self._on_ping(message, now_ms)
        if isinstance(message, PingAnswer):
            if self.role is Role.LEADER and message.term == self.term:
                return self._on_ping_answer(message, now_ms)
            return []
        if isinstance(message, Resign):
            if message.term == self.state.term and message.sender == self.state.leader:
                return self._on_vacant(now_ms)
            return []
        return self._on_other(message, now_ms)

    def on_record(self, record: Record, *, counts: bool, now_ms: float) -> list[Effect]:
        """A record was read from the shared log, and `state` has taken it in."""
        if self._stopped or not counts:
            return []
        if isinstance(record, Claim):
            return self._on_claim(record, now_ms)
        if isinstance(record, Challenge) and record.member == self.me.name:
            return self._register(now_ms)
        if isinstance(record, Report):
            return self._on_report(record, now_ms)
        return []

    def on_appended(self, record: Record, outcome: AppendOutcome, *, now_ms: float) -> list[Effect]:
        """What became of a record of this member; an accepted one was read before."""
        if isinstance(record, Claim):
            failed = outcome is not AppendOutcome.ACCEPTED
            if failed and self.role is Role.CLAIMING and record.term == self.term:
                return self._give_up(now_ms)
        elif isinstance(record, Report):
            if outcome is AppendOutcome.REFUSED and self._leads(record.term):
                return self._step_down("the shared log refused its term", now_ms)
            if outcome is AppendOutcome.ACCEPTED and self._leads(record.term):
                return self._on_renewed(now_ms)
        return []

    def on_received(self, position: Position, *, busy: bool, now_ms: float) -> list[Effect]:
        """This member has received the stream up to here; `busy` if it cannot take more now."""
        self._busy = busy
        self.watch.on_received(position, now_ms=now_ms)
        if self.role is Role.LEADER:
            return self._on_own_event(now_ms)
        return []

    def on_source(self, *, alive: bool, now_ms: float) -> list[Effect]:
        """The stream was lost, or is there again; without it nobody stands or leads."""
        self._source_alive = alive
        if not alive and self.role is Role.LEADER:
            return self._resign("it lost the stream", now_ms)
        if not alive and self.role is not Role.FOLLOWER:
            return self._give_up(now_ms)
        return []

    def on_stop(self, *, now_ms: float) -> list[Effect]:
        """The member stops; a leader says so, so that no member waits for it."""
        effects = (
            self._resign("it was stopped", now_ms)
            if self.role is Role.LEADER
            else self._give_up(now_ms)
        )
        self._stopped = True
        return effects

    def wake_ms(self) -> float:
        """When the next tick is worth making; ticks in between do no harm."""
        register = self._registered_ms + self.times.interval_ms / REGISTRATIONS_PER_INTERVAL
        claim = self._claim_until_ms if self.role is Role.CLAIMING else float("inf")
        return min(register, claim, self._algorithm_wake_ms())

    # --- what the algorithms fill in ----------------------------------------------------------

    @abstractmethod
    def _tick(self, now_ms: float) -> list[Effect]: ...

    @abstractmethod
    def _algorithm_wake_ms(self) -> float: ...

    @abstractmethod
    def _reset_timer(self, now_ms: float) -> None:
        """A fresh random time until this member stands."""

    @abstractmethod
    def _on_led(self, now_ms: float) -> list[Effect]:
        """This member has just become leader."""

    def _on_vacant(self, now_ms: float) -> list[Effect]:
        """The leader reported that it stops."""
        return []

    def _on_heard_leader(self, ping: Ping, now_ms: float) -> list[Effect]:
        """The leader of the highest term pinged."""
        return []

    def _on_other(self, message: Message, now_ms: float) -> list[Effect]:
        return []

    def _on_ping_answer(self, answer: PingAnswer, now_ms: float) -> list[Effect]:
        return []

    def _on_own_event(self, now_ms: float) -> list[Effect]:
        return []

    def _on_report(self, report: Report, now_ms: float) -> list[Effect]:
        return []

    def _on_renewed(self, now_ms: float) -> list[Effect]:
        """A report of this leader was accepted."""
        return []

    def _on_stepped_down(self, now_ms: float) -> list[Effect]:
        """This member has just stopped being leader or claiming."""
        return []

    # --- what they share ----------------------------------------------------------------------

    def members(self, now_ms: float) -> list[MemberName]:
        """The members that count now, this one included."""
        names = set(
            self.state.counted(
                now_ms=now_ms,
                interval_ms=self.times.interval_ms,
                grace_ms=self.times.grace_ms,
            )
        )
        return sorted(names | {self.me.name})

    def others(self, now_ms: float) -> list[MemberName]:
        """The members that count now, without this one."""
        return [name for name in self.members(now_ms) if name != self.me.name]

    def _leads(self, term: Term) -> bool:
        return self.role is Role.LEADER and self.term == term

    def _next_term(self) -> Term:
        return Term(max(self.term, self.state.term) + 1)

    def _ping(self, now_ms: float) -> list[Effect]:
        ping = Ping(
            sender=self.me.name,
            incarnation=self.me.incarnation,
            term=self.term,
            sent_ms=now_ms,
            position=dict(self.watch.received),
            busy=self._busy,
        )
        return [Send(member, ping) for member in self.others(now_ms)]

    def _claim(self, term: Term, now_ms: float) -> list[Effect]:
        self.role, self.term = Role.CLAIMING, term
        self._claim_until_ms = now_ms + CLAIM_TIMEOUTS * self.times.timeout_ms
        return [Append(Claim(term, self.me.name, self.me.incarnation))]

    def _give_up(self, now_ms: float) -> list[Effect]:
        """Back to following, without having led."""
        self.role = Role.FOLLOWER
        self._reset_timer(now_ms)
        return self._on_stepped_down(now_ms)

    def _step_down(self, reason: str, now_ms: float) -> list[Effect]:
        self.role, self.valid_until_ms = Role.FOLLOWER, float("-inf")
        self.watch.on_new_leader(now_ms)
        self._reset_timer(now_ms)
        return [StepDown(self.term, reason), *self._on_stepped_down(now_ms)]

    def _resign(self, reason: str, now_ms: float) -> list[Effect]:
        resign = Resign(sender=self.me.name, incarnation=self.me.incarnation, term=self.term)
        sends: list[Effect] = [Send(member, resign) for member in self.others(now_ms)]
        return [*self._step_down(reason, now_ms), *sends]

    def _on_ping(self, ping: Ping, now_ms: float) -> list[Effect]:
        """A ping of the highest known claim is the leader's; a lower one is of the past."""
        if ping.term < self.state.term or self._leads(ping.term):
            return []
        effects: list[Effect] = []
        if self.role is Role.LEADER:
            effects += self._step_down(f"{ping.sender} leads under term {ping.term}", now_ms)
        if self.role is Role.CLAIMING and ping.term >= self.term:
            effects += self._give_up(now_ms)

        self.watch.on_ping(ping.position, busy=ping.busy, now_ms=now_ms)
        answer = PingAnswer(
            sender=self.me.name,
            incarnation=self.me.incarnation,
            term=ping.term,
            sent_ms=ping.sent_ms,
        )
        return [*effects, Reply(answer), *self._on_heard_leader(ping, now_ms)]

    def _on_claim(self, claim: Claim, now_ms: float) -> list[Effect]:
        mine = (claim.member, claim.incarnation) == (self.me.name, self.me.incarnation)
        if mine and self.role is Role.CLAIMING and claim.term == self.term:
            self.role = Role.LEADER
            self.watch.on_new_leader(now_ms)
            return [Lead(self.term), *self._on_led(now_ms)]

        effects: list[Effect] = []
        if self.role is Role.LEADER:
            effects = self._step_down(f"{claim.member} claimed term {claim.term}", now_ms)
        elif self.role is Role.CANDIDATE or (
            self.role is Role.CLAIMING and claim.term >= self.term
        ):
            effects = self._give_up(now_ms)
        self.watch.on_new_leader(now_ms)
        self._reset_timer(now_ms)
        return effects

    def _register_if_due(self, now_ms: float) -> list[Effect]:
        waited_ms = now_ms - self._registered_ms
        if waited_ms >= self.times.interval_ms / REGISTRATIONS_PER_INTERVAL:
            return self._register(now_ms)
        heard = self.state.heard_of(self.me.name)
        left_out = heard is None or heard.challenged_ms is not None
        if left_out and waited_ms >= self.times.timeout_ms:
            return self._register(now_ms)
        return []

    def _register(self, now_ms: float) -> list[Effect]:
        self._registered_ms = now_ms
        return [Append(Register(self.me.name, self.me.incarnation))]

    def _challenge(self, silent: Sequence[MemberName], now_ms: float) -> list[Effect]:
        """Asks the silent ones to show themselves in the log; each not too often."""
        effects: list[Effect] = []
        pause_ms = TIMEOUTS_PER_CHALLENGE * self.times.timeout_ms
        self._challenged_ms = {
            life: at_ms for life, at_ms in self._challenged_ms.items() if now_ms - at_ms < pause_ms
        }

        for name in silent:
            heard = self.state.heard_of(name)
            if heard is None or heard.challenged_ms is not None:
                continue
            if heard.incarnation in self._challenged_ms:
                continue
            self._challenged_ms[heard.incarnation] = now_ms
            effects.append(Append(Challenge(name, heard.incarnation, self.me.name)))
        return effects
