"""The placement of a ledger: its quorum sizes, and which nodes hold which entries.

A *fragment* is a run of entries on one ensemble; it ends where the next one begins. The writer of
an open ledger appends to its last fragment. The ledger's owner changes this metadata by
compare-and-set.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from dovetail.storage.held import Span, joined, of_place
from dovetail.storage.identifiers import EntryId
from dovetail.storage.quorum.arithmetic import Quorum, write_set


class Fragment(msgspec.Struct, frozen=True, array_like=True):
    """From `first_entry` on, these nodes, by place."""

    first_entry: int
    nodes: tuple[int, ...]


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """A ledger and where it lies."""

    ledger: int
    quorum: Quorum
    fragments: tuple[Fragment, ...]

    def nodes_for(self, entry: int) -> tuple[int, ...]:
        """The nodes that hold an entry, in the order of its write set."""
        fragment = next(f for f in reversed(self.fragments) if f.first_entry <= entry)
        return write_set(self.quorum, fragment.nodes, entry)

    def end_of_fragment(self, entry: int) -> EntryId | None:
        """The last entry of the fragment that holds `entry`; None in the last fragment."""
        later = [f.first_entry for f in self.fragments if f.first_entry > entry]
        return EntryId(min(later) - 1) if later else None

    @property
    def nodes(self) -> frozenset[int]:
        """All nodes that hold some of it."""
        return frozenset(node for fragment in self.fragments for node in fragment.nodes)

    def span_of(self, fragment: int, *, entry_last: int) -> Span:
        """The entries of a fragment, in a ledger that ends at `entry_last`; may be empty."""
        first = self.fragments[fragment].first_entry
        later = self.fragments[fragment + 1 : fragment + 2]
        return Span(first, min(entry_last, later[0].first_entry - 1) if later else entry_last)

    def expected_on(self, node: int, *, first: int, last: int) -> Iterator[Span]:
        """What of the entries from `first` to `last` the node is to hold."""
        return joined(
            span
            for at, fragment in enumerate(self.fragments)
            if node in fragment.nodes
            for whole in (self.span_of(at, entry_last=last),)
            for span in of_place(
                self.quorum, fragment.nodes.index(node), max(first, whole.first), whole.last
            )
        )

    def without_borders(self) -> "Placement":
        """The same, with neighbouring fragments that lie on the same nodes made one."""
        kept = [self.fragments[0]]
        kept += [f for before, f in pairwise(self.fragments) if f.nodes != before.nodes]
        return msgspec.structs.replace(self, fragments=tuple(kept))

    def with_nodes(self, first_entry: int, nodes: tuple[int, ...]) -> "Placement":
        """The same ledger on other nodes from `first_entry` on."""
        last = self.fragments[-1]
        if first_entry < last.first_entry:
            raise AssertionError(
                f"ledger {self.ledger}: a change at entry {first_entry} below the fragment that "
                f"begins at {last.first_entry}"
            )
        kept = self.fragments[:-1] if first_entry == last.first_entry else self.fragments
        return msgspec.structs.replace(self, fragments=(*kept, Fragment(first_entry, nodes)))
