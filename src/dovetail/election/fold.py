"""The records of the shared log, and the state that every reader computes from them; pure.

Promise: all readers of the same records, in the same order, agree on who leads under which term
and on the committed position, whatever the writers believed when they wrote.

The log stores every record; this fold decides which of them count:

    record      counts if                                         then
    Claim       its term is higher than that of every claim       its writer leads
    Report      its term and writer are those of the last claim   the position moves, in order
    Register    always                                            the member is counted
    Leave       it is of the life that is counted                 the member is not counted
    Challenge   it is of the life that is counted                 the member must register again

So the first writer of a term wins, an older leader's commit is void once a higher claim precedes
it, and no clock takes part. Time only decides who is *counted*: a member that was silent for the
interval, or did not answer a challenge within the grace period, is left out until it registers
again.

Survives: lost disks of members (two winners of one vote still claim one after the other), writes
that arrive late or twice, writers that were paused.

Not here: keeping the order, which is the log's task (`shared_log`), and choosing who claims.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from dovetail.election.identifiers import NO_TERM, Incarnation, MemberName, Term

#: Elections that are remembered for people to look at.
ELECTIONS_KEPT = 20
#: Writers whose last number is remembered: each start of a member is one.
WRITERS_KEPT = 1_000
#: A twin without a record for so many timeouts is gone. Two that take turns write several.
TWIN_TIMEOUTS = 10


class _Record(msgspec.Struct, frozen=True, tag_field="kind"):
    """Something in the log."""


class Register(_Record, frozen=True, tag="register"):
    """I am here. `position` is where the stream, `source`, was when its writer started."""

    member: MemberName
    incarnation: Incarnation
    position: dict[int, int] | None = None
    source: str | None = None


class Leave(_Record, frozen=True, tag="leave"):
    """I stop."""

    member: MemberName
    incarnation: Incarnation


class Challenge(_Record, frozen=True, tag="challenge"):
    """`member` does not answer `by`: it must register again, or it is left out of the count."""

    member: MemberName
    incarnation: Incarnation
    by: MemberName


class Claim(_Record, frozen=True, tag="claim"):
    """I was elected."""

    term: Term
    member: MemberName
    incarnation: Incarnation


class Report(_Record, frozen=True, tag="report"):
    """I lead; everything below `position` is handled, if it is given.

    `sequence` grows with each report of a leadership: one that arrives late moves nothing.
    `received` and `busy` say what a ping says, for those that no ping reaches.
    """

    term: Term
    member: MemberName
    incarnation: Incarnation
    sequence: int
    position: dict[int, int] | None = None
    received: dict[int, int] | None = None
    busy: bool = False


class CountedMember(msgspec.Struct, frozen=True):
    """A member in a snapshot, with the wall time at which it was last heard of."""

    member: MemberName
    incarnation: Incarnation
    heard_wall_ms: int


class PastElection(msgspec.Struct, frozen=True):
    """A claim that counted."""

    term: Term
    member: MemberName
    wall_ms: int


class Snapshot(_Record, frozen=True, tag="snapshot"):
    """The state behind the record `base`; a reader whose log begins later starts from it."""

    base: int
    claim: Claim | None
    sequence: int
    position: dict[int, int] | None
    source: str | None
    members: tuple[CountedMember, ...]
    elections: tuple[PastElection, ...]
    #: The last record of each writer, where records are signed.
    numbers: dict[str, int] = {}


Record = Register | Leave | Challenge | Claim | Report | Snapshot

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """The record as JSON, which a person can read with any Kafka tool."""
    return _ENCODER.encode(record)


def decode_record(payload: bytes) -> Record | None:
    """The record, or None if these bytes are no record of this version."""
    try:
        return _DECODER.decode(payload)
    except msgspec.DecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Moment:
    """When a record was stored, on the reader's two clocks."""

    wall_ms: int
    monotonic_ms: float


@dataclass(slots=True)
class Heard:
    """What is known of a member; times are the reader's monotonic ones."""

    incarnation: Incarnation
    moment: Moment
    #: Since when it has owed a sign of life, if it does.
    challenged_ms: float | None = None


@dataclass(slots=True)
class LogState:
    """The fold; `apply` takes the records in their order."""

    claim: Claim | None = None
    position: dict[int, int] | None = None
    #: Name of the stream that the position is one of.
    source: str | None = None
    #: When the leader last wrote, on the reader's monotonic clock.
    leader_heard_ms: float = 0.0
    #: The last report of the present leadership that counted.
    sequence: int = -1
    elections: deque[PastElection] = field(default_factory=lambda: deque(maxlen=ELECTIONS_KEPT))
    _members: dict[MemberName, Heard] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=dict)

    @property
    def term(self) -> Term:
        """The highest term that was claimed."""
        return NO_TERM if self.claim is None else self.claim.term

    @property
    def leader(self) -> MemberName | None:
        """Who claimed it; whether it is alive is another question."""
        return None if self.claim is None else self.claim.member

    def is_new(self, writer: str, number: int) -> bool:
        """Whether this record of a writer was not there before; then it is not new any more."""
        if number <= self._numbers.get(writer, 0):
            return False
        # The last to write is the last to be forgotten.
        self._numbers.pop(writer, None)
        self._numbers[writer] = number
        if len(self._numbers) > WRITERS_KEPT:
            del self._numbers[next(iter(self._numbers))]
        return True

    def apply(self, record: Record, moment: Moment) -> bool:
        """Takes the next record; whether it counts."""
        if isinstance(record, Claim):
            return self._claim(record, moment)
        if isinstance(record, Report):
            return self._report(record, moment)
        if isinstance(record, Register):
            return self._register(record, moment)
        if isinstance(record, Snapshot):
            return True
        heard = self._members.get(record.member)
        if heard is None or heard.incarnation != record.incarnation:
            return False
        if isinstance(record, Leave):
            del self._members[record.member]
        elif heard.challenged_ms is None:
            heard.challenged_ms = moment.monotonic_ms
        return True

    def would_count(self, record: Record) -> bool:
        """Whether `record` would count if it were the next one; nothing changes."""
        if isinstance(record, Claim):
            return record.term > self.term
        if isinstance(record, Report):
            return self._is_of_claim(record)
        return True

    def start_from(self, snapshot: Snapshot, *, now: Moment) -> None:
        """Takes the state of a snapshot, in place of all records up to its base."""
        self.claim, self.sequence = snapshot.claim, snapshot.sequence
        self.position = None if snapshot.position is None else dict(snapshot.position)
        self.source = snapshot.source
        self.elections = deque(snapshot.elections, maxlen=ELECTIONS_KEPT)
        self._numbers = dict(snapshot.numbers)
        self._members = {
            counted.member: Heard(counted.incarnation, moment_of(counted.heard_wall_ms, now))
            for counted in snapshot.members
        }

    def snapshot(self, *, base: int) -> Snapshot:
        """The state as a record."""
        return Snapshot(
            base=base,
            claim=self.claim,
            sequence=self.sequence,
            position=None if self.position is None else dict(self.position),
            source=self.source,
            members=tuple(
                CountedMember(name, heard.incarnation, heard.moment.wall_ms)
                for name, heard in sorted(self._members.items())
            ),
            elections=tuple(self.elections),
            numbers=dict(self._numbers),
        )

    def heard_of(self, member: MemberName) -> Heard | None:
        """What is known of a member, counted or not."""
        return self._members.get(member)

    def members(self) -> Iterator[tuple[MemberName, Heard]]:
        """All members that are known, counted or not, by name."""
        yield from sorted(self._members.items())

    def counted(
        self, *, now_ms: float, interval_ms: float, grace_ms: float
    ) -> Iterator[MemberName]:
        """The members that make up the cluster now, by name."""
        for name in sorted(self._members):
            heard = self._members[name]
            challenged = heard.challenged_ms
            if now_ms - heard.moment.monotonic_ms >= interval_ms:
                continue
            if challenged is None or now_ms - challenged < grace_ms:
                yield name

    def _is_of_claim(self, report: Report) -> bool:
        claim = self.claim
        return claim is not None and (report.term, report.member, report.incarnation) == (
            claim.term,
            claim.member,
            claim.incarnation,
        )

    def _claim(self, claim: Claim, moment: Moment) -> bool:
        if claim.term <= self.term:
            return False
        self.claim, self.sequence = claim, -1
        self.leader_heard_ms = moment.monotonic_ms
        self.elections.append(PastElection(claim.term, claim.member, moment.wall_ms))
        self._hear(claim.member, claim.incarnation, moment)
        return True

    def _report(self, report: Report, moment: Moment) -> bool:
        if not self._is_of_claim(report):
            return False
        if report.position is not None and report.sequence > self.sequence:
            self.position, self.sequence = dict(report.position), report.sequence
        self.leader_heard_ms = moment.monotonic_ms
        self._hear(report.member, report.incarnation, moment)
        return True

    def _register(self, register: Register, moment: Moment) -> bool:
        if self.position is None and register.position is not None:
            self.position = dict(register.position)
        if register.source is not None:
            self.source = register.source
        self._members[register.member] = Heard(register.incarnation, moment)
        return True

    def _hear(self, member: MemberName, incarnation: Incarnation, moment: Moment) -> None:
        """A member that writes is alive; only a registration begins a new life."""
        heard = self._members.get(member)
        if heard is not None and heard.incarnation == incarnation:
            heard.moment, heard.challenged_ms = moment, None


def moment_of(wall_ms: int, now: Moment) -> Moment:
    """A stored wall time on the reader's monotonic clock; what lies in the future is now."""
    return Moment(wall_ms, now.monotonic_ms - max(0, now.wall_ms - wall_ms))


class Twins:
    """Another process that takes part under the name of this member.

    Members differ by their endpoints alone. Two with one endpoint, such as that of a copied
    configuration, do not see each other: each counts itself as the only one of its name, takes the
    leadership from the other after every timeout, and finds nothing wrong. Terms keep that safe,
    and it never ends.

    A former life of this member may have left a record on its way, so one is no sign: a process
    that goes on writing is. With COORDINATOR the name does not matter: the lease belongs to a life.
    """

    def __init__(self, name: MemberName, life: Incarnation, *, timeout_ms: float) -> None:
        self._name, self._life = name, life
        self._timeout_ms = timeout_ms
        self._first_ms = self._last_ms = float("-inf")

    def on_record(self, record: Record, *, now_ms: float) -> bool:
        """A record was read, since this member started; whether it is the sign of a new twin."""
        if not isinstance(record, Claim | Register | Report) or record.member != self._name:
            return False
        if record.incarnation == self._life:
            return False

        was_alive = self.alive(now_ms=now_ms)
        if self._is_gone(now_ms):
            self._first_ms = now_ms
        self._last_ms = now_ms
        return self.alive(now_ms=now_ms) and not was_alive

    def alive(self, *, now_ms: float) -> bool:
        """Whether there is one."""
        return not self._is_gone(now_ms) and self._last_ms - self._first_ms >= self._timeout_ms

    def _is_gone(self, now_ms: float) -> bool:
        return now_ms - self._last_ms > TWIN_TIMEOUTS * self._timeout_ms
