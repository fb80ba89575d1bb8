"""Time as an argument: the one place that reads a clock.

Wall time stamps records and decides their age; monotonic time measures waits and leases. Pure
parts take `now_ms` as an argument; doing parts hold a `Clock`, and tests give a `ManualClock`.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; can jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some start; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0


class ManualClock:
    """A clock that only moves when it is advanced; for tests and simulations."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 0.0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, delta_ms: int) -> None:
        """Moves both clocks forward."""
        self._wall_ms += delta_ms
        self._monotonic_ms += delta_ms

    def jump_wall(self, delta_ms: int) -> None:
        """Moves only the wall clock, in either direction, as an operator or NTP would."""
        self._wall_ms += delta_ms


class UnhurriedTime:
    """The time of day for what expires: a wall clock that is set ahead makes nothing old at once.

    It follows the wall clock, and goes at most twice as fast as time does: a jump of eight days has
    its full effect after eight days, and so has the end of a suspended machine's sleep.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.wall_ms(), clock.monotonic_ms()

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        last_ms, asked_ms = self._last
        now_ms = self._clock.monotonic_ms()
        last_ms = min(self._clock.wall_ms(), last_ms + 2 * int(now_ms - asked_ms))
        self._last = last_ms, now_ms
        return last_ms
