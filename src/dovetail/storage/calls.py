"""The private calls to a storage node: messages, keys and limits. `wire/calls.py` is their codec.

A message holds the heads of entries; their payloads follow it in the same order.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct

from dovetail.storage import EntryId, LedgerId, Term
from dovetail.storage.held import HELD_SPANS_MAX, Span
from dovetail.wire.calls import STORAGE_KEYS, Answer, CallTable, Failure, Request

#: Entries of one append request. Some hundred make the cost of a frame vanish; more would only
#: delay the first ones.
APPENDS_MAX: Final = 512

#: Payload bytes of one append request, unless one entry alone has more. A frame is begun when all
#: of it is here, so larger ones would leave the other node idle meanwhile.
APPEND_BYTES_MAX: Final = 4 * 1024 * 1024

#: Payload bytes of one read answer, unless one entry alone has more: what a Kafka consumer asks of
#: a partition by default. A connection holds up to 100 answers.
READ_BYTES_MAX: Final = 1024 * 1024

#: Entries of one read answer; each costs some hundred bytes of memory beside its payload.
READ_ENTRIES_MAX: Final = 16 * 1024

#: Largest body of a request: `APPENDS_MAX` entries take up to 22 KiB.
REQUEST_BODY_BYTES_MAX: Final = 64 * 1024

#: Numbers are 64 bits on the disk.
NUMBER_MAX: Final = 2**63 - 1

_Ledger = Annotated[LedgerId, Meta(ge=0, le=NUMBER_MAX)]
_Entry = Annotated[EntryId, Meta(ge=0, le=NUMBER_MAX)]
_EntryOrNone = Annotated[EntryId, Meta(ge=-1, le=NUMBER_MAX)]
_Term = Annotated[Term, Meta(ge=0, le=NUMBER_MAX)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class AppendHead(Struct, array_like=True, frozen=True, gc=False):
    """An entry to store, without its payload."""

    ledger: _Ledger
    entry: _Entry
    term: _Term
    confirmed: _EntryOrNone
    payload_bytes: _Count


class Appends(Request, frozen=True):
    """Store these entries; their payloads follow in the same order."""

    heads: Annotated[list[AppendHead], Meta(min_length=1, max_length=APPENDS_MAX)]


class AppendOutcomes(Answer, frozen=True):
    """For each entry, in order: None if it is durable, or why not."""

    outcomes: Annotated[list[Failure | None], Meta(max_length=APPENDS_MAX)]


class FenceLedger(Request, frozen=True):
    """Refuse lower terms from now on."""

    ledger: _Ledger
    term: _Term


class LedgerFenced(Answer, frozen=True):
    """The state of the ledger when it was fenced."""

    entry_last: _EntryOrNone
    confirmed: _EntryOrNone
    fenced: _Term


class ReadEntries(Request, frozen=True):
    """Entries from `first` on without a gap."""

    ledger: _Ledger
    first: _Entry
    last: _EntryOrNone
    bytes_max: _Count


class ReadForRecovery(Request, frozen=True):
    """Fence, then read one entry."""

    ledger: _Ledger
    entry: _Entry
    term: _Term


class EntryHead(Struct, array_like=True, frozen=True, gc=False):
    """An entry as read, without its payload."""

    entry: _Entry
    term: _Term
    confirmed: _EntryOrNone
    payload_bytes: _Count


class EntriesRead(Answer, frozen=True):
    """Entries, none if a recovery read found none; their payloads follow in the same order."""

    heads: Annotated[list[EntryHead], Meta(max_length=READ_ENTRIES_MAX)]


class DeleteLedger(Request, frozen=True):
    """Forget the ledger."""

    ledger: _Ledger


class LedgerDeleted(Answer, frozen=True):
    """It is forgotten."""


class ListLedgers(Request, frozen=True):
    """Which ledgers are there?"""


class LedgersListed(Answer, frozen=True):
    """The ledgers of the node."""

    ledgers: list[_Ledger]


class AskHeld(Request, frozen=True):
    """Which entries of the ledger from `first` to `last` can be read there?"""

    ledger: _Ledger
    first: _Entry
    last: _EntryOrNone


class HeldFound(Answer, frozen=True):
    """Spans, first and last included; -1, or the entry from which on nothing was looked at."""

    spans: Annotated[list[Span], Meta(max_length=HELD_SPANS_MAX)]
    next: _EntryOrNone


#: A change of a key needs a new version of the calls.
CALLS: Final = CallTable(
    "storage",
    STORAGE_KEYS,
    {
        10_001: Appends,
        10_002: FenceLedger,
        10_003: ReadEntries,
        10_004: ReadForRecovery,
        10_005: DeleteLedger,
        10_006: ListLedgers,
        10_007: AskHeld,
    },
    body_bytes_max=REQUEST_BODY_BYTES_MAX,
)
