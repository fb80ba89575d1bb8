"""Replicas in one thread: the real elections and deliveries, everything else simulated.

Real: `MajorityElection`, `BullyElection`, `LeaseElection`, `Delivery`, the fold of the shared log.
Simulated: messages (delay, loss, reordering, duplicates, one-way cuts), the shared log, the stream
and the lease service (each reached by messages), disks, and clocks that run at different speeds.
Replicas crash, come back with or without their disk, pause and wake. A replica that wakes goes on
in the middle of what it did: only the log stops it.

Times are in milliseconds of the world; one timeout is `TIMEOUT_MS` on each replica's own clock.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from tests.sim.pausing import Pausable

from dovetail.coordination import LeaseLife
from dovetail.election import effects as fx
from dovetail.election.bully import BullyElection, strength
from dovetail.election.effects import Effect, Vote
from dovetail.election.election import AppendOutcome, Election, Identity, Role, Times
from dovetail.election.fold import Claim, LogState, Moment, Record, Register, Report
from dovetail.election.identifiers import Algorithm, Incarnation, MemberName, Term
from dovetail.election.lease import LeaseElection
from dovetail.election.majority import MajorityElection
from dovetail.stream import delivery as dl
from dovetail.stream.delivery import Delivery
from dovetail.stream.settings import Takeover

TIMEOUT_MS = 100.0
TIMES = Times(
    timeout_ms=TIMEOUT_MS,
    heartbeat_ms=TIMEOUT_MS / 4,
    event_ping_ms=TIMEOUT_MS / 16,
    interval_ms=100 * TIMEOUT_MS,
)
#: How long an append or a request is waited for.
REQUEST_MS = TIMEOUT_MS
#: How long a fetch waits at the end, and how long its answer is waited for.
POLL_MS = TIMEOUT_MS / 2
#: Handling one event takes up to this long.
HANDLE_MS_MAX = 4.0
LANES = 2

LOG, STREAM, LEASES = -1, -2, -3

Action = Callable[[], None]
#: What a service answers with: an action of the one who asked.
Answer = Callable[[Action], None]


class SimEvent(NamedTuple):
    """An event of the stream."""

    lane: int
    offset: int


@dataclass
class Checker:
    """What must always hold; problems are collected with their time."""

    takeover: Takeover
    problems: list[str] = field(default_factory=list)
    leaders: dict[Term, Identity] = field(default_factory=dict)
    votes: dict[tuple[MemberName, Term], MemberName] = field(default_factory=dict)
    handled: dict[SimEvent, set[Term]] = field(default_factory=dict)
    handled_last: dict[tuple[Term, int], int] = field(default_factory=dict)
    #: Disks that were lost make double votes possible; then only the log decides.
    disks_lost: bool = False

    def on_lead(self, who: Identity, term: Term) -> None:
        before = self.leaders.setdefault(term, who)
        if before != who:
            self.problems.append(f"term {term} has two leaders: {before} and {who}")

    def on_role(self, who: Identity, *, leads: bool, told: bool) -> None:
        """Whoever acts as leader has heard of the end of it, and of nothing else."""
        if leads != told:
            self.problems.append(f"{who} {'leads' if leads else 'leads no more'}, and was not told")

    def on_won(self, who: Identity, term: Term, *, members: list[MemberName], needed: int) -> None:
        """Whoever claims under MAJORITY has that many votes on the disks of its members."""
        votes = [name for name in members if self.votes.get((name, term)) == who.name]
        if len(votes) < needed and not self.disks_lost:
            self.problems.append(
                f"{who.name} claims term {term} with the votes {votes} of {members}"
            )

    def on_vote(self, name: MemberName, vote: Vote, before: Vote) -> None:
        if vote.term < before.term and not self.disks_lost:
            self.problems.append(f"the term of {name} went from {before} back to {vote}")
        if vote.candidate is not None:
            known = self.votes.setdefault((name, vote.term), vote.candidate)
            if known != vote.candidate and not self.disks_lost:
                self.problems.append(f"{name} voted twice in term {vote.term}")

    def on_handled(self, event: SimEvent, term: Term) -> None:
        terms = self.handled.setdefault(event, set())
        if self.takeover is Takeover.SKIP and terms - {term}:
            self.problems.append(f"{event} was handled under the terms {terms} and {term}")
        if event.offset <= self.handled_last.get((term, event.lane), -1):
            self.problems.append(f"{event} came again, or too late, under term {term}")
        self.handled_last[term, event.lane] = event.offset
        terms.add(term)


Factory = Callable[..., Election]
FACTORIES: dict[Algorithm, Factory] = {
    Algorithm.MAJORITY: MajorityElection,
    Algorithm.BULLY: BullyElection,
    Algorithm.COORDINATOR: LeaseElection,
}


class World:
    """Time, the network and everybody in it."""

    def __init__(
        self,
        seed: int,
        *,
        members: int,
        algorithm: Algorithm,
        takeover: Takeover,
        factory: Factory | None = None,
        delivery: type[Delivery[SimEvent]] = Delivery,
        clock_rates: tuple[float, float] = (0.9, 1.1),
    ) -> None:
        self.rng = random.Random(seed)
        self.clock_rates = clock_rates
        self.now = 0.0
        self.algorithm = algorithm
        self.takeover = takeover
        self.factory = factory or FACTORIES[algorithm]
        self.delivery = delivery
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.loss = 0.0
        self.slow = 0.0
        self.duplicates = 0.0
        self.blocked: set[tuple[int, int]] = set()
        self.log = SimLog(self)
        self.stream = SimStream(self)
        self.leases = SimLeases(self)
        self.checker = Checker(takeover)
        self.producing = True
        self.replicas = [Replica(self, number) for number in range(members)]
        for replica in self.replicas:
            self.at(self.rng.random() * 20, replica.start)

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), action))

    def run(self, until: float) -> None:
        events = self._events
        while events and events[0][0] <= until:
            self.now, _, action = heapq.heappop(events)
            action()
        self.now = until

    def send(self, source: int, target: int, action: Callable[[], None]) -> None:
        """Delivers after a while, perhaps twice, perhaps never."""
        if (source, target) in self.blocked:
            return
        rng = self.rng
        if self.loss and rng.random() < self.loss:
            return
        delay = 0.2 + rng.random() * 2.0
        if self.slow and rng.random() < self.slow:
            delay = rng.random() * 3 * TIMEOUT_MS
        self.at(delay, action)
        if self.duplicates and rng.random() < self.duplicates:
            self.at(delay + rng.random() * TIMEOUT_MS, action)

    def heal(self) -> None:
        self.loss = self.slow = self.duplicates = 0.0
        self.blocked.clear()

    def living(self) -> "list[Replica]":
        return [replica for replica in self.replicas if replica.alive]

    def leaders(self) -> "list[Replica]":
        return [r for r in self.living() if r.election.role is Role.LEADER]


class Waiting(NamedTuple):
    """A fetch that waits at the end."""

    cursor: int
    answer: Callable[[], None]


class SimLog:
    """The shared log: total order, long polls."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.entries: list[tuple[Record, float]] = []
        #: The claims that count, and the committed position after each record.
        self.claims: list[Claim] = []
        self.positions: list[dict[int, int]] = []
        self._state = LogState()
        self._waiting: list[Waiting] = []

    def append(self, record: Record) -> int:
        self.entries.append((record, self._world.now))
        counts = self._state.apply(record, Moment(0, self._world.now))
        if counts and isinstance(record, Claim):
            self.claims.append(record)
        self.positions.append(dict(self._state.position or {}))
        waiting, self._waiting = self._waiting, []
        for fetch in waiting:
            fetch.answer()
        return len(self.entries) - 1

    def fetch(self, cursor: int, answer: Callable[[], None]) -> None:
        if cursor < len(self.entries):
            answer()
        else:
            self._waiting.append(Waiting(cursor, answer))


class SimStream:
    """The stream of events: lanes, long polls."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.ends = [0] * LANES
        self._waiting: list[Callable[[], None]] = []

    def produce(self, lane: int) -> None:
        self.ends[lane] += 1
        waiting, self._waiting = self._waiting, []
        for answer in waiting:
            answer()

    def position(self) -> dict[int, int]:
        return dict(enumerate(self.ends))

    def fetch(self, position: dict[int, int], answer: Callable[[], None]) -> None:
        if any(end > position.get(lane, 0) for lane, end in enumerate(self.ends)):
            answer()
        else:
            self._waiting.append(answer)


class SimLeases:
    """The coordination service: one lease with a term, on a clock of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.holder: Identity | None = None
        self.until = 0.0
        self.term = 0

    def expire(self) -> None:
        if self.holder is not None and self._world.now >= self.until:
            self.holder = None

    def take(self, who: Identity, term_min: int) -> int | None:
        self.expire()
        if self.holder is not None:
            return None
        self.holder, self.term = who, max(self.term + 1, term_min)
        self.until = self._world.now + TIMEOUT_MS
        return self.term

    def keep(self, who: Identity) -> bool:
        self.expire()
        if self.holder == who:
            self.until = self._world.now + TIMEOUT_MS
        return self.holder == who

    def release(self, who: Identity) -> None:
        if self.holder == who:
            self.holder = None


class Replica(Pausable):
    """A process: one election, one delivery, its readers and its disk."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__()
        self.world = world
        self.number = number
        self.name = MemberName(f"m{number}")
        #: Gone for good: whatever would start it again does not.
        self.gone = False
        self.disk = Vote()
        #: Crash at one of the next writes of the disk, before or after it.
        self.crash_at_write = 0
        self.rate = world.rng.uniform(*world.clock_rates)
        self.election: Election
        self.delivery: Delivery[SimEvent]

    # --- life ---------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.world.now * self.rate

    def start(self) -> None:
        if self.alive or self.gone:
            return
        self.alive, self.paused = True, False
        self.life += 1
        self.me = Identity(self.name, Incarnation(f"{self.number}.{self.life}"))
        self.state = LogState()
        self.verdicts: list[bool] = []
        self.delivery = self.world.delivery(self.world.takeover, batch_events_max=4)
        self._ready = self._told = False
        self._reading_from: dict[int, int] | None = None
        self._wanted: list[tuple[int, Record]] = []
        self._lease: LeaseLife | None = None
        self._heard_of_stream = self.world.now
        self._tick_at = float("inf")
        self._log_fetch = self._stream_fetch = self._sequence = 0
        extra = {"vote": self.disk} if self.world.algorithm is Algorithm.MAJORITY else {}
        self.election = self.world.factory(
            self.me, TIMES, self.state, self.world.rng, now_ms=self.clock(), **extra
        )
        self._announce()

    def _announce(self) -> None:
        """Start-up: look for the end of the stream, announce, read the log until that is seen."""
        life = self.life

        def found(position: dict[int, int]) -> None:
            if self._reading_from is None:
                self._reading_from = dict(position)
                self.election.on_received(position, busy=False, now_ms=self.clock())
                self._append(Register(self.me.name, self.me.incarnation, position))
                self._fetch_log()
                self._fetch_stream(self.delivery.generation)

        self._ask_end(found)
        self._later(3 * REQUEST_MS, lambda: None if self._ready else self._retry(life))

    def _retry(self, life: int) -> None:
        """What was lost on the way at the start is tried again."""
        if self._reading_from is None:
            self._announce()
        else:
            self._append(Register(self.me.name, self.me.incarnation, dict(self._reading_from)))
            self._later(3 * REQUEST_MS, lambda: None if self._ready else self._retry(life))

    def crash(self, *, lose_disk: bool = False) -> None:
        if not self.alive:
            return
        self.alive, self.paused = False, False
        self.life += 1
        self.crash_at_write = 0
        self._held_back.clear()
        if lose_disk:
            self.disk = Vote()
            self.world.checker.disks_lost = True

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        life = self.life
        self.world.at(delay, lambda: self.deliver(life, action))

    def _ask(self, service: int, work: Callable[[Answer], None]) -> None:
        """Sends a request; the service answers by calling what `work` is given with an action."""
        life, world = self.life, self.world

        def answer(action: Action) -> None:
            world.send(service, self.number, lambda: self.deliver(life, action))

        world.send(self.number, service, lambda: work(answer))

    # --- the election ---------------------------------------------------------------------------

    def step(self, effects: list[Effect]) -> fx.Reply | None:
        """Performs effects in their order; a crash at a write ends the list there."""
        reply = None
        for effect in effects:
            if isinstance(effect, fx.Persist):
                if not self._persist(effect.vote):
                    return None
            elif isinstance(effect, fx.Send):
                self._send(effect)
            elif isinstance(effect, fx.Reply):
                reply = effect
            else:
                self._perform(effect)
        leads = self.election.role is Role.LEADER
        self.world.checker.on_role(self.me, leads=leads, told=self._told)
        self._plan_tick()
        return reply

    def _persist(self, vote: Vote) -> bool:
        if self.crash_at_write == 1 and self.world.rng.random() < 0.5:
            self.crash()
            return False
        self.world.checker.on_vote(self.name, vote, self.disk)
        self.disk = vote
        if self.crash_at_write == 1:
            self.crash()
            return False
        self.crash_at_write = max(0, self.crash_at_write - 1)
        return True

    def _send(self, effect: fx.Send) -> None:
        world, life = self.world, self.life
        target = world.replicas[int(effect.to[1:])]

        def arrive() -> None:
            now = target.clock()
            reply = target.step(target.election.on_message(effect.message, now_ms=now))
            if reply is not None:
                world.send(
                    target.number,
                    self.number,
                    lambda: self.deliver(life, lambda: answered(reply)),
                )

        def answered(reply: fx.Reply) -> None:
            self.step(self.election.on_message(reply.message, now_ms=self.clock()))

        world.send(self.number, target.number, lambda: target.deliver(target.life, arrive))

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, fx.Append):
            if isinstance(effect.record, Claim) and isinstance(self.election, MajorityElection):
                now = self.clock()
                self.world.checker.on_won(
                    self.me,
                    effect.record.term,
                    members=self.election.members(now),
                    needed=self.election.needed(now),
                )
            self._append(effect.record)
        elif isinstance(effect, fx.Renew):
            self._append(self._renewal(effect))
        elif isinstance(effect, fx.Lead):
            self._told = True
            self.world.checker.on_lead(self.me, effect.term)
            self._deliver_steps(self.delivery.on_lead(effect.term, self.state.position))
        elif isinstance(effect, fx.StepDown):
            self._told = False
            self.delivery.on_lost()
            self._seek_as_follower()
        elif isinstance(effect, fx.Campaign):
            self._campaign(effect.term_min)
        elif isinstance(effect, fx.Release):
            self._lease = None
            me = self.me
            self._ask(LEASES, lambda answer: self.world.leases.release(me))

    def _plan_tick(self) -> None:
        if not self._ready:
            return
        wake = max(self.election.wake_ms() - self.clock(), 0.5) / self.rate
        at = self.world.now + min(wake, 10 * TIMEOUT_MS)
        if at < self._tick_at or self._tick_at <= self.world.now:
            self._tick_at = at
            self._later(at - self.world.now, lambda: self._tick(at))

    def _tick(self, at: float) -> None:
        if at != self._tick_at:
            return
        self._tick_at = float("inf")
        self._look_at_source()
        if self._lease is not None and isinstance(self.election, LeaseElection):
            self._lease.on_tick(now_ms=self.clock())
            if self._lease.lost:
                self._lease = None
                self.step(self.election.on_lease_lost(now_ms=self.clock()))
        self.step(self.election.on_tick(now_ms=self.clock()))

    def _look_at_source(self) -> None:
        alive = self.world.now - self._heard_of_stream < 1.5 * TIMEOUT_MS
        if alive != self.election._source_alive:
            self.step(self.election.on_source(alive=alive, now_ms=self.clock()))

    # --- the lease service ------------------------------------------------------------------------

    def _campaign(self, term_min: int) -> None:
        me, sent, election = self.me, self.clock(), self.election
        assert isinstance(election, LeaseElection)

        def work(answer: Answer) -> None:
            term = self.world.leases.take(me, term_min)
            answer(lambda: held(term))

        def held(term: int | None) -> None:
            now = self.clock()
            if term is None:
                self.step(election.on_taken(now_ms=now))
                return
            self._lease = LeaseLife(ttl_ms=int(TIMEOUT_MS * 0.8), sent_ms=sent)
            self._keep_alive(self._lease)
            self.step(
                election.on_held(Term(term), valid_until_ms=self._lease.valid_until_ms, now_ms=now)
            )

        self._ask(LEASES, work)

    def _keep_alive(self, lease: LeaseLife) -> None:
        me, sent, election = self.me, self.clock(), self.election
        assert isinstance(election, LeaseElection)
        if lease is not self._lease:
            return

        def work(answer: Answer) -> None:
            kept = self.world.leases.keep(me)
            answer(lambda: kept_alive(kept))

        def kept_alive(kept: bool) -> None:
            if lease is not self._lease:
                return
            if kept:
                lease.on_answer(sent_ms=sent, now_ms=self.clock())
                election.on_kept(valid_until_ms=lease.valid_until_ms)
            else:
                self._lease = None
                self.step(election.on_lease_lost(now_ms=self.clock()))

        self._ask(LEASES, work)
        self._later(TIMEOUT_MS / 4, lambda: self._keep_alive(lease))

    # --- the shared log ---------------------------------------------------------------------------

    def _renewal(self, effect: fx.Renew) -> Report:
        self._sequence += 1
        said = {"received": effect.received, "busy": effect.busy}
        return Report(effect.term, self.me.name, self.me.incarnation, self._sequence, **said)

    def _report(self, term: Term, position: dict[int, int] | None) -> Report:
        self._sequence += 1
        return Report(term, self.me.name, self.me.incarnation, self._sequence, position)

    def _append(self, record: Record, then: Callable[[AppendOutcome], None] | None = None) -> None:
        done = False

        def finish(outcome: AppendOutcome) -> None:
            nonlocal done
            if done:
                return
            done = True
            self.step(self.election.on_appended(record, outcome, now_ms=self.clock()))
            if then is not None:
                then(outcome)

        def stored(index: int) -> None:
            if index < len(self.verdicts):
                verdict = self.verdicts[index]
                finish(AppendOutcome.ACCEPTED if verdict else AppendOutcome.REFUSED)
            elif not done:
                self._later(1.0, lambda: stored(index))

        def work(answer: Answer) -> None:
            index = self.world.log.append(record)
            answer(lambda: stored(index))

        self._ask(LOG, work)
        self._later(REQUEST_MS, lambda: finish(AppendOutcome.UNKNOWN))

    def _fetch_log(self) -> None:
        cursor = len(self.verdicts)
        self._log_fetch = fetch = self._log_fetch + 1

        def work(answer: Answer) -> None:
            log = self.world.log
            log.fetch(cursor, lambda: answer(lambda: arrived(len(log.entries))))

        def arrived(end: int) -> None:
            if fetch != self._log_fetch:
                return
            for record, at in self.world.log.entries[cursor:end]:
                self._apply(record, at)
            self._fetch_log()

        def again() -> None:
            if fetch == self._log_fetch:
                self._fetch_log()

        self._ask(LOG, work)
        self._later(POLL_MS, again)

    def _apply(self, record: Record, at: float) -> None:
        counts = self.state.apply(record, Moment(0, at * self.rate))
        self.verdicts.append(counts)
        if not self._ready:
            mine = isinstance(record, Register) and record.incarnation == self.me.incarnation
            if not mine:
                return
            self._ready = True
            self.election.watch.on_new_leader(self.clock())
            self.election._reset_timer(self.clock())
            self._plan_tick()
            return
        self.step(self.election.on_record(record, counts=counts, now_ms=self.clock()))

    # --- the stream -------------------------------------------------------------------------------

    def _ask_end(self, found: Callable[[dict[int, int]], None]) -> None:
        def work(answer: Answer) -> None:
            position = self.world.stream.position()
            answer(lambda: found(position))

        self._ask(STREAM, work)

    def _fetch_stream(self, generation: int) -> None:
        """Reads on from where this reading stands, as long as it is the current one."""
        position = dict(self._reading_from or {})
        self._stream_fetch = fetch = self._stream_fetch + 1

        def work(answer: Answer) -> None:
            stream = self.world.stream
            stream.fetch(position, lambda: answer(lambda e=stream.position(): arrived(e)))
            # At the end the answer comes empty after a while, which shows that the stream is there.
            self.world.at(POLL_MS / 2, lambda: answer(lambda: arrived(position)))

        def arrived(end: dict[int, int]) -> None:
            self._heard_of_stream = self.world.now
            self._look_at_source()
            if fetch != self._stream_fetch or generation != self.delivery.generation:
                return
            events = [
                SimEvent(lane, offset)
                for lane in end
                for offset in range(position.get(lane, 0), end[lane])
            ]
            if events:
                self._received(events, generation)
            again()

        def again() -> None:
            if fetch == self._stream_fetch and generation == self.delivery.generation:
                self._fetch_stream(generation)

        self._ask(STREAM, work)
        self._later(POLL_MS, again)

    def _received(self, events: list[SimEvent], generation: int) -> None:
        assert self._reading_from is not None
        for event in events:
            self._reading_from[event.lane] = max(
                self._reading_from.get(event.lane, 0), event.offset + 1
            )
        busy = self.delivery.waiting_count > 20
        self.step(self.election.on_received(self._reading_from, busy=busy, now_ms=self.clock()))
        self._deliver_steps(self.delivery.on_events(events, generation=generation))

    def _seek_as_follower(self) -> None:
        self._fetch_stream(self.delivery.generation)

    def _deliver_steps(self, steps: list[dl.Step[SimEvent]]) -> None:
        for step in steps:
            if isinstance(step, dl.FindEnd):
                self._find_end(self.delivery._term)
            elif isinstance(step, dl.Seek):
                self._reading_from = dict(step.position)
                self._fetch_stream(step.generation)
            elif isinstance(step, dl.WriteReport):
                self._write_report(step)
            else:
                self._handle(step.term, list(step.events), [])

    def _find_end(self, term: Term) -> None:
        self._ask_end(lambda position: self._deliver_steps(self.delivery.on_end(term, position)))

        def again() -> None:
            if self.delivery.phase is dl.Phase.FINDING and self.delivery._term == term:
                self._find_end(term)

        self._later(REQUEST_MS, again)

    def _write_report(self, step: dl.WriteReport) -> None:
        def then(outcome: AppendOutcome) -> None:
            if outcome is not AppendOutcome.REFUSED:
                accepted = outcome is AppendOutcome.ACCEPTED
                self._deliver_steps(self.delivery.on_reported(step.term, accepted=accepted))

        self._append(self._report(step.term, step.position), then)

    def _handle(self, term: Term, events: list[SimEvent], done: list[SimEvent]) -> None:
        """One event after the other; the leadership is looked at before each."""
        leads = self.election.role is Role.LEADER and self.election.term == term
        valid = leads and self.clock() < self.election.valid_until_ms
        if not events or not valid:
            self._later(1.0, lambda: self._deliver_steps(self.delivery.on_handled(term, done)))
            return
        event = events.pop(0)

        def finish() -> None:
            self.world.checker.on_handled(event, term)
            done.append(event)
            self._handle(term, events, done)

        self._later(self.world.rng.random() * HANDLE_MS_MAX, finish)


def strongest(replicas: list[Replica]) -> Replica:
    """Who must lead under BULLY."""
    return max(replicas, key=lambda replica: strength(replica.name))
