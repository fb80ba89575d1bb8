"""Samples a node, and measures how long its event loop is busy.

Four times a second a timer notes how much later than it should it runs: the longest delay within a
sample says whether requests had to wait. Lag is looked at every fifteen seconds, all else every
five.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.node.broker import Broker
from dovetail.node.history.figures import Figures
from dovetail.node.history.lags import LAG_EVERY_MS, Lags
from dovetail.node.history.reading import (
    Counts,
    LagReading,
    counts_of,
    levels_of,
    rates_of,
)
from dovetail.node.metrics import Metrics
from dovetail.timeline.service import TimelineService

EVERY_MS: Final = 5_000
_BEAT_MS: Final = 250


class History:
    """The last hour of a node. What it samples is named as it starts."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self.figures, self.lags = Figures(every_ms=EVERY_MS), Lags()
        self._metrics, self._clock = metrics, clock
        self._timelines: TimelineService | None = None
        self._reading: LagReading | None = None

        self._before: Counts | None = None
        self._sampled_ms = self._lag_ms = 0.0
        self._lag: int | None = None
        self._delay_ms = 0.0
        self._tasks = Tasks()

    def start(
        self,
        broker: Broker | None,
        timelines: TimelineService | None,
        alive: Callable[[], Collection[int]],
    ) -> None:
        """Samples from now on; `alive` are the brokers that hold their lease."""
        self._timelines = timelines
        self._reading = None if broker is None else LagReading(broker, alive)
        self._tasks.keep(self._run, name="node/history")

    async def stop(self) -> None:
        """Samples no more; what was kept can be read."""
        await self._tasks.stop()

    async def _run(self) -> None:
        while True:
            began_ms = self._clock.monotonic_ms()
            if began_ms - self._sampled_ms >= EVERY_MS:
                await self._sample()
            began_ms = self._clock.monotonic_ms()
            await asyncio.sleep(_BEAT_MS / 1000)
            late_ms = self._clock.monotonic_ms() - began_ms - _BEAT_MS
            self._delay_ms = max(self._delay_ms, late_ms)

    async def _sample(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._reading is not None and now_ms - self._lag_ms >= LAG_EVERY_MS:
            self._lag_ms = now_ms
            self._lag = await self._sum_of_lag(self._reading)

        counts = counts_of(self._metrics, self._timelines)
        wall_ms, now_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        values = levels_of(self._metrics, self._timelines, now_ms=wall_ms)
        values |= {"lag": self._lag, "loop_delay_ms": max(0.0, self._delay_ms)}
        if self._before is not None:
            values |= rates_of(self._before, counts, took_ms=now_ms - self._sampled_ms)
        self.figures.add(values, at_ms=wall_ms)
        self._before, self._sampled_ms, self._delay_ms = counts, now_ms, 0.0

    async def _sum_of_lag(self, reading: LagReading) -> int:
        self.lags.begin()
        total = 0
        async for group, lags in reading.groups():
            total += self.lags.add(group, lags) or 0
        return total
