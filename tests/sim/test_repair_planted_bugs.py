"""The simulation of repair can fail: each planted bug makes it red within some seeds."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.sim import test_repair_sim

from dovetail.storage import chain
from dovetail.storage.repair import plan as repair_plan
from dovetail.storage.repair import sweeping
from dovetail.storage.repair import upkeep as storage_upkeep
from dovetail.storage.repair.copying import Copier
from dovetail.storage.repair.plan import Progress

SEEDS_MAX = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def chain_changed_before_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new node is named first; the copies are left to the next pass."""

    async def trusting(self: Any, job: Any, node: int) -> None:
        pass

    monkeypatch.setattr(Copier, "fill", trusting)


def failed_copies_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node gets its place although it could not be given everything."""
    monkeypatch.setattr(Progress, "lacks", lambda self, node, span: False)


def held_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is named is believed to have everything."""
    original = repair_plan.copies

    def believing(wanted: Any, node: int, window: Any, held: Any) -> Any:
        return original(wanted, node, window, held) if held == [] else []

    monkeypatch.setattr(repair_plan, "copies", believing)


def chains_read_before_the_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that is opened while the chains are on their way looks like nobody's."""

    async def backwards(node: Any, coordinator: Any) -> Any:
        chains = await sweeping.read_chains(coordinator)
        await asyncio.sleep(0.1)
        here = await node.ledgers()
        gone = here - sweeping.named_ledgers(chains)
        for ledger in gone:
            await node.delete(ledger)
        return sweeping.Swept(frozenset(here), frozenset(gone), chains)

    monkeypatch.setattr(storage_upkeep, "sweep", backwards)


def copies_swept_before_the_chain_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep takes what the chain does not name *this* node for."""
    original = storage_upkeep.StorageUpkeep.once

    async def eager(self: Any) -> None:
        here = await self._node.ledgers()
        chains = await sweeping.read_chains(self._coordinator)
        named = {
            info.ledger
            for record in chains
            for info in record.ledgers
            if self._number in info.placement.nodes
        }
        for ledger in here - named:
            await self._node.delete(ledger)
        await original(self)

    monkeypatch.setattr(storage_upkeep.StorageUpkeep, "once", eager)


def pages_read_before_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that moves to a page between the two reads is seen by neither."""

    async def backwards(coordinator: Any) -> Any:
        found = (await coordinator.range(chain.PAGES)).items
        await asyncio.sleep(0.1)
        records = (await coordinator.range(chain.PARTITIONS)).items
        pages = [chain.decode_page(item.value) for item in found]
        return tuple(chain.unfolded(chain.decode(item.value), pages) for item in records)

    monkeypatch.setattr(sweeping, "read_chains", backwards)


@pytest.mark.parametrize(
    "plant",
    [
        chain_changed_before_the_copies,
        failed_copies_do_not_count,
        held_is_not_asked,
        chains_read_before_the_ledgers,
        copies_swept_before_the_chain_names_them,
        pages_read_before_the_records,
    ],
)
def test_a_bug_planted_in_repair_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, L10, L15: the simulation goes red."""
    monkeypatch.setattr(chain, "PAGE_BYTES", 250)
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            test_repair_sim.run(seed)
        except Exception as error:
            print(f"{plant.__name__} was found by seed {seed}: {error}")
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds")
