"""The simulation of share groups can fail: each planted bug makes it red within a few seeds."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.sim.test_share_sim import run

from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.share.coordinator_side import ShareSide
from dovetail.log.share.keeper import Keeper
from dovetail.log.share.share_partition import SharePartition, Span
from dovetail.log.share.types import Mark

SEEDS_MAX = 40

Plant = Callable[[pytest.MonkeyPatch], None]


def answered_before_it_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member hears that its acknowledgement counts, which a crash of the owner takes back."""
    original = Keeper._decided

    def decided(self: Any, machine: Any) -> None:
        original(self, machine)

    monkeypatch.setattr(Keeper, "_decided", decided)


def an_old_owner_still_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written under an older claim, or comes late, replaces what is newer."""

    async def write(self: Any, group_id: Any, place: Any, state: Any) -> None:
        self._share_entry(group_id)
        await self._store_share(group_id, {place: state})

    monkeypatch.setattr(GroupCoordinator, "write_share", write)


def a_late_write_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was lost and sent again comes twice, the second time too late."""
    original = ShareSide.write_share

    async def write(self: Any, group_id: Any, place: Any, state: Any) -> None:
        entry = self._share_entry(group_id)
        known = entry.shares.get(place)
        if known is not None and known.claim == state.claim:
            entry.claims.pop(place, None)
            entry.shares[place] = msgspec.structs.replace(known, version=0)
        await original(self, group_id, place, state)

    monkeypatch.setattr(GroupCoordinator, "write_share", write)


def a_claim_forgets_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner gets the state as it was before the last write was stored."""
    original = ShareSide.claim_share

    async def claim(self: Any, *given: Any) -> Any:
        settled, self._writer.settled = self._writer.settled, _at_once
        try:
            return await original(self, *given)
        finally:
            self._writer.settled = settled

    monkeypatch.setattr(GroupCoordinator, "claim_share", claim)


async def _at_once() -> None:
    await asyncio.sleep(0)


def a_lock_outlives_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had a record can still accept it when another has it."""

    def has(self: Any, member: str, first: int, last: int) -> bool:
        return first >= self.start and last < self.end

    monkeypatch.setattr(SharePartition, "_has", has)


def deliveries_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is given up a delivery too late."""

    def release(self: Any, span: Span) -> None:
        span.member = ""
        over = span.count > self.settings.deliveries_max
        span.mark = Mark.ARCHIVING if over else Mark.AVAILABLE

    monkeypatch.setattr(SharePartition, "_release", release)


def given_up_without_a_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is done with before its dead letter is stored."""
    original = SharePartition._give_up

    def give_up(self: Any, span: Span) -> None:
        original(self, span)
        span.mark = Mark.ARCHIVED

    monkeypatch.setattr(SharePartition, "_give_up", give_up)


def the_dying_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new owner takes what waits for its dead letter for done."""
    original = SharePartition.stored

    def stored(self: Any) -> Any:
        start, spans = original(self)
        done = int(Mark.ARCHIVED)
        return start, tuple(
            (length, done if mark == Mark.ARCHIVING else mark, count)
            for length, mark, count in spans
        )

    monkeypatch.setattr(SharePartition, "stored", stored)


def released_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was released is never delivered again."""

    def release(self: Any, span: Span) -> None:
        span.member = ""
        span.mark = Mark.ACKNOWLEDGED

    monkeypatch.setattr(SharePartition, "_release", release)


PLANTED: list[Plant] = [
    answered_before_it_is_stored,
    an_old_owner_still_writes,
    a_late_write_counts,
    a_claim_forgets_what_is_on_its_way,
    a_lock_outlives_its_time,
    deliveries_are_not_counted,
    given_up_without_a_letter,
    the_dying_are_forgotten,
    released_is_done,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_shares_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """K10: the checker sees it."""
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            run(seed)
        except Exception as error:
            print(f"seed {seed}: {error!r}"[:300])
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find {plant.__name__}")
