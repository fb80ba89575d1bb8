"""The last hour of a node: samples in, equal steps out, and a limit for everything (U5)."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.clock import ManualClock
from dovetail.errors import TopicUnknown, Unavailable
from dovetail.log.groups.types import PartitionKey
from dovetail.log.owners import Place as OwnedPlace
from dovetail.node.history import figures, lags, sampler
from dovetail.node.history.figures import SPAN_MS, Figures
from dovetail.node.history.lags import GROUPS_MAX, LAG_EVERY_MS, PARTITIONS_MAX, Lags
from dovetail.node.history.reading import Counts, LagReading, rates_of
from dovetail.node.history.sampler import EVERY_MS, History
from dovetail.node.metrics import Metrics

HOUR_AGO = 240


def test_steps_are_equal_and_keep_peaks() -> None:
    """U5: a flow is the mean of a step, of a level the highest value counts, nothing is None."""
    kept = Figures(every_ms=EVERY_MS)
    start_ms = 1_000_000 * 20_000
    for at, (rate, lag) in enumerate([(10.0, 3), (20.0, 900), (30.0, 4), (None, 5)]):
        kept.add({"records_in_per_s": rate, "lag": lag}, at_ms=start_ms + at * EVERY_MS)
    first_ms, steps = kept.steps(now_ms=start_ms + 25_000, step_ms=20_000)
    assert first_ms == start_ms - SPAN_MS + 40_000
    assert steps["records_in_per_s"][-2:] == [20.0, None]
    assert steps["lag"][-2:] == [900, None]
    assert steps["lag"][:-2] == [None] * 178
    assert steps["due"] == [None] * 180
    assert kept.last("lag") == 5


def test_figures_have_a_limit_and_a_clock_that_went_back_begins_anew() -> None:
    """U5, R3: an hour and no more; samples of a later time than now would never go."""
    kept = Figures(every_ms=EVERY_MS)
    for at in range(10_000):
        kept.add({"lag": at}, at_ms=at * EVERY_MS)
    assert len(kept._times) == SPAN_MS // EVERY_MS + 1
    kept.add({"lag": 7}, at_ms=0)
    _, steps = kept.steps(now_ms=0, step_ms=60_000)
    assert [value for value in steps["lag"] if value is not None] == [7]


def test_rates_are_growth_and_never_negative() -> None:
    """U5: a deleted topic takes its counts along; that is unknown, not negative."""
    before = Counts(100, 50, 1000, 500, 3, 1.0, 10, 40.0)
    now = Counts(150, 40, 2000, 900, 3, 2.0, 14, 60.0)
    rates = rates_of(before, now, took_ms=5_000)
    assert rates["records_in_per_s"] == 10.0
    assert rates["records_out_per_s"] is None
    assert rates["processor"] == 0.2
    assert rates["late_ms"] == 5.0
    assert rates_of(now, now, took_ms=5_000)["late_ms"] is None


def sample(kept: Lags, groups: Mapping[str, Sequence[lags.Lag]]) -> None:
    kept.begin()
    for group, rows in groups.items():
        kept.add(group, rows)


def test_lag_of_a_group_and_its_partitions_over_an_hour() -> None:
    """U5: by partition, oldest first; gaps are None, and an hour later all is gone."""
    kept = Lags()
    assert kept.of("billing") is None
    sample(kept, {"billing": [(("orders", 0), 4), (("orders", 1), 6)]})
    sample(kept, {})
    sample(kept, {"billing": [(("orders", 0), 1), (("orders", 1), None)]})
    found = kept.of("billing")
    assert found is not None
    assert found.total[-3:] == [10, None, None], "with an unknown end the sum is unknown"
    assert found.partitions["orders", 0][-3:] == [4, None, 1]
    assert found.partitions["orders", 1][-3:] == [6, None, None]
    assert set(found.total[:-3]) == {None}

    for _ in range(HOUR_AGO + 1):
        sample(kept, {"other": [(("orders", 0), 1)]})
    found = kept.of("billing")
    assert found is None or set(found.total) == {None}
    for _ in range(HOUR_AGO):
        sample(kept, {"other": [(("orders", 0), 1)]})
    assert kept.of("billing") is None
    assert kept.of("other") == ([1.0] * HOUR_AGO, {("orders", 0): [1.0] * HOUR_AGO})


def test_a_series_that_comes_back_shows_its_gap() -> None:
    """U5: what the ring held an hour ago is not shown as of now."""
    kept = Lags()
    for _ in range(HOUR_AGO):
        sample(kept, {"g": [(("t", 0), 9)]})
    for _ in range(100):
        sample(kept, {})
    sample(kept, {"g": [(("t", 0), 2)]})
    found = kept.of("g")
    assert found is not None
    assert found.total == [9.0] * (HOUR_AGO - 101) + [None] * 100 + [2.0]


def test_lag_series_have_a_limit() -> None:
    """U5, R3: beyond it nothing is kept of a group's partitions, then of a group; and it is said
    how many series that are. Series of groups that went make way within an hour or two."""
    kept = Lags()
    many = [(("t", number), 1) for number in range(PARTITIONS_MAX + 10)]
    sample(kept, {"wide": many})
    assert kept.left_out == 10
    sample(kept, {f"g{number}": [(("t", 0), 2)] for number in range(GROUPS_MAX + 4)})
    # One of the sums has gone to "wide".
    assert kept.left_out == GROUPS_MAX + 4 + 5
    found = kept.of("g0")
    assert found is not None
    assert found.total[-1] == 2
    assert found.partitions == {}
    assert kept.of(f"g{GROUPS_MAX + 3}") is None
    for _ in range(2 * HOUR_AGO):
        sample(kept, {"new": [(("t", 0), 3)]})
    assert kept.left_out == 0


class FakeBroker:
    """A broker that owns `here` and coordinates one group; others own `there`."""

    def __init__(self) -> None:
        self.log = self.groups = self.seen = self
        self.owned, self.catalog = self, self
        self.open = {("here", 0): SimpleNamespace(high_watermark=100)}
        self.looks: list[Collection[int]] = []
        self.away = False
        self.told: dict[OwnedPlace, SimpleNamespace] = {}

    async def look(self, alive: Collection[int]) -> None:
        self.looks.append(alive)
        if self.away:
            raise Unavailable("away")

    def partition(self, place: OwnedPlace) -> SimpleNamespace | None:
        return self.told.get(place)

    def topic(self, name: str) -> SimpleNamespace:
        if name == "deleted":
            raise TopicUnknown(name)
        return SimpleNamespace(id=f"id-{name}")

    def of(self, group: str) -> "FakeBroker":
        return self

    def read_up_to(self, group: str) -> list[tuple[PartitionKey, int]]:
        rows = [("here", 40), ("there", 7), ("deleted", 1)]
        return [(PartitionKey(topic, 0), offset) for topic, offset in rows]


async def test_ends_of_other_brokers_are_asked_for_only_where_groups_need_them() -> None:
    """U5: what another broker said before counts for no later sample; a partition whose end is not
    known is unknown, and one of a deleted topic is none."""
    broker: Any = FakeBroker()
    broker.groups = SimpleNamespace(
        groups=lambda: [SimpleNamespace(group_id="billing")], of=broker.of
    )
    reading = LagReading(broker, lambda: {1, 2})

    async def lag() -> list[lags.Lag]:
        ((group, found),) = [pair async for pair in reading.groups()]
        assert group == "billing"
        return found

    broker.told[OwnedPlace("id-there", 0)] = SimpleNamespace(end=9)
    assert await lag() == [(("here", 0), 60), (("there", 0), None)]
    assert broker.looks == []
    assert await lag() == [(("here", 0), 60), (("there", 0), 2)]
    assert broker.looks == [{1, 2}]
    broker.away = True
    assert await lag() == [(("here", 0), 60), (("there", 0), None)]

    broker.away = False
    broker.open["there", 0] = SimpleNamespace(high_watermark=5)
    assert await lag() == [(("here", 0), 60), (("there", 0), 0)]
    looks = len(broker.looks)
    assert await lag() == [(("here", 0), 60), (("there", 0), 0)]
    assert len(broker.looks) == looks, "all are here now, and nobody is asked"


async def test_the_sampler_samples_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """U5: figures, the sum of lag by its own rhythm, and the delay of the loop."""
    monkeypatch.setattr(sampler, "_BEAT_MS", 0)
    clock = ManualClock()
    metrics = Metrics()
    history = History(metrics, clock)
    asked = 0

    class Reading:
        async def groups(self) -> AsyncIterator[tuple[str, list[lags.Lag]]]:
            nonlocal asked
            asked += 1
            yield "billing", [(("orders", 0), 30 + asked)]

    async def until(count: int) -> None:
        async with asyncio.timeout(60):
            while len(history.figures._times) < count:
                await asyncio.sleep(0)

    history.start(None, None, lambda: ())
    history._reading = Reading()  # type: ignore[assignment]
    clock.advance(LAG_EVERY_MS)
    await until(1)
    assert history.figures.last("records_in_per_s") is None
    metrics.produced("orders", 500, 10_000)
    metrics.fetched("orders", 250, 5_000)
    metrics.error("Fetch", "NOT_LEADER_OR_FOLLOWER")
    clock.advance(EVERY_MS)
    await until(2)
    await history.stop()
    assert asked == 1
    assert history.figures.last("lag") == 31
    assert history.figures.last("records_in_per_s") == 100.0
    assert history.figures.last("records_out_per_s") == 50.0
    assert history.figures.last("bytes_in_per_s") == 2_000.0
    assert history.figures.last("errors_per_s") == 0.2
    assert (history.figures.last("memory_bytes") or 0) > 1024**2
    assert figures.FIGURES.keys() == history.figures._values.keys()
