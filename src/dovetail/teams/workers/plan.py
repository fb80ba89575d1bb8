"""Which jobs a worker gets next, and when each has ended; pure.

Events in, decisions out; time and chance are arguments. `crew` acts on the decisions.

    waiting ──take──► given ──done──────────────────────────► ended
       ▲                │  ├─failed─► (attempts left) ─ resting until its backoff is over ─┐
       │                │  ├─failed─► (attempts left, a long backoff) ──► postponed        │
       │                │  └─failed─► (none left, or the failure is final) ──► ended       │
       │                ├─returned: it was not begun, or its outcome was lost; uncounted   │
       ├────────────────┘                                                                  │
       │                ├─cancel, from anywhere: forgotten                                 │
       ├──alone◄────────── suspected: one of several that may have ended their worker      │
       └───────────────────────────────────────────────────────────────────────────────────┘

Promise: each job ends or is postponed exactly once, after at most `attempts_max` counted attempts,
including those of its former lives. A job with a long backoff is postponed: `delays` brings it back
when the backoff is over. A job pays only for itself: if a worker dies while it runs several jobs,
each of them is given again alone, and then there is no doubt.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from dovetail.teams.outcome import Failure
from dovetail.teams.team import Policy


@dataclass(frozen=True, slots=True)
class Chunk:
    """Jobs to give at once, by their numbers; `alone`: nothing else may run."""

    numbers: tuple[int, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A job that did not end in a result; with `rest_ms`, it is postponed."""

    failure: Failure
    attempts: int
    rest_ms: int | None = None


class JobPlan:
    """Jobs under way, each under a number of the caller's."""

    def __init__(self, policy: Policy, *, chance: Callable[[], float]) -> None:
        self._policy = policy
        self._chance = chance
        #: Counted attempts of the jobs that have not ended.
        self._attempts: dict[int, int] = {}
        self._waiting: deque[int] = deque()
        self._alone: deque[int] = deque()
        self._resting: list[tuple[float, int]] = []
        self._given: set[int] = set()
        #: Jobs that were given up or postponed, by number, until the caller takes them.
        self.given_up: dict[int, GivenUp] = {}

    def add(self, number: int, *, attempts: int = 0) -> None:
        """One more job, with its attempts so far."""
        self._attempts[number] = attempts
        self._waiting.append(number)

    def attempt(self, number: int) -> int:
        """Which attempt at a job the next one is, counted from 1."""
        return self._attempts[number] + 1

    @property
    def finished(self) -> bool:
        """Whether all jobs have ended."""
        return not self._attempts

    @property
    def waiting(self) -> int:
        """Jobs that can be given now, in chunks."""
        return len(self._waiting)

    @property
    def suspects(self) -> int:
        """Jobs that can be given now, each alone."""
        return len(self._alone)

    def wake(self, *, now_ms: float) -> None:
        """Jobs whose backoff is over wait again."""
        while self._resting and self._resting[0][0] <= now_ms:
            self._waiting.append(heappop(self._resting)[1])

    def take(self, chunk_max: int, *, now_ms: float) -> Chunk | None:
        """What to give now; None if nothing can be given before `rest_until_ms`."""
        self.wake(now_ms=now_ms)
        if self._waiting:
            count = min(chunk_max, len(self._waiting))
            numbers = tuple([self._waiting.popleft() for _ in range(count)])
            self._given.update(numbers)
            return Chunk(numbers)
        return self.take_suspect()

    def take_suspect(self) -> Chunk | None:
        """A job that must be given alone; None if there is none."""
        if not self._alone:
            return None
        number = self._alone.popleft()
        self._given.add(number)
        return Chunk((number,), alone=True)

    @property
    def rest_until_ms(self) -> float | None:
        """When the next backoff is over."""
        return self._resting[0][0] if self._resting else None

    def done(self, numbers: Collection[int]) -> None:
        """They ended in results."""
        self._given.difference_update(numbers)
        for number in numbers:
            del self._attempts[number]

    def failed(self, number: int, failure: Failure, *, now_ms: float) -> None:
        """One attempt failed, and it counts."""
        self._given.remove(number)
        self._attempts[number] += 1
        attempts = self._attempts[number]
        if failure.kind.final or attempts >= self._policy.attempts_max:
            self.given_up[number] = GivenUp(failure, attempts)
            del self._attempts[number]
            return

        rest_ms = self._policy.backoff(attempts, jitter=self._chance())
        if self._policy.postpones(attempts):
            self.given_up[number] = GivenUp(failure, attempts, rest_ms)
            del self._attempts[number]
            return
        heappush(self._resting, (now_ms + rest_ms, number))

    def cancel(self, number: int) -> None:
        """Nobody wants it any more, wherever it is."""
        self._attempts.pop(number, None)
        self._given.discard(number)
        for waiting in (self._waiting, self._alone):
            if number in waiting:
                waiting.remove(number)
        self._resting = [one for one in self._resting if one[1] != number]
        heapify(self._resting)

    def returned(self, numbers: Iterable[int]) -> None:
        """They were not begun, or their outcomes were lost; they go first next time."""
        back = sorted(numbers)
        self._given.difference_update(back)
        self._waiting.extendleft(reversed(back))

    def suspected(self, numbers: Iterable[int]) -> None:
        """One of them ended its worker; each is given again alone."""
        back = sorted(numbers)
        self._given.difference_update(back)
        self._alone.extend(back)
