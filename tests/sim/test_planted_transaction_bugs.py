"""The simulation of transactions can fail: each planted bug makes it red within a few seeds."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.test_transactions_sim import run

from dovetail.log import checkpoint, producers
from dovetail.log.groups.endings import Endings
from dovetail.log.groups.pending import PendingTable
from dovetail.log.groups.types import GroupError
from dovetail.log.partition import Partition
from dovetail.log.producers import ProducerTable
from dovetail.log.transactions import transaction
from dovetail.log.transactions.coordinator import TransactionCoordinator
from dovetail.log.transactions.markers import Markers
from dovetail.log.transactions.registry import TransactionRegistry
from dovetail.log.transactions.types import TransactionState

SEEDS_MAX = 40

Plant = Callable[[pytest.MonkeyPatch], None]


def marker_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that was sent counts as stored, whatever was answered."""
    original = Markers._send_to

    async def send_to(self: Any, node: int, marker: Any, places: Any) -> Any:
        await original(self, node, marker, places)
        return places

    monkeypatch.setattr(Markers, "_send_to", send_to)


def late_marker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that comes again is written again, also into the next transaction."""
    monkeypatch.setattr(producers, "_known_marker", lambda known, marker: None)


def late_marker_of_positions_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker ends whatever waits of its producer, also of the next transaction."""
    original = PendingTable.of
    monkeypatch.setattr(PendingTable, "of", lambda self, who, number: original(self, who, -1))


def answered_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer hears of a change that a crash of the coordinator takes back."""

    async def move(self: Any, transactional_id: str, to: Any) -> None:
        work = original(self, transactional_id, to)
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)

    original = TransactionCoordinator._move
    monkeypatch.setattr(TransactionCoordinator, "_move", move)


def prepared_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new coordinator does not go on with what the last one had decided."""
    original = TransactionCoordinator._begin_end

    def start(self: Any) -> None:
        monkeypatch.setattr(TransactionCoordinator, "_begin_end", lambda *_: None)
        original_start(self)
        monkeypatch.setattr(TransactionCoordinator, "_begin_end", original)

    original_start = TransactionCoordinator.start
    monkeypatch.setattr(TransactionCoordinator, "start", start)


def zombie_keeps_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two producers of one name have the same epoch."""
    original = transaction.begin

    def begin(known: Any, **named: Any) -> Any:
        found = original(known, **named)
        if known is not None and getattr(found, "state", None) is TransactionState.EMPTY:
            return transaction._next(found, epoch=known.epoch)
        return found

    monkeypatch.setattr(transaction, "begin", begin)


def fenced_at_the_coordinator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The abort of a zombie's transaction carries the epoch that the zombie has."""
    original = transaction.fence

    def fence(known: Any, *, now_ms: int) -> Any:
        return transaction._next(original(known, now_ms=now_ms), epoch=known.epoch)

    monkeypatch.setattr(transaction, "fence", fence)


def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner takes any transactional batch."""

    async def ask(self: Any, request: Any) -> int:
        return 1 << 40

    original = TransactionRegistry.ask

    async def ask_if_it_adds(self: Any, request: Any) -> int:
        return await (original if request.adds else ask)(self, request)

    monkeypatch.setattr(TransactionRegistry, "ask", ask_if_it_adds)


def admitted_after_its_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the coordinator said holds, also if the transaction has ended since."""

    def admit(
        self: Any, producer_id: int, epoch: int, number: int, *, from_zero: bool = False
    ) -> None:
        self._admitted[producer_id] = (epoch, from_zero)

    monkeypatch.setattr(ProducerTable, "admit", admit)
    monkeypatch.setattr(Endings, "over", lambda self, of: False)


def open_ones_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is confirmed counts as stable."""
    monkeypatch.setattr(Partition, "last_stable", property(lambda self: self.high_watermark))


def aborts_are_not_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner knows aborts only behind the last checkpoint."""
    original = checkpoint.LedgerIndex.adopt

    def adopt(self: Any, entry: Any, found: Any, rows: Any, aborted: Any) -> None:
        original(self, entry, found, rows, [])

    monkeypatch.setattr(checkpoint.LedgerIndex, "adopt", adopt)


def open_ones_leave_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint says nothing of open transactions."""
    original = checkpoint.encode_checkpoint

    def encode(found: Any) -> bytes:
        found.open_transactions = {}
        return original(found)

    monkeypatch.setattr("dovetail.log.partition.encode_checkpoint", encode)


def positions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of a transaction are forgotten at its end, whatever it was."""
    original = Endings.end

    async def end(self: Any, marker: Any, entries: Any) -> GroupError:
        return await original(self, marker._replace(commit=False), entries)

    monkeypatch.setattr(Endings, "end", end)


#: A bug, and the seed to begin with: near one that finds it, to save time.
PLANTS: list[tuple[Plant, int]] = [
    (marker_lost, 0),
    (late_marker_counts, 2),
    (late_marker_of_positions_counts, 2),
    (answered_before_it_is_stored, 4),
    (prepared_is_forgotten, 0),
    (zombie_keeps_its_epoch, 0),
    (fenced_at_the_coordinator_alone, 0),
    (nobody_is_asked, 0),
    (admitted_after_its_marker, 6),
    (open_ones_are_shown, 0),
    (aborts_are_not_indexed, 0),
    (open_ones_leave_the_checkpoint, 1),
    (positions_at_once, 0),
]


@pytest.mark.parametrize(("plant", "first"), PLANTS)
def test_a_planted_bug_of_transactions_is_found(
    plant: Plant, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K8: the simulation goes red."""
    plant(monkeypatch)
    for seed in range(first, first + SEEDS_MAX):
        try:
            run(seed)
        except Exception as error:
            print(f"{plant.__name__} was found by seed {seed}: {error!r}"[:300])
            return
    pytest.fail(f"{plant.__name__} was not found in {SEEDS_MAX} seeds")
