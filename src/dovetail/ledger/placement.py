"""Where a ledger lies: its quorum sizes, and which nodes hold which entries.

A *fragment* is a stretch of entries on one ensemble; it ends where the next one begins. The last
fragment of an open ledger is the one that is being written. All of it is metadata that the owner
of the ledger changes by compare-and-set.
"""

import msgspec

from dovetail.ledger.identifiers import EntryId
from dovetail.ledger.quorum import Quorum, write_set


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
