"""What happens to an event whose handler raised: it is retried, and at last set aside; pure.

    handled ──raises──> failing ──after a pause, longer each time──> handled again
                           └── last attempt ──> set aside ──> done
                                                   └── it cannot be set aside: tried again

A failing event delays those behind it, which keeps their order. The leader counts the attempts that
it makes; the next leader counts anew. Time is an argument.
"""

from dataclasses import dataclass
from enum import Enum

from dovetail.stream.source import Event


@dataclass(frozen=True, slots=True)
class Retries:
    """How often an event is tried, and the pauses between."""

    attempts_max: int = 1
    first_ms: int = 1_000
    longest_ms: int = 60_000

    def pause_s(self, attempts: int) -> float:
        """The pause after so many attempts."""
        doubled_ms = self.first_ms << min(attempts - 1, 32)
        return min(self.longest_ms, doubled_ms) / 1000


class Next(Enum):
    """What to do with an event."""

    HANDLE = "handle"
    WAIT = "wait"
    SET_ASIDE = "set aside"


@dataclass(slots=True)
class Failing:
    """The event that fails at the moment."""

    event: Event
    since_s: float
    attempts: int = 0
    again_s: float = 0.0
    reason: str = ""
    traceback: str = ""

    def facts(self, seconds: float) -> dict[str, str | int | float]:
        """For people; it fails since so many seconds."""
        return {
            "lane": self.event.lane,
            "offset": self.event.offset,
            "attempts": self.attempts,
            "reason": self.reason,
            "seconds": round(seconds, 3),
        }


class Attempts:
    """Attempts of one leader; one event fails at a time."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self.failing: Failing | None = None

    def next_for(self, event: Event, now_s: float) -> Next:
        """What to do with the event now."""
        failing = self._of(event)
        if failing is None:
            self.failing = None
            return Next.HANDLE
        if now_s < failing.again_s:
            return Next.WAIT
        return Next.SET_ASIDE if self._is_last(failing) else Next.HANDLE

    def on_failure(self, event: Event, now_s: float, *, reason: str, traceback: str) -> Next:
        """The handler raised: wait, or set the event aside."""
        failing = self._of(event) or Failing(event, now_s)
        self.failing = failing
        failing.attempts += 1
        failing.reason, failing.traceback = reason, traceback
        if self._is_last(failing):
            return Next.SET_ASIDE
        failing.again_s = now_s + self._retries.pause_s(failing.attempts)
        return Next.WAIT

    def on_not_set_aside(self, now_s: float) -> None:
        """It could not be set aside: nobody handles it any more, and that is tried again."""
        assert self.failing is not None
        self.failing.again_s = now_s + self._retries.pause_s(1)

    def on_done(self) -> None:
        """The event is over, one way or the other."""
        self.failing = None

    def pause_s(self, now_s: float) -> float:
        """How long nothing can be done."""
        return 0.0 if self.failing is None else max(0.0, self.failing.again_s - now_s)

    def _of(self, event: Event) -> Failing | None:
        failing = self.failing
        if failing is None or (failing.event.lane, failing.event.offset) != (
            event.lane,
            event.offset,
        ):
            return None
        return failing

    def _is_last(self, failing: Failing) -> bool:
        return failing.attempts >= self._retries.attempts_max
