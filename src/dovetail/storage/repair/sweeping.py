"""A storage node lets go what no chain names (L8, L11): it was away when a ledger was deleted.

Why that cannot delete what is needed: the node reads its own ledgers *first*, then the chains. A
ledger is in a chain before any node holds it, it stays in that one chain until it is let go, also
when it moves to a page there (`pages.py`), and its id is never given again. So a ledger that is
here, and is in no chain that is read afterwards, was let go. Copies that repair has made for a node
that its chain does not name yet are of a ledger that *is* in a chain, and stay: which nodes a chain
names is not asked.

The one thing that could be wrong is the coordination service itself, restored from an old copy: its
chains know nothing of newer ledgers. It would not have given their ids either, so a ledger whose id
was not given yet stops the sweep, and nothing is deleted.

Survives: a crash at any point (the next sweep does the rest), the service being away (nothing is
deleted), a late append that makes a deleted ledger appear again (it goes at the next sweep).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.coordination.protocol import Coordinator
from dovetail.errors import Damaged, DiskFull
from dovetail.storage import LedgerId, StorageNode
from dovetail.storage.chain import PartitionRecord
from dovetail.storage.pages import read_chains

#: The next ledger id that nobody has (`catalog.IdBlocks`).
_LEDGER_IDS = "/ids/ledger"


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep has found and let go, and the chains that it went by."""

    here: frozenset[LedgerId]
    deleted: frozenset[LedgerId]
    chains: tuple[PartitionRecord, ...]


async def sweep(node: StorageNode, coordinator: Coordinator) -> Swept:
    """Deletes the node's ledgers that no chain names.

    Raises `Damaged` if the coordination service is older than what the node holds.
    """
    here = await node.ledgers()
    chains = await read_chains(coordinator)
    found = await coordinator.get(_LEDGER_IDS)
    given = 0 if found is None else int(found.value)
    named = named_ledgers(chains)
    strange = sorted(ledger for ledger in here - named if ledger >= given)
    if strange:
        raise Damaged(
            f"ledger {strange[0]} is on this storage node, and the coordination service has given "
            f"ids below {given} only: it is older than what is stored. Restore it from a newer "
            "copy; until then nothing is swept away"
        )
    deleted: set[LedgerId] = set()
    for ledger in sorted(here - named):
        try:
            await node.delete(ledger)
        except DiskFull:
            break  # It costs only room: the next sweep finds it. A node must start without room.
        deleted.add(ledger)
    return Swept(frozenset(here), frozenset(deleted), chains)


def named_ledgers(chains: Iterable[PartitionRecord]) -> set[LedgerId]:
    """Every ledger that is in a chain."""
    return {LedgerId(info.ledger) for record in chains for info in record.ledgers}
