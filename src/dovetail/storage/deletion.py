"""Deletes ledgers on the nodes that hold them, in one of two ways.

Deleting a topic is complete only when every node has deleted its ledgers (L8), so `insist` fails if
one does not answer, and the caller repeats it; nodes removed from the cluster for good are skipped.
Ledgers that retention drops have left their chain already, so `let_go` sends requests in the
background and waits for no silent node: that node sweeps when it returns (sweeping.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from dovetail.background import start_task
from dovetail.errors import DovetailError
from dovetail.storage.identifiers import LedgerId
from dovetail.storage.node import StorageNode
from dovetail.storage.placement import Placement

#: How long a caller that lets ledgers go waits for nodes that have answered so far. Deleting takes
#: one sync; whoever frees room then sees it freed.
LET_GO_WAIT_MS = 500


class _Nodes(Protocol):
    def node(self, number: int) -> StorageNode: ...


class Deletions:
    """Both ways, for the ledgers of one owner."""

    def __init__(self, nodes: _Nodes, *, removed: Callable[[], Collection[int]]) -> None:
        self._nodes = nodes
        self._removed = removed
        self._waiting: dict[int, deque[LedgerId]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Nodes that did not answer last time; nobody waits for them.
        self._silent: set[int] = set()

    async def insist(self, placement: Placement) -> None:
        """Deletes on every node. Raises if one did not answer; do it again then."""
        ledger = LedgerId(placement.ledger)
        numbers = sorted(placement.nodes.difference(self._removed()))
        outcomes = await asyncio.gather(
            *(self._delete(number, ledger) for number in numbers), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def let_go(self, placements: Sequence[Placement]) -> None:
        """Asks the nodes to delete; returns soon, whether they have answered or not."""
        begun = set()
        for placement in placements:
            for number in placement.nodes.difference(self._removed()):
                self._waiting.setdefault(number, deque()).append(LedgerId(placement.ledger))
                if number not in self._tasks:
                    self._tasks[number] = start_task(
                        self._work_off(number), name="storage/deletions"
                    )
                begun.add(number)
        awaited = [self._tasks[number] for number in begun - self._silent]
        if awaited:
            await asyncio.wait(awaited, timeout=LET_GO_WAIT_MS / 1000)

    async def close(self) -> None:
        """Cancels all requests."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work_off(self, number: int) -> None:
        try:
            while self._waiting[number]:
                await self._delete(number, self._waiting[number].popleft())
            self._silent.discard(number)
        except DovetailError:  # It sweeps when it is back.
            self._silent.add(number)
        finally:
            del self._waiting[number], self._tasks[number]

    async def _delete(self, number: int, ledger: LedgerId) -> None:
        await self._nodes.node(number).delete(ledger)
