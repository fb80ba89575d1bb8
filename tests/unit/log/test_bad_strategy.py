"""A user's own strategy that fails, at the worst moments."""

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tests.unit.log.conftest import DEFAULTS

from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator, Unchanged
from dovetail.coordination.membership import LiveBrokers
from dovetail.log.service import Log
from dovetail.storage import (
    Ensembles,
    LedgerStore,
    LocalStorageNode,
    OneNode,
    RealDisk,
    StoreSettings,
)
from dovetail.storage.selection import Candidate, least_loaded, selection_named

BROKEN = False


def moody(candidates: Sequence[Candidate], turn: int) -> list[int]:
    """A strategy that stops working."""
    if BROKEN:
        raise ValueError("no idea")
    return least_loaded(candidates, turn)


class TwoBrokers:
    """This one and another, which wants partitions as soon as it is told to."""

    def __init__(self) -> None:
        self.on_change: list[Callable[[], None]] = []
        self.before_lease: list[Callable[[], Awaitable[None]]] = []
        self.willing = frozenset({1})

    def brokers(self) -> LiveBrokers:
        return LiveBrokers(frozenset({1, 2}), self.willing)

    def holds_lease(self) -> bool:
        return True

    def absence_of(self, number: int) -> tuple[Unchanged, ...]:
        return ()

    def decline(self) -> None:
        pass


async def test_a_clean_stop_gives_back_also_when_the_strategy_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L12: ledgers are closed and successors named, by load then."""
    coordinator = await EmbeddedCoordinator.open(tmp_path / "c.sqlite", clock=SystemClock())
    store = LedgerStore(
        RealDisk(tmp_path / "ledgers"), StoreSettings(disk_free_bytes_min=1), random.Random(1)
    )
    storage, peers = LocalStorageNode(store), TwoBrokers()
    log = Log(
        node_id=1,
        coordinator=coordinator,
        ensembles=Ensembles(OneNode(1, storage)),
        clock=SystemClock(),
        defaults=DEFAULTS,
        tail_bytes_max=0,
        peers=peers,
        select=selection_named(f"{__name__}:moody"),
    )
    await log.load()
    await log.start()
    record = await log.create_topic("t", partitions=1)
    partition = log.partition("t", 0)
    peers.willing = frozenset({1, 2})
    monkeypatch.setitem(globals(), "BROKEN", True)
    await log.close()
    assert not partition.serving
    assert [p.owner for p in await log.catalog.partitions(record.id)] == [2]
    await storage.close()
    await coordinator.close()
