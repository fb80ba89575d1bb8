"""Compaction under crashes, seeded: see `compaction_world.py`."""

import asyncio

import pytest
from tests.sim.broker_world import repeatable
from tests.sim.compacting_brokers import CompactingWorld
from tests.sim.compaction_world import run
from tests.sim.processes import ProcessLoop
from tests.sim.seeds import run_seeds
from tests.sim.test_brokers_sim import play

from dovetail.log.compaction import compactor
from dovetail.storage import chain


@pytest.mark.parametrize(("page_bytes", "least"), [(chain.PAGE_BYTES, 20), (60, 5)])
def test_the_last_record_of_each_key_survives_everything(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int, least: int
) -> None:
    """L17, K4, K8, L15: power cuts in every step, lost answers, a full disk, sweeps and readers
    meanwhile, maps of four keys; also with pages of chains that hold one ledger."""
    monkeypatch.setattr(compactor, "_KEYS_MIN", 4)
    monkeypatch.setattr(chain, "PAGE_BYTES", page_bytes)
    worlds = run_seeds(run, least=least)
    assert sum(world.cuts for world in worlds) >= len(worlds), "the power was hardly cut"
    assert sum(world.swaps for world in worlds) >= 5 * len(worlds), "hardly anything was replaced"
    assert sum(world.removed for world in worlds) >= 20 * len(worlds), "hardly anything went"


def run_cluster(seed: int) -> CompactingWorld:
    async def main() -> CompactingWorld:
        world = CompactingWorld(seed)
        with repeatable(world):
            await play(world)
        return world

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        return runner.run(main())


def test_brokers_compact_what_they_own_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """L17, L9, R1: owners die, stand still and go on as zombies in the middle of a pass; storage
    nodes lose power; chains have pages."""
    monkeypatch.setattr(compactor, "_KEYS_MIN", 4)
    worlds = run_seeds(run_cluster, least=5)
    assert sum(world.history.swaps for world in worlds) >= 10 * len(worlds), "hardly any swaps"
