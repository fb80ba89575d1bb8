"""A damaged storage node finds out what it must hold, and when it is whole again.

A node that finds damage on its disk knows the place, not what lay there (`disk/doubt.py`). The
chains tell: a chain names a ledger before any node holds it, so everything that can have been lost
belongs to ledgers for which the chains, read *after* the damage was found, name this node. Those
are in doubt, no others. A fence can be among what was lost; so each ledger in doubt is fenced anew
with its partition's newest term, which is not below any fence that ever existed.

    damaged, nothing examined ── chains read, fences renewed ──► these ledgers are in doubt
    ledgers in doubt          ── owners copy what is missing (repairer.py) ──► (checked again)
    every ledger in doubt is  ── damaged segments are dropped ──► whole
    gone, or closed and held in full

What the node must hold follows from the chain by arithmetic; what it holds it knows itself. So it
decides alone whether it is whole, and no owner's wrong belief counts.

Survives: a crash at any point. As long as a damaged segment exists, the next start finds it and
begins anew; it then finds what was copied meanwhile.

Not here: the copies (repairer.py). A node with the only copy of an entry stays in doubt until
retention or a deletion drops the ledger.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Protocol

from dovetail.errors import Damaged, Fenced, LedgerUnknown
from dovetail.storage import LedgerId, LedgerState, Term
from dovetail.storage.chain import LedgerInfo, PartitionRecord
from dovetail.storage.held import Holder, held_in, without
from dovetail.storage.repair.plan import windows


class DamagedNode(Holder, Protocol):
    """A storage node, as it sees itself (`LocalStorageNode`)."""

    @property
    def damaged(self) -> bool:
        """Whether something on the disk does not check, be it known what or not."""
        ...

    def doubted(self) -> set[LedgerId] | None:
        """The ledgers that may have lost entries, or have; None while nothing was examined."""
        ...

    def examine(self, ledgers: Mapping[LedgerId, bool]) -> None:
        """Only these can have lost something; True where other nodes hold copies."""
        ...

    async def fence(self, ledger: LedgerId, term: Term) -> LedgerState:
        """As `StorageNode.fence`."""
        ...

    async def let_damage_go(self, settled: frozenset[LedgerId]) -> None:
        """Everything that should be here can be read: damaged segments go.

        What cannot be read of `settled` ledgers is not needed: it lies behind their last entry, or
        has its place on another node.
        """
        ...


async def mend_damage(
    node: DamagedNode,
    number: int,
    *,
    here: Collection[LedgerId],
    chains: Iterable[PartitionRecord],
) -> frozenset[LedgerId]:
    """One step towards wholeness; the ledgers that are still in doubt, none if it is whole.

    `here` are the node's ledgers, and `chains` were read after them: a ledger that is here and
    whose chain does not name the node has its place elsewhere.
    """
    if not node.damaged:
        return frozenset()
    named = list(_naming(number, chains))
    if node.doubted() is None:
        fences = (_fence_anew(node, LedgerId(i.ledger), Term(r.term)) for r, i in named)
        await asyncio.gather(*fences)
        node.examine({LedgerId(i.ledger): i.placement.quorum.write > 1 for _, i in named})
    doubted = node.doubted() or set()
    left = {
        LedgerId(info.ledger)
        for _, info in named
        if info.ledger in doubted and not await _is_complete(node, number, info)
    }
    if not left:
        needed = {info.ledger for _, info in named} - doubted
        await node.let_damage_go(frozenset(n for n in here if n not in needed))
    return frozenset(left)


async def _fence_anew(node: DamagedNode, ledger: LedgerId, term: Term) -> None:
    try:
        await node.fence(ledger, term)
    except (Fenced, LedgerUnknown, Damaged):
        pass  # A higher fence is there, or the ledger is not; a fence on a damaged one holds.


def _naming(
    number: int, chains: Iterable[PartitionRecord]
) -> Iterator[tuple[PartitionRecord, LedgerInfo]]:
    """The ledgers that name the node, each with its partition."""
    for record in chains:
        for info in record.ledgers:
            if number in info.placement.nodes:
                yield record, info


async def _is_complete(node: DamagedNode, number: int, info: LedgerInfo) -> bool:
    """Whether the node holds all that the chain says. An open ledger can still grow."""
    if not info.closed:
        return False
    for window in windows(info.entry_last):
        expected = info.placement.expected_on(number, first=window.first, last=window.last)
        if without(expected, await held_in(node, LedgerId(info.ledger), window)):
            return False
    return True
