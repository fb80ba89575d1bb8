"""One ledger's writer: ids, order, confirmation.

Promise: entries are confirmed in the order of their ids, an entry only when all before it are.
After the first failure nothing more is confirmed: the entries behind it are *uncertain*, and the
owner closes this ledger by recovery and goes on in a new one. A ledger has no holes that way.

States: open → failed (by the first error). There is no way back.
Survives: answers that come after the failure; they are told apart by their id.
"""

from collections.abc import Callable
from typing import Protocol

from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, Uncertain
from dovetail.ledger.identifiers import NO_ENTRY, EntryId, LedgerId, Term
from dovetail.ledger.node import StorageNode

Confirm = Callable[[DovetailError | None], None]


class LedgerWriter(Protocol):
    """What a partition needs of a ledger; one node or a quorum is the writer's business."""

    @property
    def ledger(self) -> LedgerId: ...

    @property
    def entry_next(self) -> EntryId:
        """The id that the next append gets."""
        ...

    def append(self, payload: Buffer, confirm: Confirm) -> EntryId:
        """Sends an entry; `confirm` gets None when it and all before it are stored, or the error.

        Confirmations come in the order of the appends.
        """
        ...


class SingleWriter:
    """Ensemble 1, write quorum 1, ack quorum 1."""

    def __init__(self, node: StorageNode, ledger: LedgerId, *, term: Term) -> None:
        self._node = node
        self._ledger = ledger
        self._term = term
        self._entry_next = EntryId(0)
        self._confirmed = NO_ENTRY
        self._failure: DovetailError | None = None

    @property
    def ledger(self) -> LedgerId:
        return self._ledger

    @property
    def entry_next(self) -> EntryId:
        return self._entry_next

    def append(self, payload: Buffer, confirm: Confirm) -> EntryId:
        entry = self._entry_next
        self._entry_next = EntryId(entry + 1)

        def answered(error: DovetailError | None) -> None:
            if self._failure is None and error is None:
                self._confirmed = entry
                confirm(None)
            elif self._failure is None:
                self._failure = error
                confirm(error)
            else:
                confirm(Uncertain(f"may or may not be stored: an earlier entry: {self._failure}"))

        self._node.append(
            self._ledger,
            entry,
            term=self._term,
            confirmed=self._confirmed,
            payload=payload,
            answer=answered,
        )
        return entry
