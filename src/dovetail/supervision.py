"""Supervision: which background work of a node, client, relay or replica keeps failing (R5).

Every piece of background work has a name and reports its unexpected failures to a supervisor. A
single failure is a line in the log and a count: the work was restarted. Work that fails
`FAILING_AFTER` times in a row is a *problem* of the supervisor's owner, and shows by its name in
`/readyz`, `health()` and the metrics, until it has been quiet for long enough.

"In a row" and "quiet" are measured by the work itself: one that fails 10 minutes after each start
counts as recovered when it has run for more than 20, and not after 10 seconds of a new attempt.

Which supervisor: that of the context. A node enters its own while it starts, and all work that is
started from there, directly or not, reports to it. Otherwise the process's own is used.

Not here: starting and restarting work (`background.py`).
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple

from dovetail.foreign import described
from dovetail.logging import get_logger

_log = get_logger("background")

#: So many failures in a row are a problem: the restarts have not helped.
FAILING_AFTER = 3
#: Work that has not failed for this long, and twice as long as it ran before, is well again.
QUIET_S = 10.0
#: Pause before the first restart; each further one doubles it.
PAUSE_S_MIN = 0.1
#: A problem that has gone is noticed after this at the latest.
PAUSE_S_MAX = 5.0


class Work(NamedTuple):
    """What runs: a name from the code, and what it is about where there are several."""

    name: str
    of: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.of})" if self.of else self.name


@dataclass(slots=True)
class _Streak:
    count: int
    error: str
    last_s: float
    quiet_s: float

    def is_over(self, now_s: float) -> bool:
        return now_s - self.last_s > self.quiet_s


class Failures:
    """Failures in a row, by work. Pure."""

    def __init__(self) -> None:
        self._streaks: dict[Work, _Streak] = {}

    def note(self, work: Work, error: str, *, ran_s: float, now_s: float) -> float:
        """Takes note of a failure; returns the pause before a restart, in seconds.

        `ran_s` is infinite for work that is not started again: it has failed for good.
        """
        self._forget_what_is_over(now_s)
        known = self._streaks.get(work)
        count = 1 if known is None else known.count + 1
        if math.isinf(ran_s):
            count = max(count, FAILING_AFTER)
        self._streaks[work] = _Streak(count, error, now_s, QUIET_S + 2 * ran_s)
        return min(PAUSE_S_MAX, PAUSE_S_MIN * 2.0 ** min(count - 1, 30))

    def problems(self, now_s: float) -> dict[Work, str]:
        """What keeps failing, and why."""
        self._forget_what_is_over(now_s)
        return {
            work: f"ended with {streak.error}"
            if math.isinf(streak.quiet_s)
            else f"failed {streak.count} times in a row, the last time with {streak.error}"
            for work, streak in self._streaks.items()
            if streak.count >= FAILING_AFTER
        }

    def _forget_what_is_over(self, now_s: float) -> None:
        for work in [work for work, streak in self._streaks.items() if streak.is_over(now_s)]:
            del self._streaks[work]


class Supervisor:
    """Hears of the failures of what is started under it, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = Failures()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def supervising(self) -> Iterator[None]:
        """What is started inside, directly or not, reports to this supervisor."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def note(
        self, work: Work, error: BaseException, *, ran_s: float, for_good: bool = False
    ) -> float:
        """Logs and counts a failure; returns the pause before a restart, in seconds.

        `for_good`: it is not started again, and a problem from now on.
        """
        why = described(error)
        with self._lock:
            self._counts[work.name] += 1
            pause_s = self._failures.note(
                work, why, ran_s=math.inf if for_good else ran_s, now_s=time.monotonic()
            )
        _log.exception("background work failed", error, name=str(work), error=why)
        return pause_s

    def problems(self) -> list[str]:
        """What keeps failing, as sentences that begin with its name."""
        with self._lock:
            found = self._failures.problems(time.monotonic())
        return [f"{work}: {why}" for work, why in found.items()]

    def failing(self) -> set[str]:
        """The names of what keeps failing."""
        with self._lock:
            return {work.name for work in self._failures.problems(time.monotonic())}

    def counts(self) -> dict[str, int]:
        """How often each work has failed, by name."""
        with self._lock:
            return dict(self._counts)


#: Of what is started by nobody in particular, such as the command line.
PROCESS = Supervisor()
_current: ContextVar[Supervisor] = ContextVar("supervisor", default=PROCESS)


def current() -> Supervisor:
    """The supervisor of what is started here."""
    return _current.get()
