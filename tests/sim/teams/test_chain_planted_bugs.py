"""The simulation of the chain notices: each rule is left out once, and it must go red."""

from collections.abc import Sequence

import pytest
from tests.sim.teams.chain_world import Attempt, Violation, World

from dovetail.errors import DovetailError
from dovetail.kafka.client.client import Partition
from dovetail.spark.decoder import BatchView
from dovetail.teams.chains import chain as chain_module
from dovetail.teams.chains.chain import Chain, Effect, Placed
from dovetail.teams.chains.rows import OUTCOME, Row, decode_rows
from dovetail.teams.chains.snapshot import Entry, Snapshot

SEEDS_MAX = 400
STEPS = 250


class NumbersBeginAgain(Chain):
    """Planted (1): an attempt counts from 0, as if it were the first."""

    def _add(self, place: Partition, entry: Entry) -> None:
        super()._add(place, entry)
        self._views[place].next = 0

    def on_read(self, place: Partition, batches: Sequence[BatchView], **more: int) -> list[Effect]:
        for batch in batches:
            if batch.producer_id == self._producer_id:
                self._views[place].next = batch.base_sequence
        return super().on_read(place, batches, **more)


class ForgetsAboveThePosition(Chain):
    """Planted (2, 8): a snapshot begins where reading ended, whatever lies before it."""

    def snapshot(self, *, now_ms: int) -> Snapshot:
        for view in self._views.values():
            view.batches.clear()
        return super().snapshot(now_ms=now_ms)


class OwnRowsAlone(Chain):
    """Planted (8): a snapshot stays before own rows, and not before those of other attempts."""

    def _absorb(self, place: Partition, view: object, batch: BatchView) -> list[Effect]:
        mine = self._views[place].sent_batch is not None
        effects = super()._absorb(place, self._views[place], batch)
        if not mine:
            self._views[place].batches.pop()
        return effects


class ReadsNothingBack(Chain):
    """Planted (3): an attempt takes the numbers of what is there, and not its rows."""

    def _outcome_stored(self, place: Partition, view: object, row: Row) -> list[Effect]:
        if row.job not in self._jobs:
            return []
        return super()._outcome_stored(place, self._views[place], row)


class TwoOnTheWay(Chain):
    """Planted (4): the next batch is sent before the last one is verified."""

    def on_stored(self, place: Partition, offset: int) -> list[Effect]:
        view = self._views[place]
        assert view.sent_batch is not None
        for row in view.sent:
            self._settled(place, row)
        view.next += view.sent_batch.count
        view.sent, view.sent_batch = [], None
        view.seen = max(view.seen, offset)
        view.state = chain_module._State.READY
        return []

    def _settled(self, place: Partition, row: Row) -> None:
        view = self._views[place]
        if row.name == OUTCOME:
            self._outcome_stored(place, view, row)
        else:
            self._follow_stored(place, view, row)


class FollowsAtOnce(Chain):
    """Planted (4, 12): what follows is written before the outcome is stored."""

    def decide(self, place: Partition, outcome: Row, follows: Sequence[Placed]) -> None:
        super().decide(place, outcome, follows)
        for to, row in follows if outcome.job in self._jobs else ():
            self._views[to].waiting[row.job, row.name] = row


class IdsSuffice(Chain):
    """Planted (5): a batch with the same ids counts as the own one."""

    def _absorb(self, place: Partition, view: object, batch: BatchView) -> list[Effect]:
        mine = self._views[place]
        names = [(row.job, row.name) for row in mine.sent]
        if names == [(row.job, row.name) for row in decode_rows(batch, place)]:
            stored = decode_rows(batch, place)
            for row in mine.sent:
                stored = [row if row.job == one.job else one for one in stored]
            effects: list[Effect] = []
            for row in stored:
                if row.name == OUTCOME:
                    effects += self._outcome_stored(place, mine, row)
                else:
                    self._follow_stored(place, mine, row)
            mine.batches.append((batch.base_offset, batch.base_sequence, stored[-1].job))
            mine.next += batch.record_count
            mine.seen = batch.offset_end
            return effects
        return super()._absorb(place, mine, batch)


class KeepsItsOwn(Chain):
    """Planted (6, 12): what follows is of the own outcome, though another is stored."""

    def _outcome_stored(self, place: Partition, view: object, row: Row) -> list[Effect]:
        job = self._jobs.get(row.job)
        own = None if job is None else job.outcome
        return super()._outcome_stored(place, self._views[place], own or row)


class WritesOnBehindOthers(Chain):
    """Planted (6): after a refusal the same rows are sent under the next free number."""

    def _is_open(self, place: Partition, row: Row) -> bool:
        return True


class HighestJob(Chain):
    """Planted (7): the position is behind the highest job that has ended."""

    @property
    def position(self) -> int:
        ended = [job for job in self._order if job not in self._jobs]
        return max([*ended, super().position - 1]) + 1


class NoAge(Chain):
    """Planted (13): an attempt that slept for two days writes as if it were yesterday."""

    def send(self, *, now_s: float, now_ms: int) -> list[Effect]:
        for view in self._views.values():
            view.known_at_s = now_s
        return super().send(now_s=now_s, now_ms=now_ms)


class TakesAnyEntry(Chain):
    """Planted (9): an entry counts for any position, also before the one it was made for."""

    def _add(self, place: Partition, entry: Entry) -> None:
        self._views[place] = chain_module._View(entry, entry.offset, entry.sequence)


class TrustsAnyAge(Chain):
    """Planted (17): an entry of any age excuses records that retention has removed."""

    def check_start(self, place: Partition, *, log_start: int, now_ms: int) -> None:
        pass


def planted(chain: type[Chain] = Chain, **changed: bool) -> type[Attempt]:
    return type("Planted", (Attempt,), {"chain_type": chain, **changed})


@pytest.mark.parametrize(
    ("attempt", "expiry"),
    [
        (planted(NumbersBeginAgain), False),
        (planted(ForgetsAboveThePosition), False),
        (planted(OwnRowsAlone), False),
        (planted(ReadsNothingBack), False),
        (planted(TwoOnTheWay), False),
        (planted(FollowsAtOnce), False),
        (planted(IdsSuffice), False),
        (planted(KeepsItsOwn), False),
        (planted(WritesOnBehindOthers), False),
        (planted(HighestJob), False),
        (planted(TakesAnyEntry), False),
        (planted(waits_for_commit=False), False),
        (planted(counts_now=True), False),
        (planted(NoAge, sleeps_for_ever=True), True),
    ],
    ids=lambda one: (
        getattr(one, "__name__", str(one))
        + (f" {one.chain_type.__name__}" if isinstance(one, type) else "")
    ),
)
def test_a_rule_that_is_left_out_is_found(attempt: type[Attempt], expiry: bool) -> None:
    """T5: each rule of the chain is needed, and the simulation sees it."""
    for seed in range(SEEDS_MAX):
        world = World(seed, attempt_type=attempt, expiry=expiry)
        try:
            world.run(STEPS)
        except (Violation, DovetailError, AssertionError, KeyError):
            return
        if world.loud:
            return
    raise AssertionError(f"not found in {SEEDS_MAX} seeds")


def test_a_beginning_in_the_wrong_order_is_found() -> None:
    """T5 (10): ends are asked for before the group; an attempt that is late then misses nothing."""
    for seed in range(10):
        World(seed).late_beginner()
    with pytest.raises(Violation):
        for seed in range(10):
            World(seed, attempt_type=planted(ends_first=False)).late_beginner()


def test_a_cancel_that_the_next_attempt_does_not_read_is_found() -> None:
    """T17: an attempt reads all cancels before it takes a job."""
    for seed in range(20):
        World(seed).cancelled_meanwhile()
    with pytest.raises(Violation):
        for seed in range(20):
            World(seed, attempt_type=planted(reads_old_cancels=False)).cancelled_meanwhile()


def test_positions_that_are_lost_are_found_in_the_copy() -> None:
    """T5 (16): an older snapshot does; nothing does not. Outputs that it lacks are read whole."""
    for seed in range(60):
        World(seed).positions_are_lost()
    for bug in ({"knows_the_copy": False}, {"recovers_at_ends": True}):
        with pytest.raises(Violation):
            for seed in range(200):
                World(seed, attempt_type=planted(**bug)).positions_are_lost()


def test_outcomes_that_retention_has_removed_are_missed() -> None:
    """T5 (17): an attempt that finds its records gone behind an old entry fails, and says so."""
    for seed in range(30):
        world = World(seed)
        world.records_are_removed()
        assert "is older than a day" in world.loud[-1]
    with pytest.raises(Violation):
        for seed in range(30):
            World(seed, attempt_type=planted(TrustsAnyAge)).records_are_removed()
