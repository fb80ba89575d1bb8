"""Which events are handled, by whom, and when they count as done; pure.

Promise, which rests on the shared log alone and on no clock:
- The handler gets an event only after the log accepted a report of this leader that was written
  AFTER the event had been received. So no higher claim was in the log when the event was already in
  the stream.
- `skip`: a new leader looks for the end of the stream AFTER its claim was accepted, and begins
  there. The event above lies before that end. Hence no event is handled under two terms.
- `resume`: a new leader begins at the position in the log. Only reports that count move it, and
  only past events whose handler has ended. Hence none is left out; those that the last leader
  handled without being able to report them are handled again.

    IDLE --lead--> FINDING (skip) --end--> READING          resume goes to READING at once
    READING --events--> REPORTING --accepted--> HANDLING --done--> REPORTING ... --> READING
    any --lost--> IDLE

One report does both: it commits what was handled, and confirms what has arrived meanwhile. A stream
under full load costs one report a batch.

Not here: reading, handling and writing (`handler`), and knowing who leads (`election`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Protocol, TypeVar

from dovetail.election.identifiers import NO_TERM, Position, Term
from dovetail.stream.settings import Takeover


class Placed(Protocol):
    """What is known of an event here: its place."""

    @property
    def lane(self) -> int: ...

    @property
    def offset(self) -> int: ...


E = TypeVar("E", bound=Placed)


@dataclass(frozen=True, slots=True)
class FindEnd:
    """Ask the stream where its end is, and report it to `on_end`."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Read from here; what was read before is dropped (`generation` distinguishes it)."""

    position: dict[int, int]
    generation: int


@dataclass(frozen=True, slots=True)
class WriteReport:
    """Append a report, and call `on_reported` with its outcome."""

    term: Term
    position: dict[int, int]


@dataclass(frozen=True, slots=True)
class Handle(Generic[E]):
    """Hand these events to the handler, one by one; `on_handled` gets those that ended."""

    term: Term
    events: tuple[E, ...]


Step = FindEnd | Seek | WriteReport | Handle[E]


class Phase(Enum):
    """What the delivery waits for."""

    IDLE = "idle"
    FINDING = "finding"
    READING = "reading"
    REPORTING = "reporting"
    HANDLING = "handling"


@dataclass(slots=True)
class Delivery(Generic[E]):
    """The delivery of one replica."""

    takeover: Takeover
    batch_events_max: int
    phase: Phase = Phase.IDLE
    #: Up to here everything is handled, in this leadership or before.
    handled: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    _term: Term = NO_TERM
    _waiting: deque[E] = field(default_factory=deque)
    _batch: tuple[E, ...] = ()
    #: What was received in this reading; a source that repeats itself is not believed.
    _received: dict[int, int] = field(default_factory=dict)

    @property
    def waiting_count(self) -> int:
        """Events that were received and not yet handed over."""
        return len(self._waiting) + len(self._batch)

    def on_lead(self, term: Term, committed: Position | None) -> list[Step[E]]:
        """This replica leads; `committed` is the position that the log holds."""
        self._begin(term)
        if self.takeover is Takeover.SKIP:
            self.phase = Phase.FINDING
            return [FindEnd()]
        return self._read_from(committed or {})

    def on_end(self, term: Term, position: Position) -> list[Step[E]]:
        """The end of the stream, asked for under `term`."""
        if self.phase is not Phase.FINDING or term != self._term:
            return []
        return self._read_from(position)

    def on_lost(self) -> None:
        """This replica no longer leads. What is being handled at this moment ends by itself."""
        self._begin(NO_TERM)

    def on_events(self, events: Sequence[E], *, generation: int) -> list[Step[E]]:
        """Events were received; those of another reading are dropped."""
        if self.phase in (Phase.IDLE, Phase.FINDING) or generation != self.generation:
            return []
        for event in events:
            if event.offset >= self._received.get(event.lane, 0):
                self._received[event.lane] = event.offset + 1
                self._waiting.append(event)
        return self._next_batch() if self.phase is Phase.READING else []

    def on_reported(self, term: Term, *, accepted: bool) -> list[Step[E]]:
        """The report was accepted, or must be written again; a refused one ends the leadership."""
        if self.phase is not Phase.REPORTING or term != self._term:
            return []
        if not accepted:
            return [self._report()]
        if self._batch:
            self.phase = Phase.HANDLING
            return [Handle(term, self._batch)]
        self.phase = Phase.READING
        return self._next_batch() if self._waiting else []

    def on_handled(self, term: Term, events: Sequence[E]) -> list[Step[E]]:
        """The handler has ended for these events, the first ones of the batch."""
        if self.phase is not Phase.HANDLING or term != self._term:
            return []
        self._batch = self._batch[len(events) :]
        for event in events:
            self.handled[event.lane] = event.offset + 1
        return self._next_batch()

    def _begin(self, term: Term) -> None:
        self.phase, self._term = Phase.IDLE, term
        self._waiting.clear()
        self._batch = ()
        self.generation += 1

    def _read_from(self, position: Position) -> list[Step[E]]:
        self.handled, self._received = dict(position), dict(position)
        self.generation += 1
        self.phase = Phase.REPORTING
        return [Seek(dict(position), self.generation), self._report()]

    def _next_batch(self) -> list[Step[E]]:
        room = self.batch_events_max - len(self._batch)
        taken = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        self._batch = (*self._batch, *taken)
        self.phase = Phase.REPORTING
        return [self._report()]

    def _report(self) -> WriteReport:
        return WriteReport(self._term, dict(self.handled))
