"""What a storage node does for its own disk, at start and periodically.

Before it serves, it deletes ledgers that no chain names (`sweeping.py`) and, after damage, finds
the ledgers in doubt (`wholeness.py`), so that it never answers "not here" for an entry that it may
have lost. Then it repeats both; often while there is damage, rarely otherwise.
"""

import asyncio
from contextlib import suppress
from typing import Protocol

from dovetail.coordination.protocol import Coordinator
from dovetail.errors import DovetailError
from dovetail.logging import get_logger
from dovetail.storage import LedgerId, StorageNode
from dovetail.storage.repair.sweeping import sweep
from dovetail.storage.repair.wholeness import DamagedNode, mend_damage

_log = get_logger("storage")

#: Garbage is rare (a node was away at a deletion) and costs only room; a sweep reads all chains.
SWEEP_MS = 10 * 60 * 1000

#: While the node is damaged: how soon it sees that owners have copied what it lacked.
DAMAGED_MS = 3_000


class OwnStorage(StorageNode, DamagedNode, Protocol):
    """The storage node of this process."""


class StorageUpkeep:
    """Keeps one storage node clean and honest."""

    def __init__(self, node: OwnStorage, number: int, coordinator: Coordinator) -> None:
        self._node = node
        self._number = number
        self._coordinator = coordinator
        self._woken = asyncio.Event()
        #: Ledgers that may lack entries here because of damage.
        self.doubted: frozenset[LedgerId] = frozenset()

    def wake(self) -> None:
        """Something has changed: the next look comes at once."""
        self._woken.set()

    async def once(self) -> None:
        """Sweeps, and goes a step towards wholeness. Raises `Damaged` or `CoordinationDown`."""
        swept = await sweep(self._node, self._coordinator)
        if swept.deleted:
            _log.info("deleted ledgers that no chain names", ledgers=len(swept.deleted))
        was_damaged = self._node.damaged
        doubted = await mend_damage(self._node, self._number, here=swept.here, chains=swept.chains)
        if doubted and doubted != self.doubted:
            _log.warning("ledgers wait for repair from other nodes", ledgers=len(doubted))
        elif was_damaged and not doubted:
            _log.info("every entry is here again; deleting damaged segments")
        self.doubted = doubted

    async def run(self) -> None:
        """For ever; cancel it to end. The first time is the caller's: `once`, before it serves."""
        while True:
            wait_ms = DAMAGED_MS if self._node.damaged else SWEEP_MS
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self.once()
            except (DovetailError, OSError) as error:
                _log.warning("cannot sweep; trying again", error=str(error))
