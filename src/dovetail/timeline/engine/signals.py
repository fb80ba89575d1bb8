"""Signals by which clients react to load: rates, lateness, suggested number of consumers; pure."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Final

from dovetail.timeline.message import BUCKETS_MAX

#: Seconds that a rate looks back, about.
_RATE_S: Final = 10.0
#: Deliveries whose lateness is remembered.
_LATE: Final = 1_000
#: A backlog should be worked off within this time.
_DRAIN_S: Final = 60.0


class Rate:
    """Events a second, the older the less they count."""

    def __init__(self) -> None:
        self._count = 0.0
        self._at_ms: float | None = None

    def add(self, count: int, *, now_ms: float) -> None:
        self._fade(now_ms)
        self._count += count

    def per_second(self, *, now_ms: float) -> float:
        self._fade(now_ms)
        return self._count / _RATE_S

    def _fade(self, now_ms: float) -> None:
        if self._at_ms is not None:
            passed_s = max(0.0, now_ms - self._at_ms) / 1000
            self._count *= math.exp(-passed_s / _RATE_S)
        self._at_ms = now_ms


class Busyness:
    """The part of one processor that this process needs, of late."""

    def __init__(self) -> None:
        self._used_ms = 0.0
        self._at_ms: float | None = None
        self.load = 0.0

    def on_times(self, *, used_ms: float, now_ms: float) -> None:
        """The processor time that was used since the start, and a clock that does not jump."""
        if self._at_ms is not None and now_ms > self._at_ms:
            passed_ms = now_ms - self._at_ms
            share = (used_ms - self._used_ms) / passed_ms
            weight = 1 - math.exp(-passed_ms / 1000 / _RATE_S)
            self.load += (share - self.load) * weight
        self._used_ms, self._at_ms = used_ms, now_ms


class Lateness:
    """How late the last deliveries left."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_LATE)

    def add(self, late_ms: Iterable[float]) -> None:
        self._last.extend(late_ms)

    def percentile(self, percent: int) -> float:
        """The lateness below which so many of a hundred are; -1 if nothing was delivered."""
        if not self._last:
            return -1.0
        return max(
            0.0, sorted(self._last)[min(len(self._last) - 1, len(self._last) * percent // 100)]
        )


def suggested(*, backlog: int, arrivals: float, done: float, consumers: int) -> int:
    """How many consumers would keep up with what comes, and work off what lies there.

    From what each does now; while none has done anything, as many as there are, at least one if
    there is work.
    """
    if consumers == 0 or done <= 0:
        return max(consumers, 1 if backlog or arrivals > 0 else 0)
    needed = (arrivals + backlog / _DRAIN_S) / (done / consumers)
    if not backlog:
        # They keep up, whatever came: it may be due in a month, or rest after a failure.
        needed = min(needed, consumers)
    # What was done long ago is nearly nothing, and would ask for more consumers than there can be.
    return max(1, math.ceil(min(needed, BUCKETS_MAX) - 0.05))
