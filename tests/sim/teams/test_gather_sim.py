"""Gathering under attempts that overlap, sleep and die; and what each rule of it is for."""

from typing import Any

import pytest
from tests.sim.seeds import run_seeds
from tests.sim.teams.chain_world import Violation
from tests.sim.teams.gather_world import GatherAttempt, GatherWorld

from dovetail.errors import DovetailError
from dovetail.teams.envelope import Item
from dovetail.teams.tasks import gathers
from dovetail.teams.tasks.gathers import End, Group, Groups

STEPS = 300
SEEDS_MAX = 300


def run_seed(seed: int) -> int:
    world = GatherWorld(seed)
    world.run(STEPS)
    assert not world.loud
    return sum(one.counts for one in world.input)


def test_each_job_that_was_sprayed_is_gathered_once() -> None:
    """T18: in order, with what ended in time, whatever dies, sleeps, or comes late or twice."""
    counted = run_seeds(run_seed, least=20)
    assert min(counted) < max(counted), "in some worlds ends came late"


class LateOnesCount(Groups):
    """Planted: an end counts whenever it was stored."""

    @staticmethod
    def counts(item: Item | None, *, at_ms: int) -> bool:
        return item is not None


class UnderTheFirst(Groups):
    """Planted: the row of a group has the offset of its first end."""

    def add(self, offset: int, item: Item, end: End) -> Group | None:
        group = super().add(offset, item, end)
        found = self._at[offset]
        found.__class__ = _First
        return group


class _First(Group):
    __slots__ = ()

    @property
    def last(self) -> int:
        return min(self.offsets)


class OneOfEachBase(Groups):
    """Planted: ends of a job that was submitted again go to the group of the first time."""

    def add(self, offset: int, item: Item, end: End) -> Group | None:
        return super().add(offset, Item(item.base, item.number, item.count, 9_000), end)


class NeedsNoOpening(Groups):
    """Planted: a group is complete when its numbers are there."""

    def add(self, offset: int, item: Item, end: End) -> Group | None:
        super().add(offset, item, end)
        group = self._at[offset]
        return group if len(group.ends) == item.count and not group.closed else None


class NoSlack(Groups):
    """Planted: all clocks are taken for one."""

    def over(self, *, read_ms: int) -> list[Group]:
        return super().over(read_ms=read_ms + gathers.SLACK_MS)


def planted(groups: type[Groups] = Groups, **changed: Any) -> type[GatherAttempt]:
    return type("Planted", (GatherAttempt,), {"groups_type": groups, **changed})


@pytest.mark.parametrize(
    "attempt",
    [
        planted(LateOnesCount),
        planted(UnderTheFirst),
        planted(OneOfEachBase),
        planted(NeedsNoOpening),
        planted(NoSlack),
        planted(holds_members=False),
        planted(waits_to_have_read=False),
    ],
    ids=["late", "first", "base", "opening", "slack", "holds", "read"],
)
def test_a_rule_that_is_left_out_is_found(attempt: type[GatherAttempt]) -> None:
    """T18: each rule of the gathering is needed, and the simulation sees it."""
    for seed in range(SEEDS_MAX):
        world = GatherWorld(seed, attempt_type=attempt)
        try:
            world.run(STEPS)
        except (Violation, DovetailError, AssertionError, KeyError):
            return
    raise AssertionError(f"not found in {SEEDS_MAX} seeds")
