"""What every running timeline of a broker works with."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dovetail.clock import Clock
from dovetail.timeline.catalog import TimelineRecord
from dovetail.timeline.engine.drift import Drift
from dovetail.timeline.engine.health import Health
from dovetail.timeline.engine.window import Attendee
from dovetail.timeline.metrics import TimelineMetrics


@dataclass(frozen=True, slots=True)
class Context:
    """What a running timeline works with."""

    clock: Clock
    rng: random.Random
    health: Health
    drift: Drift
    metrics: TimelineMetrics
    #: Consumers of this timeline at other brokers.
    others: Callable[[TimelineRecord], Sequence[Attendee]]
    #: Called when consumers have come or gone here.
    on_consumers: Callable[[], None]
    #: The address of a better broker for clients of a timeline; empty if there is none.
    better: Callable[[str], str]

    def now_ms(self) -> int:
        """The present by our clock; a jump of it is noticed here, before anybody acts on it."""
        now_ms = self.clock.wall_ms()
        self.health.on_clock(wall_ms=now_ms, monotonic_ms=self.clock.monotonic_ms())
        return now_ms

    def dated_ms(self) -> int:
        """The present, for a write that carries it. Raises `Unavailable` while our clock is off."""
        now_ms = self.now_ms()
        self.health.check_dated_write()
        return now_ms
