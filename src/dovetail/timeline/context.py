"""What all running timelines of a broker share."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dovetail.clock import Clock
from dovetail.timeline.catalog import TimelineRecord
from dovetail.timeline.engine.drift import Drift
from dovetail.timeline.engine.health import Health
from dovetail.timeline.engine.window import Attendee
from dovetail.timeline.metrics import TimelineMetrics

#: Two clocks that are read one after the other within this are taken for read at once.
READING_MS_MAX: Final = 2.0


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
    #: The address of a better broker for a consumer of a timeline, or else a producer; empty if
    #: there is none.
    better: Callable[[str, bool], str]
    #: The shortest lease that a consumer may have.
    lease_ms_min: int

    def now_ms(self) -> int:
        """The present by our clock; a jump of it is noticed here, before anybody acts on it."""
        began_ms = self.clock.monotonic_ms()
        now_ms = self.clock.wall_ms()
        # Where we were stopped between two readings they say nothing about each other.
        if self.clock.monotonic_ms() - began_ms < READING_MS_MAX:
            self.health.on_clock(wall_ms=now_ms, monotonic_ms=began_ms)
        return now_ms

    def dated_ms(self) -> int:
        """The present, for a write that carries it. Raises `Unavailable` while our clock is off."""
        now_ms = self.now_ms()
        self.health.check_dated_write()
        return now_ms
