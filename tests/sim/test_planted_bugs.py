"""The simulations can fail: each planted bug makes one of them red within a few hundred seeds.

A simulation that stays green with a known bug proves nothing, so these are tests of the tests.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.sim import cluster, test_cluster_sim, test_log_sim, test_store_sim

from dovetail.log import ownership
from dovetail.log.producers import ProducerTable
from dovetail.storage import Ensembles, EntryId
from dovetail.storage.disk import commands, options, store
from dovetail.storage.disk.frame import SegmentScan
from dovetail.storage.disk.options import Durability, StoreSettings
from dovetail.storage.placement import Fragment, Placement
from dovetail.storage.quorum.arithmetic import Quorum
from dovetail.storage.quorum.recovery import Done, QuorumRecovery
from dovetail.storage.quorum.writer import Confirm, QuorumWriter, Replace

SEEDS_MAX = 1000

Plant = Callable[[pytest.MonkeyPatch], None]


def acknowledge_before_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is synced, as with `durability = "os"`."""
    for module in (test_log_sim, test_store_sim, cluster):
        name = "SETTINGS" if module is test_store_sim else "STORE"
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


def mark_before_it_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """F3: a mark that is not synced itself makes the next group's torn end look like damage."""
    original = store.LedgerStore._write

    def hasty(self: Any, records: list[Any]) -> Any:
        careful = self._settings
        if records[-1][0].kind is store.Kind.MARK:
            self._settings = replace(careful, durability=options.Durability.OS)
        try:
            return original(self, records)
        finally:
            self._settings = careful

    monkeypatch.setattr(store.LedgerStore, "_write", hasty)


def producers_forgotten_at_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner does not know what idempotent producers sent."""

    class Forgetful(ProducerTable):
        def __init__(self, *_: object) -> None:
            super().__init__()

        def note(self, *_: object, **__: object) -> None:
            pass

    monkeypatch.setattr(ownership, "ProducerTable", Forgetful)


def recovery_stops_at_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover ignores what came behind the last checkpoint."""
    original = Ensembles.recover

    async def short(self: Any, placement: Any, term: Any) -> Any:
        placement, last = await original(self, placement, term)
        if last <= 0:
            return placement, last
        known = await self.read(placement, EntryId(0), last=EntryId(0), bytes_max=1)
        newest = await ownership._last_checkpoint(self, placement, last, known=known)
        return placement, newest.entry

    monkeypatch.setattr(Ensembles, "recover", short)


def term_check_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage takes appends of any term."""
    original = store.LedgerStore._decide

    def blind(self: Any, command: Any, group: Any, has_room: bool) -> Any:
        if isinstance(command, commands.Append):
            return self._decide_append(command, group, has_room)
        return original(self, command, group, has_room)

    monkeypatch.setattr(store.LedgerStore, "_decide", blind)


def ensemble_change_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    """BookKeeper's second defect: the new fragment begins below entries that are confirmed."""
    original = QuorumWriter._change

    def low(self: Any) -> Any:
        effects = original(self)
        return [Replace(e.nodes, max(0, e.first_entry - 2)) for e in effects]

    def anywhere(self: Placement, first_entry: int, nodes: tuple[int, ...]) -> Placement:
        kept = tuple(f for f in self.fragments if f.first_entry < first_entry)
        return Placement(self.ledger, self.quorum, (*kept, Fragment(first_entry, nodes)))

    monkeypatch.setattr(QuorumWriter, "_change", low)
    monkeypatch.setattr(Placement, "with_nodes", anywhere)


def acknowledged_out_of_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry is confirmed when it is stored, whatever became of those before it."""

    def eager(self: Any) -> Any:
        if self._changing or self.failure is not None:
            return []
        ready = [item for item in self._pending if len(item.held) >= self.quorum.ack]
        if not ready:
            return []
        self.confirmed = max(item.entry for item in ready)
        while self._pending and self._pending[0].entry <= self.confirmed:
            self._pending.popleft()
        return [Confirm(self.confirmed)]

    monkeypatch.setattr(QuorumWriter, "_confirm", eager)


def too_few_noes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery takes the first "no" for an answer."""
    monkeypatch.setattr(Quorum, "noes_needed", 1)


def change_written_before_recovery_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of nodes that the old writer never wrote to count as "no"."""
    original = QuorumRecovery.on_replaced

    def trusting(self: Any, nodes: Any) -> Any:
        self._sources = list(nodes)
        self._failed_sources.clear()
        return original(self, nodes)

    monkeypatch.setattr(QuorumRecovery, "on_replaced", trusting)


def long_read_ends_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node gives at once is taken for all that there is."""

    def trusting(self: Any, _: int, first: int, payloads: Any) -> Any:
        self._claimed.clear()
        self._asked_ahead = None
        return [Done(first + len(payloads) - 1)]

    monkeypatch.setattr(QuorumRecovery, "on_ahead", trusting)


@pytest.mark.parametrize(
    ("plant", "run"),
    [
        (acknowledge_before_sync, test_store_sim.run),
        (acknowledge_before_sync, test_log_sim.run),
        (fence_not_persisted, test_store_sim.run),
        (deletion_not_persisted, test_store_sim.run),
        (torn_tail_is_kept, test_store_sim.run),
        (mark_before_it_is_true, test_store_sim.run),
        (producers_forgotten_at_takeover, test_log_sim.run),
        (recovery_stops_at_the_checkpoint, test_log_sim.run),
        (fence_not_persisted, test_cluster_sim.run),
        (acknowledge_before_sync, test_cluster_sim.run),
        (term_check_skipped, test_cluster_sim.run),
        (ensemble_change_too_low, test_cluster_sim.run),
        (acknowledged_out_of_order, test_cluster_sim.run),
        (too_few_noes, test_cluster_sim.run),
        (change_written_before_recovery_is_done, test_cluster_sim.run),
        (long_read_ends_a_ledger, test_cluster_sim.run),
    ],
)
def test_a_planted_bug_is_found(
    plant: Plant, run: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: the simulation goes red."""
    monkeypatch.setattr("tests.faulty_disk.FaultyDisk.power_cut", test_store_sim.PowerCut)
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            run(seed)
        except Exception:
            print(f"{plant.__name__} was found by seed {seed}")
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds")
