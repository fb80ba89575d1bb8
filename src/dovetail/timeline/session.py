"""Sessions: the producers and consumers of a timeline, as a broker knows them.

A session begins with `Open` and ends with `Close`, with its connection, or when it was silent for
`SESSION_MS`. A consumer's session holds its outstanding requests for messages, and the messages
that are leased for it and not yet due.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from dovetail.errors import Throttled
from dovetail.timeline.engine.assignment import Member
from dovetail.timeline.engine.loader import Push
from dovetail.timeline.message import Leased, Release

#: A client that is not heard of for this long is gone; it reports every second or two.
SESSION_MS: Final = 15_000
#: How many messages a producer may send at once that has sent nothing for a while, in seconds of
#: its rate.
_BURST_S: Final = 1.0


_at_ms = attrgetter("at_ms")


class RateLimit:
    """At most so many a second, with a burst of one second's worth. Pure."""

    def __init__(self, rate_max: int) -> None:
        self._rate_max = rate_max
        self._left = rate_max * _BURST_S
        self._at_ms: int | None = None

    def take(self, count: int, *, now_ms: int) -> None:
        """Raises `Throttled`, with the time to wait, if that is too many now."""
        if not self._rate_max:
            return
        if self._at_ms is not None:
            refilled = self._left + max(0, now_ms - self._at_ms) / 1000 * self._rate_max
            self._left = min(self._rate_max * _BURST_S, refilled)
        self._at_ms = now_ms
        # A batch that is larger than the burst is let in when the burst is whole, on credit.
        if self._left < min(count, self._rate_max * _BURST_S):
            wait_ms = round((min(count, self._rate_max) - self._left) / self._rate_max * 1000) + 1
            raise Throttled(
                f"this timeline takes {self._rate_max} messages a second from a producer; "
                f"try again in {wait_ms} ms"
            )
        self._left -= count


@dataclass(slots=True)
class ProducerSession:
    """A client that stores messages."""

    id: int
    client: str
    rate: RateLimit
    seen_ms: int
    latency_ms: float = 0.0


@dataclass(slots=True)
class Waiter:
    """One outstanding request for messages."""

    limit: int
    until_ms: int
    answer: "asyncio.Future[list[Leased]]"


@dataclass(slots=True)
class ConsumerSession:
    """A client that handles messages."""

    id: int
    member: Member
    lease_ms: int
    seen_ms: int
    #: What a consumer calls itself for as long as it runs; 0 if it does not say.
    instance: int = 0
    waiters: deque[Waiter] = field(default_factory=deque)
    #: Leased and not pushed yet, the first to leave first.
    outbox: list[Push] = field(default_factory=list)
    latency_ms: float = 0.0
    leased: int = 0
    #: Whether it said that it can take nothing and has finished nothing since its last report.
    busy: bool = False

    def is_heard(self, now_ms: int) -> bool:
        """Whether it waits for messages, or was heard of lately."""
        return bool(self.waiters) or now_ms - self.seen_ms <= SESSION_MS

    def is_twin(self, instance: int, now_ms: int) -> bool:
        """Whether it is another consumer than this instance, and alive."""
        known = self.instance and instance
        return bool(known) and self.instance != instance and self.is_heard(now_ms)

    def start_ms(self, message: Leased) -> int:
        """When the lease of a message begins: its due time, or when it became free again."""
        return message.until_ms - self.lease_ms

    @property
    def credit(self) -> int:
        """How many more can be leased for it."""
        return max(0, sum(waiter.limit for waiter in self.waiters) - len(self.outbox))

    def put(self, pushes: Iterable[Push]) -> None:
        """Has more wait here. Two sorted parts are one in a single pass."""
        self.outbox += pushes
        self.outbox.sort()

    def push_due(self, now_ms: float) -> list[Leased]:
        """Answers waiting requests with what is to leave by now; what left."""
        left: list[Leased] = []
        due = bisect_right(self.outbox, now_ms, key=_at_ms)
        while self.waiters and len(left) < due:
            waiter = self.waiters.popleft()
            if waiter.answer.done():
                continue
            end = min(due, len(left) + waiter.limit)
            batch = [push.message for push in self.outbox[len(left) : end]]
            waiter.answer.set_result(batch)
            left += batch
        del self.outbox[: len(left)]
        return left

    def take_back(self) -> list[Release]:
        """What is leased for it and has not left, to be given back: nothing was tried."""
        unsent = [push.message for push in self.outbox]
        self.outbox.clear()
        return self.returned(unsent)

    def returned(self, messages: Iterable[Leased]) -> list[Release]:
        """Messages that were leased for it and never reached it, to be given back."""
        return [Release(each.handle, self.start_ms(each), counted=False) for each in messages]

    def end_waiting(self, now_ms: int) -> None:
        """Answers requests that have waited long enough, with nothing."""
        while self.waiters and self.waiters[0].until_ms <= now_ms:
            waiter = self.waiters.popleft()
            if not waiter.answer.done():
                waiter.answer.set_result([])

    def wake_ms(self) -> float:
        """When something is to be done for it next."""
        if not self.waiters:
            return float("inf")
        until_ms: float = self.waiters[0].until_ms
        return min(until_ms, self.outbox[0].at_ms) if self.outbox else until_ms

    def fail(self, error: Exception) -> None:
        """Ends every waiting request with an error."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.answer.done():
                waiter.answer.set_exception(error)
