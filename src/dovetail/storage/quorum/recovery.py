"""Finds the end of an unclosed ledger on a quorum; pure: events in, effects out.

Promises:
- The end is not below any entry that was, or ever will be, acknowledged to the old writer; when
  the recovery ends, Qa nodes hold every entry up to it.
- If two recoveries of a ledger both end, they find ends that agree, or one of them is refused: the
  higher term fences the lower one.

    FENCING   every node of the last fragment is fenced with our term, until no write set has Qa
              nodes left that could still acknowledge to the old writer
    READING   asks for the next entry, by reads that also fence: a node that says "no" now will
              never store that entry for the old writer
                found               → WRITING it back to its whole write set
                Qw - Qa + 1 noes    → DONE, the end is the entry before
                neither             → wait; if no more answers can come: STUCK, try again later
    WRITING   Qa nodes hold it      → READING the next
              too few can           → failed nodes are replaced from this entry on; the new ones
                                      are written to, but their "no" proves nothing

A node that reported further entries when it was fenced is asked for many of them at once, besides
the reads of the next entry. They are written back together, so two thousand entries in flight cost
a few round trips instead of four thousand. Such entries are found, but an end is not proven by
them: only the fencing reads say "no". Without an answer to the long read, recovery continues entry
by entry.

It starts with the entry behind the highest `confirmed` that any node has seen, and never below the
first entry of the last fragment: a fragment begins at the first unconfirmed entry, so all entries
before it are confirmed.

Not here: closing the ledger by compare-and-set, where recoveries finally agree.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, Unavailable
from dovetail.storage.quorum.arithmetic import Quorum, fence_holds, places_of
from dovetail.storage.quorum.writer import Replace


@dataclass(frozen=True, slots=True)
class AskFence:
    """Effect: fence the ledger on this node."""

    node: int


@dataclass(frozen=True, slots=True)
class AskEntry:
    """Effect: fence and read this entry on this node, in one step."""

    node: int
    entry: int


@dataclass(frozen=True, slots=True)
class AskAhead:
    """Effect: read from this node what it has from `first` on, to `last` at most."""

    node: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WriteBack:
    """Effect: append the entry on this node under our term."""

    node: int
    entry: int
    payload: Buffer
    confirmed: int


@dataclass(frozen=True, slots=True)
class Done:
    """Effect: the last entry is known; -1 if there is none."""

    entry_last: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """Effect: it cannot continue; try again later, or not at all if the error says so."""

    error: DovetailError


Effect = AskFence | AskEntry | AskAhead | WriteBack | Replace | Done | Stuck


class _Phase(Enum):
    FENCING = "fencing"
    READING = "reading"
    WRITING = "writing"
    ENDED = "ended"


class QuorumRecovery:
    """One attempt at one ledger. `nodes` are the ensemble of its last fragment, by place."""

    def __init__(self, quorum: Quorum, nodes: Sequence[int], *, fragment_first: int) -> None:
        self._quorum = quorum
        #: Who may hold what the old writer sent: only their "no" proves anything.
        self._sources = list(nodes)
        #: Who is to hold what was found; differs where a node was replaced.
        self._targets = list(nodes)
        self._phase = _Phase.FENCING
        self._fenced: set[int] = set()
        self._failed_sources: set[int] = set()
        self._failed_targets: set[int] = set()
        self._confirmed = fragment_first - 1
        #: The entry that is asked for, or the first of those that are written back.
        self._entry = fragment_first
        self._noes: set[int] = set()
        #: Those that are written back: the payload of each, and the places that hold it.
        self._payloads: list[Buffer] = []
        self._held: list[set[int]] = []
        #: How many of them too few places hold.
        self._lacking = 0
        #: The last entry that a source has by its own account.
        self._claimed: dict[int, int] = {}
        #: The long read that is on its way; and what came of one too early to be written.
        self._asked_ahead: AskAhead | None = None
        self._ahead: tuple[int, Sequence[Buffer]] = (0, ())
        self._changing = False
        self._why: DovetailError | None = None

    def start(self) -> list[Effect]:
        """Asks every node at once."""
        return [AskFence(node) for node in self._sources]

    def on_fenced(self, node: int, confirmed: int, entry_last: int = -1) -> list[Effect]:
        """The node refuses the old writer from now on, knows this much to be confirmed, has this.

        `entry_last` is worth a long read, no more.
        """
        self._fenced.add(self._sources.index(node))
        self._claimed[node] = entry_last
        if self._phase is not _Phase.FENCING:
            return []
        self._confirmed = max(self._confirmed, confirmed)
        if not fence_holds(self._quorum, self._fenced):
            return self._if_hopeless()
        return self._read(self._confirmed + 1)

    def on_entry(self, node: int, entry: int, payload: Buffer | None) -> list[Effect]:
        """The node's answer to a fencing read; None is "not here"."""
        if self._phase is not _Phase.READING or entry != self._entry:
            return []
        if payload is not None:
            return self._write_back([payload])
        self._noes.add(self._sources.index(node))
        if len(self._noes) >= self._quorum.noes_needed:
            self._phase = _Phase.ENDED
            return [Done(self._entry - 1)]
        return self._if_hopeless()

    def on_ahead(self, node: int, first: int, payloads: Sequence[Buffer]) -> list[Effect]:
        """The node's answer to a long read: what it has from `first` on; nothing, if it failed."""
        asked, self._asked_ahead = self._asked_ahead, None
        if not payloads:
            self._claimed.pop(node, None)
        if self._phase is _Phase.ENDED:
            return []
        if self._phase is _Phase.WRITING:
            self._ahead = (first, payloads)
            return []
        found = payloads[max(0, self._entry - first) :]
        if found:
            return self._write_back(found)
        # It was not asked for the next entry by itself.
        owed = asked is not None and asked.first == self._entry
        return [AskEntry(node, self._entry)] if owed else []

    def on_stored(self, node: int, entry: int) -> list[Effect]:
        """The node holds an entry that was written back."""
        at = entry - self._entry
        writing = self._phase is _Phase.WRITING and 0 <= at < len(self._held)
        if not writing or node not in self._targets:
            return []
        place, held = self._targets.index(node), self._held[at]
        if place not in held:
            held.add(place)
            self._lacking -= len(held) == self._quorum.ack
        return self._go_on()

    def on_failed(self, node: int, why: DovetailError | None = None) -> list[Effect]:
        """No answer will come from this node."""
        self._why = why or self._why
        self._failed_sources.add(node)
        self._failed_targets.add(node)
        if self._asked_ahead is not None and self._asked_ahead.node == node:
            self._asked_ahead = None
        return self._if_hopeless()

    def on_replaced(self, nodes: Sequence[int]) -> list[Effect]:
        """These nodes are to hold the ledger from the entry on that is being written back.

        The metadata learns it when the ledger is closed and not before: a later recovery must ask
        the nodes that the old writer wrote to, not these.
        """
        self._changing = False
        changed = {place for place, node in enumerate(nodes) if node != self._targets[place]}
        self._targets = list(nodes)
        self._failed_targets.difference_update(self._targets[place] for place in changed)
        for held in self._held:
            held -= changed
        self._lacking = sum(len(held) < self._quorum.ack for held in self._held)
        return [*self._writes(among=changed), *self._go_on(), *self._if_hopeless()]

    def on_refused(self, error: DovetailError) -> list[Effect]:
        """A higher term is at work, or there is no other node: this attempt is over."""
        if self._phase is _Phase.ENDED:
            return []
        self._phase = _Phase.ENDED
        return [Stuck(error)]

    def _read(self, entry: int) -> list[Effect]:
        self._phase, self._entry = _Phase.READING, entry
        self._noes.clear()
        (first, payloads), self._ahead = self._ahead, (0, ())
        known = payloads[max(0, entry - first) :] if payloads else ()
        if known:
            return self._write_back(known)

        ahead = self._ask_ahead(entry)
        asks = [
            AskEntry(self._sources[place], entry)
            for place in places_of(self._quorum, entry)
            if self._sources[place] not in self._failed_sources
            and not any(ask.node == self._sources[place] for ask in ahead)
        ]
        return [*ahead, *asks, *self._if_hopeless()]

    def _ask_ahead(self, entry: int) -> list[AskAhead]:
        """One long read at a time, of a node that should hold this entry and has more."""
        if self._asked_ahead is not None:
            return []
        places = places_of(self._quorum, entry)
        more = [
            (self._claimed.get(node, -1), node)
            for node in (self._sources[place] for place in places)
            if node not in self._failed_sources and self._claimed.get(node, -1) > entry
        ]
        if not more:
            return []
        last, node = max(more)
        self._asked_ahead = AskAhead(node, entry, last)
        return [self._asked_ahead]

    def _write_back(self, payloads: Sequence[Buffer]) -> list[Effect]:
        self._phase, self._payloads = _Phase.WRITING, list(payloads)
        self._held, self._lacking = [set() for _ in payloads], len(payloads)
        return [*self._writes(), *self._if_hopeless()]

    def _writes(self, among: Collection[int] | None = None) -> list[Effect]:
        """What is found, to the places that are to hold it; only to those `among`, if given."""
        return [
            WriteBack(self._targets[place], self._entry + at, payload, self._confirmed)
            for at, payload in enumerate(self._payloads)
            for place in places_of(self._quorum, self._entry + at)
            if self._targets[place] not in self._failed_targets
            and (among is None or place in among)
        ]

    def _go_on(self) -> list[Effect]:
        """Reads on when enough places hold everything that was found."""
        if self._changing or self._lacking:
            return []
        self._confirmed = self._entry + len(self._payloads) - 1
        self._payloads, self._held = [], []
        return self._read(self._confirmed + 1)

    def _if_hopeless(self) -> list[Effect]:
        """What to do when the answers that can still come are too few."""
        if self._phase is _Phase.ENDED or self._changing or not self._hopeless():
            return []
        if self._phase is _Phase.WRITING:
            self._changing = True
            failed = frozenset(self._failed_targets.intersection(self._targets))
            return [Replace(failed, self._entry)]
        self._phase = _Phase.ENDED
        return [
            Stuck(
                Unavailable(
                    f"too few storage nodes answer: {len(self._failed_sources)} of "
                    f"{len(self._sources)} failed at entry {self._entry} ({self._why}); it is "
                    "tried again later"
                )
            )
        ]

    def _hopeless(self) -> bool:
        if self._phase is _Phase.FENCING:
            alive = {p for p, node in enumerate(self._sources) if node not in self._failed_sources}
            return not fence_holds(self._quorum, alive | self._fenced)
        if self._phase is _Phase.READING:
            # A node that has not answered may still have it, or be the missing "no".
            places = places_of(self._quorum, self._entry)
            heard = self._noes | {p for p in places if self._sources[p] in self._failed_sources}
            return heard.issuperset(places)
        return any(
            len(held | self._able(self._entry + at)) < self._quorum.ack
            for at, held in enumerate(self._held)
        )

    def _able(self, entry: int) -> set[int]:
        """The places of an entry whose nodes have not failed."""
        places = places_of(self._quorum, entry)
        return {p for p in places if self._targets[p] not in self._failed_targets}
