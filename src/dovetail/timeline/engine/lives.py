"""How long and how fast a message is tried: rests between attempts, times to live, paces; pure."""

import math
import random
from dataclasses import dataclass
from typing import Final

#: Rest after the first failed attempt, doubled with each, and its longest.
REST_MS_FIRST: Final = 1_000
REST_MS_LONGEST: Final = 3_600_000
#: What a pace allows at once, in seconds of its rate, and at least one message.
_BURST_S: Final = 0.1
#: Brokers that lease are never so far apart: a time that is further ahead was written by a clock
#: that has been put back since.
_AHEAD_MS_MAX: Final = 10_000
#: More messages than anybody asks for.
NO_LIMIT: Final = 2**31
#: How soon it is looked again whether a message in hand is done. Whoever finishes one here says so.
IN_HAND_LOOK_MS: Final = 100


def backoff_ms(attempt: int, rng: random.Random, *, first_ms: int, longest_ms: int) -> int:
    """How long a message rests after its failed attempt, which counts from 1.

    A random half is taken off, so that what failed together does not come again together.
    """
    doubled_ms = first_ms << min(max(0, attempt - 1), 22)
    return round(min(longest_ms, doubled_ms) * rng.uniform(0.5, 1.0))


def is_spent(
    attempt: int, most: int, *, attempts_max: int, due_ms: int, ttl_ms: int, now_ms: int
) -> bool:
    """Whether a message must not be handled: this attempt is beyond its last, or it is too late.

    `most` is its own last attempt, 0 for what the timeline says (`attempts_max`).
    """
    return attempt > (most or attempts_max) or (ttl_ms > 0 and due_ms + ttl_ms <= now_ms)


@dataclass(frozen=True, slots=True)
class Pace:
    """What all consumers of a timeline together may have; 0 is no limit.

    `rate_max`: messages a second; `in_hand_max`: messages that are leased at once.
    """

    rate_max: int = 0
    in_hand_max: int = 0


@dataclass(slots=True)
class Tokens:
    """What is left of a rate: it fills with time, up to a burst. None before the first time."""

    left: float | None = None
    at_ms: int = 0

    def refill(self, rate_max: int, now_ms: int) -> int:
        """How many messages may go now."""
        burst = max(1.0, rate_max * _BURST_S)
        if self.left is None:
            self.left = burst
        if self.at_ms - now_ms > _AHEAD_MS_MAX:
            self.at_ms = now_ms
        passed_ms = max(0, now_ms - self.at_ms)
        self.left = min(burst, self.left + passed_ms * rate_max / 1000)
        self.at_ms = max(self.at_ms, now_ms)
        return math.floor(self.left)

    def take(self, count: int) -> None:
        """So many went."""
        assert self.left is not None
        self.left -= count

    def wait_ms(self, rate_max: int) -> int:
        """How long until the next one may go."""
        assert self.left is not None
        return max(1, math.ceil((1 - self.left) * 1000 / rate_max))


class Allowance:
    """What a pace leaves for one round of leases."""

    def __init__(self, pace: Pace, tokens: Tokens, *, held: int, now_ms: int) -> None:
        """`held`: messages that are leased now, if the pace limits them."""
        self._pace, self._tokens, self._now_ms = pace, tokens, now_ms
        self._held = held
        self._by_rate = tokens.refill(pace.rate_max, now_ms) if pace.rate_max else NO_LIMIT
        self._short = False

    @property
    def _in_hand(self) -> int:
        if not self._pace.in_hand_max:
            return NO_LIMIT
        return max(0, self._pace.in_hand_max - self._held)

    def limit(self, wanted: int) -> int:
        """How many of so many may be leased."""
        return max(0, min(wanted, self._by_rate, self._in_hand))

    def took(self, count: int, *, wanted: int) -> None:
        """So many were leased, of so many that somebody has room for."""
        self._short |= count == self.limit(wanted) < wanted
        self._held += count
        if self._pace.rate_max:
            self._tokens.take(count)
            self._by_rate -= count

    def look_ms(self) -> int | None:
        """When more may go; None if it was enough."""
        if not self._short:
            return None
        waits_ms = self._tokens.wait_ms(self._pace.rate_max) if self._by_rate < 1 else 0
        if self._in_hand < 1:
            waits_ms = max(waits_ms, IN_HAND_LOOK_MS)
        return self._now_ms + max(1, waits_ms)
