"""The simulations can fail: each planted bug makes one of them red within a few hundred seeds.

A simulation that stays green with a known bug proves nothing, so these are tests of the tests.
"""

from collections.abc import Callable
from typing import Any

import pytest
from tests.sim import test_log_sim, test_store_sim

from dovetail.ledger import store
from dovetail.ledger.frame import SegmentScan
from dovetail.ledger.store import Durability, StoreSettings
from dovetail.log import ownership
from dovetail.log.producers import ProducerTable

SEEDS_MAX = 400

Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced, as with `durability = "os"`."""
    for module in (test_log_sim, test_store_sim):
        name = "STORE" if module is test_log_sim else "SETTINGS"
        settings: StoreSettings = getattr(module, name)
        relaxed = StoreSettings(
            Durability.OS, settings.segment_bytes, 0, reserve_bytes=settings.reserve_bytes
        )
        monkeypatch.setattr(module, name, relaxed)


def fence_not_persisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence lives in memory only."""
    original = store.LedgerStore._write

    def forgetful(self: Any, records: list[Any]) -> Any:
        kept = [r for r in records if r[0].kind is not store.Kind.FENCE]
        return original(self, kept) if kept else None

    monkeypatch.setattr(store.LedgerStore, "_write", forgetful)


def deletion_not_persisted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion lives in memory only."""
    original = store.LedgerStore._write

    def forgetful(self: Any, records: list[Any]) -> Any:
        kept = [r for r in records if r[0].kind is not store.Kind.DELETE]
        return original(self, kept) if kept else None

    monkeypatch.setattr(store.LedgerStore, "_write", forgetful)


def torn_tail_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that stops for a moment and takes any later intact record."""

    def any_group(self: Any, window: Any, position: int, failing_group: int) -> int | None:
        for at in window.candidates(position + 1):
            if window.record_at(at, self._salt) is not None:
                return int(at)
        return None

    monkeypatch.setattr(SegmentScan, "_intact_beyond", any_group)


def producers_forgotten_at_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner does not know what idempotent producers sent."""

    class Forgetful(ProducerTable):
        def __init__(self, producers: object = None) -> None:
            super().__init__()

        def note(self, header: Any, *, now_ms: int) -> None:
            pass

    monkeypatch.setattr(ownership, "ProducerTable", Forgetful)


def recovery_stops_at_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover ignores what came behind the last checkpoint."""
    original = ownership.recover

    async def short(storage: Any, ledger: Any, term: Any) -> Any:
        last = await original(storage, ledger, term)
        return last if last <= 0 else (await ownership._last_checkpoint(storage, ledger, last))[0]

    monkeypatch.setattr(ownership, "recover", short)


@pytest.mark.parametrize(
    ("plant", "run"),
    [
        (acknowledge_before_sync, test_store_sim.run),
        (acknowledge_before_sync, test_log_sim.run),
        (fence_not_persisted, test_store_sim.run),
        (deletion_not_persisted, test_store_sim.run),
        (torn_tail_is_kept, test_store_sim.run),
        (producers_forgotten_at_takeover, test_log_sim.run),
        (recovery_stops_at_the_checkpoint, test_log_sim.run),
    ],
)
def test_a_planted_bug_is_found(
    plant: Plant, run: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: the simulation goes red."""
    monkeypatch.setattr("dovetail.ledger.faulty_disk.FaultyDisk.power_cut", test_store_sim.PowerCut)
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            run(seed)
        except Exception:
            print(f"{plant.__name__} was found by seed {seed}")
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds")
