"""Rates: how fast counters grow, computed in one place from values that are read anyway; pure.

Every reading of a counter is a sample. The rate is the growth since a sample that is old enough to
be meaningful and young enough to be current; without such a sample it is unknown, which is not
zero. A counter that went back (a topic was created again under its name) starts over.
"""

from collections import OrderedDict, deque

#: Samples closer together than this say more about the clock than about the load.
APART_MS_MIN = 900.0
#: Load of a longer time ago is not load of now.
APART_MS_MAX = 15_000.0
#: The rate is taken over about this time, so that it neither jumps nor lags.
WINDOW_MS = 5_000.0
#: Counters that are remembered; those that nobody looked at the longest go first.
COUNTERS_MAX = 20_000


class Rates:
    """Samples of counters by name."""

    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()

    def seen(self, counter: str, value: float, *, now_ms: float) -> float | None:
        """Takes a sample; gives the growth a second, or None while it is not known."""
        samples = self._samples.setdefault(counter, deque())
        self._samples.move_to_end(counter)
        while len(self._samples) > COUNTERS_MAX:
            self._samples.popitem(last=False)
        if samples and value < samples[-1][1]:
            samples.clear()
        while samples and now_ms - samples[0][0] > APART_MS_MAX:
            samples.popleft()
        # The oldest one is kept until the next one is old enough to take its place.
        while len(samples) > 1 and now_ms - samples[1][0] >= WINDOW_MS:
            samples.popleft()

        rate = None
        if samples and now_ms - samples[0][0] >= APART_MS_MIN:
            rate = (value - samples[0][1]) * 1000.0 / (now_ms - samples[0][0])
        if not samples or now_ms - samples[-1][0] >= APART_MS_MIN / 2:
            samples.append((now_ms, value))
        return rate
