"""Ledger id, entry id and term, as types."""

from dataclasses import dataclass
from typing import NewType

from dovetail.buffers import Buffer

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
Term = NewType("Term", int)

#: The id "before the first entry": the last entry of an empty ledger.
NO_ENTRY = EntryId(-1)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as read; `confirmed` is what its writer knew to be confirmed when it wrote."""

    entry: EntryId
    term: Term
    confirmed: EntryId
    payload: Buffer


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What a storage node knows of a ledger: its highest entry and the highest `confirmed`."""

    entry_last: EntryId
    confirmed: EntryId
    fenced: Term
