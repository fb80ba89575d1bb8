"""A storage node deletes ledgers that no chain names (L8, L11): it was away when they were deleted.

Why this never deletes a ledger that is needed: the node reads its own ledgers *first*, then the
chains. A chain names a ledger before any node holds it, the ledger stays in that one chain until it
is dropped, even when it moves to a page (`pages.py`), and its id is never used again. So a ledger
that is here, but in no chain that is read afterwards, was dropped. Copies that repair has made for
a node that its chain does not name yet belong to a ledger that *is* in a chain, and stay: sweeping
does not look at which nodes a chain names.

Only the coordination service itself could be wrong, restored from an old copy: its chains lack the
newer ledgers. But it would not have issued their ids either, so a ledger whose id was not issued
yet stops the sweep, and nothing is deleted.

Survives: a crash at any point (the next sweep does the rest), an absent service (nothing is
deleted), a late append that makes a deleted ledger appear again (the next sweep deletes it).
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
    """What a sweep has found and deleted, and the chains that it read."""

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
            f"ledger {strange[0]} is on this storage node, but the coordination service has issued "
            f"ids below {given} only: its state is older than the ledgers. Restore it from a newer "
            "backup; until then this node deletes no ledgers"
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
