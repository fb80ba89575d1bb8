"""What a storage node may have lost without knowing it.

A start that finds damage knows the place but not the content: it may have held entries of any
ledger. Until that is settled, "not here" would be a lie that a recovery believes, so the node
answers `Damaged`.

    unexamined   every ledger is in doubt
    examined     the ledgers are in doubt that chains named after the start: a chain names a ledger
                 before any node holds it, so no other ledger can have been here. Ledgers created
                 later are not in doubt at all
    (gone)       all that should be here is here again (storage/repair/wholeness.py decides that)

Where no entry can have lain (recovery.py), only fences and deletions are in doubt. The node then
answers no read wrongly, and is whole as soon as it was examined, which renews the fences.

How far a ledger is in doubt: where other nodes hold copies, everything missing, for they can
answer. Where this node holds the only copy, no other node can, so the doubt must not go further
than necessary: the one writer sends entries in order, so an intact entry *behind* the damage proves
that what was lost lies below it. An old entry that compaction moved there proves nothing. The same
rule holds until the damage has been examined.
"""

from collections.abc import Mapping

from dovetail.storage.disk.index import EntryIndex
from dovetail.storage.disk.recovery import RecoveryReport
from dovetail.storage.disk.segment import Segment
from dovetail.storage.identifiers import LedgerId


class Doubts:
    """What is in doubt on one node; asked from any thread, each answer by one reading of state."""

    def __init__(
        self, index: EntryIndex, segments: Mapping[int, Segment], report: RecoveryReport
    ) -> None:
        damage_end = report.damage_end
        self._index = index
        self._entries_lost = damage_end is not None
        #: The ledgers with an intact entry behind all damage that their writer sent last.
        self._behind = frozenset() if damage_end is None else _behind(segments, *damage_end)
        #: The ledgers in doubt, True where others hold copies; None is all of them.
        self._ledgers: Mapping[int, bool] | None = None if report.damaged else {}

    def may_have_lost(self, ledger: int, entry: int) -> bool:
        """Whether an entry that is not here may be among what is damaged."""
        if self._index.in_hole(ledger, entry):
            return True
        ledgers = self._ledgers
        if not self._entries_lost or (ledgers is not None and ledger not in ledgers):
            return False
        entry_last = self._index.entry_last(ledger)
        copied = ledgers is not None and ledgers[ledger]
        if copied or entry_last is None or ledger not in self._behind:
            return True
        return entry < entry_last

    def ledgers(self) -> set[LedgerId] | None:
        """The ledgers that may have lost entries, or have; None while nothing was examined."""
        if self._ledgers is None:
            return None
        return {LedgerId(n) for n in self._ledgers.keys() | self._index.ledgers_with_loss()}

    def examine(self, ledgers: Mapping[int, bool]) -> None:
        """Only these can have lost something; True where other nodes hold copies."""
        if self._ledgers is None:
            self._ledgers = dict(ledgers) if self._entries_lost else {}

    def settle(self) -> None:
        """Everything that should be here is here."""
        self._ledgers = {}


def _behind(segments: Mapping[int, Segment], number: int, position: int) -> frozenset[int]:
    """The ledgers that have an entry behind this place which was written in its turn."""
    in_turn = [run for s in segments.values() for run in s.runs if not run.again]
    return frozenset(
        run.ledger
        for run in in_turn
        if run.segment > number
        or (run.segment == number and run.rows is not None and run.rows.positions[-1] >= position)
    )
