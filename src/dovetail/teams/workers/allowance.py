"""How many jobs of a team may begin now: its rate, and how many run at once; pure.

One task serves all partitions of a team that has such a limit (`engine`), and they share one
allowance; so the limit holds across all its workers without a further request. While two tasks
serve the team, because one was lost but is not dead, each keeps to the limit by itself.

The rate is a bucket of tokens: unused tokens are kept for a tenth of a second, so that bursts of
jobs are spread; a new task begins with one.
"""

from collections.abc import Callable

#: What is saved up of a rate.
_BURST_S = 0.1


class Allowance:
    """What one team may still begin. The caller passes the time."""

    def __init__(self, *, per_s: float | None, running_max: int | None, now_s: float) -> None:
        self._per_s, self.running_max = per_s, running_max
        self._burst = max(1.0, (per_s or 0.0) * _BURST_S)
        self._tokens, self._filled_s = 1.0, now_s
        #: Each tells how many jobs one partition has given to its workers.
        self.running: list[Callable[[], int]] = []

    def room(self, now_s: float) -> int:
        """So many jobs may begin now."""
        found = 1_000_000
        if self.running_max is not None:
            found = max(0, self.running_max - sum(count() for count in self.running))
        if self._per_s is not None:
            self._fill(now_s)
            found = min(found, int(self._tokens))
        return found

    def begin(self, count: int, now_s: float) -> None:
        """So many begin."""
        if self._per_s is not None:
            self._fill(now_s)
            self._tokens -= count

    def due_s(self, now_s: float) -> float | None:
        """When the next one may begin, as far as the rate says."""
        if self._per_s is None:
            return None
        self._fill(now_s)
        return now_s + max(0.0, 1.0 - self._tokens) / self._per_s

    def _fill(self, now_s: float) -> None:
        assert self._per_s is not None
        gained = max(0.0, now_s - self._filled_s) * self._per_s
        self._tokens, self._filled_s = min(self._burst, self._tokens + gained), now_s
