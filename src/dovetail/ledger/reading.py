"""Reading a ledger forward, and finding the end of one that was never closed.

Recovery: fence the ledger, so that its old writer can add nothing more; take the highest
`confirmed` that an entry carries (entries tell how far their writer knew); read on from there
until no more is found. Everything found is kept, since it may have been acknowledged.
"""

from collections.abc import AsyncIterator

from dovetail.errors import EntryUnknown, LedgerUnknown
from dovetail.ledger.identifiers import NO_ENTRY, Entry, EntryId, LedgerId, Term
from dovetail.ledger.node import StorageNode

#: Bytes asked for at once on a long way through a ledger.
READ_AHEAD_BYTES = 1024 * 1024


async def recover(node: StorageNode, ledger: LedgerId, term: Term) -> EntryId:
    """Fences the ledger and returns its last entry, `NO_ENTRY` if it is empty.

    Raises `Fenced` if a higher term was here before.
    """
    state = await node.fence(ledger, term)
    last = state.confirmed
    while True:
        try:
            found = await node.read(
                ledger,
                EntryId(last + 1),
                last=EntryId(max(last + 1, state.entry_last)),
                bytes_max=READ_AHEAD_BYTES,
            )
        except (EntryUnknown, LedgerUnknown):
            return last
        last = found[-1].entry


async def read_forward(
    node: StorageNode, ledger: LedgerId, first: EntryId, *, last: EntryId
) -> AsyncIterator[Entry]:
    """All entries from `first` to `last`."""
    while first <= last:
        entries = await node.read(ledger, first, last=last, bytes_max=READ_AHEAD_BYTES)
        for entry in entries:
            yield entry
        first = EntryId(entries[-1].entry + 1)


__all__ = ["NO_ENTRY", "read_forward", "recover"]
