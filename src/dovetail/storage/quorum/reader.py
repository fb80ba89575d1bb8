"""Reads entries from a write set: asks one node, and the next if that one is slow.

    ask the first ──answers──────────────────────► done
          │ silent for HEDGE_MS, or it failed
          ▼
    ask the next too ──first answer of any───────► done

Any node's answer will do: the entries are confirmed, and no two nodes ever hold different entries
under one id. So the reader asks a node in its own rack first (L16). It asks a node that was silent
or unreachable last for a while, so that a dead node delays a reader once and not at every read: a
takeover makes a dozen reads in a row, and each would wait for a connection to time out.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dovetail.background import start_task
from dovetail.errors import Damaged, DovetailError, EntryUnknown, NotFound, Unavailable
from dovetail.storage.identifiers import Entry, EntryId, LedgerId
from dovetail.storage.node import StorageNode
from dovetail.storage.placement import Placement

#: A node that has not answered for so long is not waited for alone. Answers from memory take a
#: millisecond, those from a slow disk some tens.
HEDGE_MS = 100

#: How long a node that was silent or unreachable is asked last.
DOUBT_MS = 5000


class Reachable(Protocol):
    """The part of `Nodes` that a reader needs."""

    def node(self, number: int) -> StorageNode:
        """Raises `Unavailable` if it is not known at all."""
        ...

    def near(self, number: int) -> bool:
        """Whether it is asked before others."""
        ...


class QuorumReader:
    """See the module."""

    def __init__(self, nodes: Reachable) -> None:
        self._nodes = nodes
        #: Until when a node is asked last.
        self._doubted: dict[int, float] = {}
        #: Called with a ledger and a node that cannot read an entry of it.
        self.on_damaged: Callable[[int, int], None] = lambda _ledger, _node: None

    async def read(
        self, placement: Placement, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        """Entries from `first` on without a gap, at least one, all confirmed.

        Raises `LedgerUnknown` or `EntryUnknown` if no node that answers has it, `Damaged` or
        `Unavailable` if one that may have it cannot be read.
        """
        ledger = LedgerId(placement.ledger)
        border = placement.end_of_fragment(first)
        last = last if border is None else EntryId(min(last, border))

        async def ask(number: int) -> list[Entry] | DovetailError:
            try:
                node = self._nodes.node(number)
                return await node.read(ledger, first, last=last, bytes_max=bytes_max)
            except NotFound as error:
                return error
            except Damaged as error:
                self.on_damaged(ledger, number)
                return error
            except Unavailable as error:
                self._doubt([number])
                return error

        worst: DovetailError = EntryUnknown(f"ledger {ledger} has no entry {first}")
        waiting = self._in_order(placement.nodes_for(first))
        if len(waiting) == 1:
            found = await ask(waiting[0])
            if isinstance(found, DovetailError):
                raise found
            return found

        asked: dict[asyncio.Task[list[Entry] | DovetailError], int] = {}
        try:
            while waiting or asked:
                if waiting:
                    number = waiting.pop(0)
                    asked[start_task(ask(number), name="storage/read")] = number

                done, _ = await asyncio.wait(
                    asked,
                    timeout=HEDGE_MS / 1000 if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    self._doubt(asked.values())
                for task in [task for task in asked if task in done]:  # A set has no order.
                    del asked[task]
                    found = task.result()
                    if not isinstance(found, DovetailError):
                        return found
                    worst = found if _weight(found) >= _weight(worst) else worst
        finally:
            for task in asked:
                task.cancel()
        raise worst

    def _in_order(self, numbers: Sequence[int]) -> list[int]:
        now_s = asyncio.get_running_loop().time()
        return sorted(
            numbers,
            key=lambda number: (
                self._doubted.get(number, now_s) > now_s,
                not self._nodes.near(number),
            ),
        )

    def _doubt(self, numbers: Iterable[int]) -> None:
        until_s = asyncio.get_running_loop().time() + DOUBT_MS / 1000
        self._doubted.update(dict.fromkeys(numbers, until_s))


def _weight(error: DovetailError) -> int:
    """A node that was away may have it, and that passes; damage does not, so it is reported."""
    return 2 if isinstance(error, Unavailable) else 1 if isinstance(error, Damaged) else 0
