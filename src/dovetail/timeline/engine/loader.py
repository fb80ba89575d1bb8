"""The loader: which messages are leased to whom, and when each is pushed; pure.

It looks ahead by the *lead*: long enough for a lease to be on disk before the message is due, as
measured. Whatever will be due within twice the lead is leased in one change for all consumers of
this broker, and each message then waits here until its due time less the latency of its consumer:

      now         now + lead       now + 2 lead
    ───┬──────────────┬──────────────────┬──────────▶
       │   wake when the next message is nearer than this
       └── lease everything up to here ──┘
                  push each at its own time

So a message is late by at most the latency of its consumer, and never early; a lease begins at the
due time, and one that a consumer still holds is never taken before its end.

    event                       effect
    offer (credit)              an ask for that consumer, if it is part of the assignment
    inserted (due soon)         a wake in time for it
    wake                        a plan: the asks of all consumers with credit
    leased                      pushes; where a limit was reached, another ask at once
    a bucket's primary is late  its backup asks for what is overdue (dealer `racks`)
    everybody of a bucket is    any consumer with room asks for what is overdue in any bucket, so
    late                        that nothing waits for a second beside an idle consumer (B21)

One plan is in progress at a time, and what is visible first is pushed first: a store returns it in
that order, so a backlog is served before what is due now, across all buckets of a consumer. Only a
consumer with a backlog and room for `ASK_MAX` more is asked for twice at once, so that the store is
not idle while the broker pushes. Two such asks may be mixed with each other, not with what follows
them. Credit is the bound: no consumer is leased more than it said it can take.

Not here: the assignment (`window`), the store, timers and sockets (`running`).
"""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dovetail.timeline.engine.assignment import BucketSet, Member, Share
from dovetail.timeline.engine.window import Attendee, Windows
from dovetail.timeline.message import Leased
from dovetail.timeline.stores.protocol import LeaseAsk, LeaseResult

#: Messages of one ask: what one transaction leases in some ten milliseconds.
ASK_MAX: Final = 1_000
#: Plans under way at once, for a backlog: neither the store nor the broker waits for the other.
PLANS_MAX: Final = 2
#: The shortest and longest look ahead. Below, a slow sync makes messages late; above, a consumer
#: that dies takes too many with it.
LEAD_MS_MIN: Final = 5
LEAD_MS_MAX: Final = 250
#: What is overdue by this is everybody's who has room, and how often that is looked for. Together
#: with a lease that is below the second that a message may wait beside an idle consumer.
ANYBODY_MS: Final = 600
ANYBODY_LOOK_MS: Final = 200
#: Leases whose duration is remembered to set the lead.
_DURATIONS: Final = 128
#: Pause after a failed lease, doubled each time.
_RETRY_MS_MIN: Final = 20
_RETRY_MS_MAX: Final = 2_000
#: Nothing to wait for.
NEVER_MS: Final = 2**62


class Lead:
    """How far to look ahead: a quarter more than the slowest of the last leases took."""

    def __init__(self) -> None:
        self._durations: deque[float] = deque(maxlen=_DURATIONS)
        self.ms = LEAD_MS_MIN

    def on_duration(self, duration_ms: float) -> None:
        self._durations.append(duration_ms)
        slow_ms = max(self._durations)
        self.ms = min(LEAD_MS_MAX, max(LEAD_MS_MIN, math.ceil(1.25 * slow_ms) + 2))


@dataclass(slots=True)
class _Consumer:
    member: Member
    lease_ms: int
    #: Messages that it can take, not counting those that are leased for it already.
    credit: int = 0
    #: Of these, messages that were asked for, and not answered yet.
    asked: int = 0
    #: Milliseconds from a push to its arrival, as the consumer measured.
    latency_ms: float = 0.0
    #: Messages that its handlers could begin with, as it last said; the rest of its credit is for
    #: messages that wait there. None if it has not said.
    free: int | None = None
    #: Whether there may be more for it than was asked for.
    more: bool = True
    #: Whether the last answer was full, so that the next one probably is too.
    backlog: bool = False
    #: When it next looks after the buckets it stands by for.
    backup_ms: int = 0
    #: Its part of the assignment in force; None if it has none.
    share: Share | None = None
    #: In this window: whether it could take something, and whether it got something.
    able: bool = False
    served: bool = False
    #: Whether it got something since it last came back with credit.
    fed: bool = False
    #: In the window before: whether it could take nothing, and whether it got nothing though it
    #: could.
    busy: bool = False
    idle: bool = False

    @property
    def room(self) -> int:
        """How many more can be asked for."""
        return self.credit - self.asked

    @property
    def ahead(self) -> bool:
        """Whether to ask for more before the last ask is answered."""
        return self.backlog and self.room >= ASK_MAX


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask of the store now."""

    asks: tuple[LeaseAsk, ...]
    #: The ask at the same place is for buckets that the consumer stands by for.
    as_backup: tuple[bool, ...]
    begun_ms: int
    #: For whom each ask is: a consumer that comes again under the same name is another one.
    _consumers: tuple[_Consumer, ...]


class Push(NamedTuple):
    """A leased message, and when it is to leave; in this order it is compared.

    A plain tuple: a thousand of them are sorted for each batch.
    """

    at_ms: float
    #: The higher, the lower the number.
    rank: int
    id: int
    message: Leased
    consumer: str


class Loader:
    """See the module. One for each timeline of a broker."""

    def __init__(self, windows: Windows, *, overtake_ms: int, poll_ms: int) -> None:
        """`overtake_ms`: a message that is overdue by this is its backups' too. `poll_ms`: how
        often to look for what others have stored, unless we listen; 0 if nobody else can."""
        self.windows = windows
        self.lead = Lead()
        self._overtake_ms = overtake_ms
        self._poll_ms = poll_ms
        self._consumers: dict[str, _Consumer] = {}
        #: When something may be there to be leased: visible then, or held until then.
        self._next_ms = 0
        self._ends_ms = NEVER_MS
        #: The first due time of what was stored while a plan is under way.
        self._stored_ms = NEVER_MS
        self._looked_ms = 0
        #: Whether others tell what they store, and looks find what nobody told.
        self.listening = False
        #: Nothing of any bucket can be had before, as the last look found and others told since.
        self._first_ms = -NEVER_MS
        self._told_ms = NEVER_MS

        self._under_way = 0
        #: For whom the store is being asked now, each as often as it is.
        self._asked_for: Counter[str] = Counter()
        #: Whether a plan began while another was under way: neither's answer is the whole truth.
        self._mixed = False
        self._failures = 0
        self._quiet_until_ms = 0
        #: While set, nothing is leased: the broker must not push.
        self.held_back = False
        #: When whoever has room next looks for what is overdue in all buckets.
        self._anybody_ms = 0

    def alter(self, windows: Windows, *, overtake_ms: int) -> None:
        """The settings have changed: nobody has buckets until the next assignment."""
        self.windows = windows
        self._overtake_ms = overtake_ms
        for consumer in self._consumers.values():
            consumer.share = None

    # Consumers

    def join(self, member: Member, *, lease_ms: int) -> None:
        """A consumer came; it is served when it is part of an assignment."""
        share = self.windows.assignment.share(member.id)
        self._consumers[member.id] = _Consumer(member, lease_ms, share=share)

    def leave(self, consumer: str) -> None:
        self._consumers.pop(consumer, None)

    def offer(self, consumer: str, credit: int, *, now_ms: int = NEVER_MS) -> None:
        """A consumer can take so many now, beside those that are leased for it already.

        Its requests end and begin again while nothing comes: if it is known that nothing can be had
        of any bucket, that alone does not ask the store (F63).
        """
        found = self._consumers[consumer]
        if found.credit == 0 and credit > 0:
            nothing = self.listening and self._first_ms > now_ms + 2 * self.lead.ms
            if nothing and not found.fed:
                # Plans without it did not look into its buckets.
                self._next_ms = min(self._next_ms, self._first_ms)
            else:
                found.more = True
            found.fed = False
        found.credit = credit
        found.more |= found.asked > 0 and found.ahead
        found.able |= credit > 0

    def credit(self, consumer: str) -> int:
        """How many more a consumer can take; 0 if it is not here."""
        found = self._consumers.get(consumer)
        return 0 if found is None else found.credit

    def is_asked_for(self, consumer: str) -> bool:
        """Whether the store is being asked for messages for whoever has this name."""
        return consumer in self._asked_for

    def on_latency(self, consumer: str, latency_ms: float) -> None:
        found = self._consumers.get(consumer)
        if found is not None:
            found.latency_ms = max(0.0, latency_ms)

    def on_free(self, consumer: str, free: int) -> None:
        """A consumer's handlers could begin with so many messages now."""
        found = self._consumers.get(consumer)
        if found is not None:
            found.free = free

    def attendees(self) -> list[Attendee]:
        """The consumers here, as the next assignment sees them; begins their window anew."""
        for consumer in self._consumers.values():
            consumer.busy = not (consumer.able or consumer.served or consumer.credit > 0)
            consumer.idle = bool(consumer.free) and consumer.credit > 0 and not consumer.served
            consumer.able = consumer.served = False
        return self.known()

    def known(self) -> list[Attendee]:
        """The consumers here, as they were in the window before."""
        consumers = self._consumers.values()
        return [Attendee(each.member, busy=each.busy, idle=each.idle) for each in consumers]

    # Time

    def on_window(self, everybody: Iterable[Attendee], *, now_ms: int) -> bool:
        """Assigns anew if it is time; whoever has new buckets looks for what is in them."""
        if not self.windows.on_time(everybody, now_ms=now_ms):
            return False
        for consumer in self._consumers.values():
            consumer.share = self.windows.assignment.share(consumer.member.id)
            consumer.more = True
        return True

    def on_inserted(self, due_ms: int) -> None:
        """Something was stored that is due then, here or by another broker that told so."""
        self._next_ms = min(self._next_ms, due_ms)
        self._stored_ms = min(self._stored_ms, due_ms)
        self._first_ms = min(self._first_ms, due_ms)
        self._told_ms = min(self._told_ms, due_ms)

    def begin_look(self) -> None:
        """The store is asked what is there; what is told from now on, the answer may not know."""
        self._told_ms = NEVER_MS

    def on_look(self, first_ms: int | None) -> None:
        """Of all buckets nothing can be had before then; None: nothing at all."""
        found_ms = NEVER_MS if first_ms is None else first_ms
        self._next_ms = min(self._next_ms, found_ms)
        self._stored_ms = min(self._stored_ms, found_ms)
        self._first_ms = min(found_ms, self._told_ms)

    def listen(self, listening: bool) -> None:
        """Whether others are heard; if not, anything may be there."""
        self.listening = listening
        self._first_ms = self._first_ms if listening else -NEVER_MS

    def wake_ms(self, *, now_ms: int) -> int:
        """When to ask for the next plan."""
        if self._under_way == PLANS_MAX or self.held_back:
            return NEVER_MS
        times = [NEVER_MS]
        able = self._able()
        if self._help_needed(able):
            anybody_ms = max(self._anybody_ms, self._first_ms + ANYBODY_MS)
            times += [anybody_ms for consumer in able if not consumer.asked]
        for consumer in able:
            share = consumer.share
            if share is not None:
                times.append(now_ms if consumer.more else self._look_ms())
            if share is not None and share.backup and not consumer.asked:
                times.append(max(consumer.backup_ms, self._first_ms + self._overtake_ms))
        return max(min(times), self._quiet_until_ms)

    def _look_ms(self) -> int:
        """When to look for what is due, or has come back, or was stored by others."""
        polls = self._poll_ms and not self.listening
        polled_ms = self._looked_ms + self._poll_ms if polls else NEVER_MS
        return min(self._next_ms - self.lead.ms, self._ends_ms, polled_ms)

    def plan(self, *, now_ms: int) -> Plan | None:
        """The asks that are due; None if there is nothing to ask."""
        if self._under_way == PLANS_MAX or self.held_back or now_ms < self._quiet_until_ms:
            return None
        if self._look_ms() <= now_ms:
            self.look_again()
            self._next_ms = self._ends_ms = NEVER_MS
            self._looked_ms = now_ms

        asks: list[LeaseAsk] = []
        as_backup: list[bool] = []
        consumers: list[_Consumer] = []
        able = self._able()
        overdue_ms = now_ms - self._first_ms
        anybody = self._anybody_ms <= now_ms and overdue_ms >= ANYBODY_MS
        anybody = anybody and self._help_needed(able)
        for consumer in able:
            found = self._ask_of(consumer, now_ms, anybody=anybody)
            if found is None:
                continue
            asks.append(found[0])
            as_backup.append(found[1])
            consumers.append(consumer)
            consumer.asked += asks[-1].limit
            if not as_backup[-1]:
                # What comes up from now on is not known to this plan.
                consumer.more = consumer.ahead

        if not asks:
            return None
        if self._under_way:
            self._mixed = True
        else:
            self._stored_ms = NEVER_MS
        self._under_way += 1
        self._asked_for.update(ask.consumer for ask in asks)
        return Plan(tuple(asks), tuple(as_backup), now_ms, tuple(consumers))

    def _ask_of(
        self, consumer: _Consumer, now_ms: int, *, anybody: bool
    ) -> tuple[LeaseAsk, bool] | None:
        """What to ask for a consumer, and whether that is for buckets that are not its own."""
        share = consumer.share
        if share is not None and consumer.more:
            return _ask(consumer, share.primary, now_ms + 2 * self.lead.ms), False
        if consumer.asked:
            return None
        if anybody and consumer.free != 0:
            self._anybody_ms = now_ms + ANYBODY_LOOK_MS
            everything = BucketSet(0, self.windows.assignment.buckets)
            return _ask(consumer, everything, now_ms - ANYBODY_MS), True
        overdue = self._first_ms + self._overtake_ms <= now_ms
        if share is not None and share.backup and overdue and consumer.backup_ms <= now_ms:
            consumer.backup_ms = now_ms + max(1, self._overtake_ms // 2)
            return _ask(consumer, share.backup, now_ms - self._overtake_ms), True
        return None

    def look_again(self) -> None:
        """There may be something for everybody."""
        for consumer in self._consumers.values():
            consumer.more = True

    def on_leased(self, plan: Plan, result: LeaseResult, *, took_ms: float) -> list[Push]:
        """The store answered: what is to be pushed when."""
        self._on_answer(plan)
        self._failures = 0
        self.lead.on_duration(took_ms)
        looked = any(not as_backup for as_backup in plan.as_backup)
        if looked:
            self._looked_ms = max(self._looked_ms, plan.begun_ms)
            self._note_times(result)
        self._mixed = self._mixed and self._under_way > 0

        pushes: list[Push] = []
        for ask, as_backup, taken in zip(plan.asks, plan.as_backup, result.leased, strict=True):
            consumer = self._consumers.get(ask.consumer)
            latency_ms = 0.0 if consumer is None else consumer.latency_ms
            ahead_ms, name = ask.lease_ms + latency_ms, ask.consumer
            pushes += [
                Push(leased.until_ms - ahead_ms, -leased.priority, leased.id, leased, name)
                for leased in taken
            ]
            if consumer is not None:
                full = len(taken) == ask.limit
                consumer.credit = max(0, consumer.credit - len(taken))
                consumer.served |= bool(taken)
                consumer.fed |= bool(taken)
                if not as_backup:
                    consumer.backlog = full
                    consumer.more |= full
                elif full:
                    consumer.backup_ms = self._anybody_ms = plan.begun_ms
        return pushes

    def _note_times(self, result: LeaseResult) -> None:
        """When to look next. Of two that were under way together, neither knows of the other's
        leases, and the one that is answered last may have looked first: the earlier time counts."""
        next_ms = NEVER_MS if result.next_ms is None else result.next_ms
        ends_ms = NEVER_MS if result.ends_ms is None else result.ends_ms
        if self._mixed:
            next_ms, ends_ms = min(next_ms, self._next_ms), min(ends_ms, self._ends_ms)
        self._next_ms = min(next_ms, self._stored_ms)
        self._ends_ms = ends_ms

    def _on_answer(self, plan: Plan) -> None:
        self._under_way -= 1
        # What comes to nothing is left out of a difference.
        self._asked_for -= Counter(ask.consumer for ask in plan.asks)
        for ask, consumer in zip(plan.asks, plan._consumers, strict=True):
            consumer.asked -= ask.limit

    def on_failed(self, plan: Plan, *, now_ms: int) -> None:
        """The store did not answer; it is left in peace for a moment."""
        self._on_answer(plan)
        self._mixed = self._mixed and self._under_way > 0
        pause_ms = min(_RETRY_MS_MAX, _RETRY_MS_MIN << min(self._failures, 10))
        self._failures += 1
        self._quiet_until_ms = now_ms + pause_ms
        self.look_again()

    def _help_needed(self, able: list[_Consumer]) -> bool:
        """Whether somebody who has buckets is elsewhere, or has no room."""
        served = sum(consumer.share is not None for consumer in able)
        return served < len(self.windows.assignment.members)

    def _able(self) -> list[_Consumer]:
        """Those for whom something can be asked."""
        return [
            consumer
            for consumer in self._consumers.values()
            if consumer.room > 0 and (consumer.ahead or not consumer.asked)
        ]


def _ask(consumer: _Consumer, buckets: BucketSet, horizon_ms: int) -> LeaseAsk:
    return LeaseAsk(
        consumer.member.id,
        buckets.low,
        buckets.high,
        horizon_ms,
        min(consumer.room, ASK_MAX),
        consumer.lease_ms,
        buckets.mask,
    )
