"""What a closed ledger needs to be whole again: the deciding part of repair; pure (L10).

A closed ledger is *whole* when every node that its placement names holds every entry of its place
in the ensemble. Repair aims at a placement, fills it, and then puts it into the chain:

    aim      nodes that are gone or leaving are replaced by others, place by place
    fill     each node of the aim gets what it lacks, from any node that has it
    settle   filled places change to their new nodes in one step; the others stay as they were

The presence of a node:

    HERE      it answers; it is asked what it holds and gets what it lacks
    AWAY      it does not answer, but only since recently: repair waits, because copying everything
              it holds costs far more than a restart takes
    LEAVING   it answers and is to hold nothing in the end: it is read from but not written to
    GONE      away for longer than the grace time, or away and given up by its operator

Promises:
- A place changes nodes only when the new node holds everything of it. So no step lowers the number
  of existing copies that the placement names.
- Entries that no node can supply are not given up: the place stays with the node that may still
  have them.
- A node never has two places of one ensemble.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from dovetail.storage import Placement
from dovetail.storage.held import Span, without
from dovetail.storage.placement import Fragment

#: Entries of a ledger that are looked at together: one window of a striped ledger is some thousand
#: spans for each node, however long the ledger is.
WINDOW_ENTRIES = 16_384


class Presence(Enum):
    """Where a storage node is."""

    HERE = "here"
    AWAY = "away"
    LEAVING = "leaving"
    GONE = "gone"


class Attendance:
    """When each node was last present: distinguishes AWAY from GONE."""

    def __init__(self, *, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._away_since: dict[int, float] = {}
        #: By node: its life, which differs from one start of the node to the next.
        self._present: Mapping[int, str] = {}
        #: How often a node has gone away; what is known of its disk is as old as this.
        self._departures: dict[int, int] = {}

    def note(self, present: Mapping[int, str], *, now_ms: float) -> None:
        """Who answers now, and in which life: one that is back between two looks was away too."""
        for node, life in self._present.items():
            if present.get(node) != life:
                self._departures[node] = self._departures.get(node, 0) + 1
                self._away_since[node] = now_ms
        for node in present:
            self._away_since.pop(node, None)
        self._present = dict(present)

    def lives(self) -> frozenset[tuple[int, str]]:
        """Who answered at the last look, and in which life."""
        return frozenset(self._present.items())

    def presence(self, node: int, *, given_up: Collection[int], now_ms: float) -> Presence:
        """Where it is; `given_up` are the nodes that are to hold nothing in the end."""
        if node in self._present:
            return Presence.LEAVING if node in given_up else Presence.HERE
        since = self._away_since.setdefault(node, now_ms)
        gone = node in given_up or now_ms - since >= self._grace_ms
        return Presence.GONE if gone else Presence.AWAY

    def departures(self, node: int) -> int:
        """A number that changes whenever the node may have lost something."""
        return self._departures.get(node, 0)


@dataclass(frozen=True, slots=True)
class Copy:
    """Entries that a node lacks."""

    target: int
    span: Span


@dataclass(slots=True)
class Progress:
    """What became of the copies to the nodes of an aim."""

    #: Nodes that were asked what they hold; of others nothing is known.
    asked: set[int] = field(default_factory=set)
    #: Entries that did not come to be on a node: nobody could give or take them.
    lacking: dict[int, list[Span]] = field(default_factory=dict)

    def note_lacking(self, node: int, span: Span) -> None:
        self.lacking.setdefault(node, []).append(span)

    def lacks(self, node: int, span: Span) -> bool:
        """Whether the node lacks, for all that is known, an entry of the span."""
        return node not in self.asked or any(
            missing.first <= span.last and missing.last >= span.first
            for missing in self.lacking.get(node, ())
        )


def must_leave(placement: Placement, presence: Mapping[int, Presence]) -> tuple[int, ...]:
    """The nodes of the placement that are to be replaced."""
    leaving = (Presence.LEAVING, Presence.GONE)
    return tuple(sorted(node for node in placement.nodes if presence[node] in leaving))


def aim(placement: Placement, presence: Mapping[int, Presence], spare: Sequence[int]) -> Placement:
    """The placement to get to; `spare` are nodes that can take more, the best first.

    A place for which there is no spare node stays as it is.
    """
    leaving = must_leave(placement, presence)
    fragments = []
    for fragment in placement.fragments:
        nodes = list(fragment.nodes)
        for place, node in enumerate(fragment.nodes):
            if node in leaving:
                nodes[place] = next((n for n in spare if n not in nodes), node)
        fragments.append(Fragment(fragment.first_entry, tuple(nodes)))
    return msgspec.structs.replace(placement, fragments=tuple(fragments))


def windows(entry_last: int) -> Iterator[Span]:
    """A ledger's entries, a stretch at a time."""
    for first in range(0, entry_last + 1, WINDOW_ENTRIES):
        yield Span(first, min(entry_last, first + WINDOW_ENTRIES - 1))


def copies(wanted: Placement, node: int, window: Span, held: Sequence[Span]) -> list[Copy]:
    """What the node lacks in this window, given what it holds there."""
    expected = wanted.expected_on(node, first=window.first, last=window.last)
    return [Copy(node, span) for span in without(expected, held)]


def sources(
    placement: Placement, entry: int, presence: Mapping[int, Presence], *, target: int
) -> list[int]:
    """Who may have an entry, those first that should have it and stay."""
    order = list(Presence)
    named = [node for node in placement.nodes_for(entry) if node != target]
    return sorted(named, key=lambda node: order.index(presence[node]))


def settle(
    placement: Placement, wanted: Placement, progress: Progress, *, entry_last: int
) -> Placement:
    """The placement that the chain gets: the aim, except for places that were not filled.

    Fragments behind the last entry, which a writer began and never used, are left out.
    """
    fragments: list[Fragment] = []
    both = zip(placement.fragments, wanted.fragments, strict=True)
    for at, (before, after) in enumerate(both):
        span = placement.span_of(at, entry_last=entry_last)
        if fragments and span.first > span.last:
            continue
        nodes = tuple(
            old if new != old and progress.lacks(new, span) else new
            for old, new in zip(before.nodes, after.nodes, strict=True)
        )
        fragments.append(Fragment(before.first_entry, nodes))
    settled = msgspec.structs.replace(placement, fragments=tuple(fragments))
    return settled.without_borders()
