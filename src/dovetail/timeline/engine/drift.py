"""Clock drift: how far our clock is from everybody else's; pure.

A sample is a question with an answer: when we sent it, what their clock said, when the answer came.
Their clock was read at some point in between, so the offset is known up to half the round trip;
only what is certainly beyond the threshold counts.

Who is wrong? The store is the reference, because all brokers share it and the messages' times are
in it; without figures from the store, most members of the coordination service are. Other brokers
and clients are as good as we are, and anybody can report a forged offset. So they count only where
no reference answers, and our own clock is the wrong one only if most of at least `WITNESSES_MIN` of
a kind agree, in the same direction; a single one that differs has drifted itself, and is reported.

While our clock is wrong, the broker must not push (too early, or leases that end at once), must not
clean up (it would remove what is not old), and must refuse writes that carry its own time.
"""

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

#: Clients or brokers that can outvote our own clock.
WITNESSES_MIN: Final = 3
#: Samples of one target: the one with the shortest round trip is believed.
_SAMPLES: Final = 8
#: Two clocks that run well move against each other by less than this between two samples.
_STEADY_MS: Final = 20.0
#: Targets that are remembered; beyond, the longest unheard one is forgotten.
_TARGETS_MAX: Final = 10_000


class Target(Enum):
    """Against whom a drift is measured, in the words of the metric."""

    STORAGE = "storage"
    COORDINATION = "sync"
    BROKER = "broker"
    CONSUMER = "consumer"
    PRODUCER = "producer"


_REFERENCES: Final = {Target.STORAGE: "storage", Target.COORDINATION: "coordination"}


@dataclass(frozen=True, slots=True)
class Offset:
    """Their clock less ours; the truth is within `uncertain_ms` of it."""

    ms: float
    uncertain_ms: float
    at_ms: float

    def beyond(self, threshold_ms: int) -> bool:
        return abs(self.ms) - self.uncertain_ms > threshold_ms

    def fits(self, other: "Offset") -> bool:
        """Whether both can be true of clocks that have not been set in between."""
        return abs(self.ms - other.ms) <= self.uncertain_ms + other.uncertain_ms + _STEADY_MS


@dataclass(frozen=True, slots=True)
class Verdict:
    """`drifted`: our clock is wrong, because of `reason`."""

    drifted: bool
    reason: str = ""


class Drift:
    """What is known about the clocks around us."""

    def __init__(self, *, threshold_ms: int, fresh_ms: int) -> None:
        """Samples older than `fresh_ms` no longer count."""
        self._threshold_ms = threshold_ms
        self._fresh_ms = fresh_ms
        self._samples: dict[tuple[Target, str], deque[Offset]] = {}

    def on_answer(
        self, target: Target, name: str, *, sent_ms: float, theirs_ms: float, received_ms: float
    ) -> None:
        """They were asked for their time."""
        middle_ms = (sent_ms + received_ms) / 2
        uncertain_ms = max(0.0, received_ms - sent_ms) / 2
        self.on_offset(
            target,
            name,
            offset_ms=theirs_ms - middle_ms,
            uncertain_ms=uncertain_ms,
            now_ms=received_ms,
        )

    def on_offset(
        self,
        target: Target,
        name: str,
        *,
        offset_ms: float,
        uncertain_ms: float,
        now_ms: float,
    ) -> None:
        """They measured it themselves."""
        key = (target, name)
        found = Offset(offset_ms, uncertain_ms, now_ms)
        kept = [item for item in self._samples.pop(key, ()) if item.fits(found)]
        self._samples[key] = deque([*kept, found], maxlen=_SAMPLES)
        while len(self._samples) > _TARGETS_MAX:
            del self._samples[next(iter(self._samples))]

    def forget_all(self) -> None:
        """Our own clock was set: what was measured by it says nothing any more."""
        self._samples.clear()

    def forget(self, target: Target, name: str) -> None:
        self._samples.pop((target, name), None)

    def offsets(self, target: Target, *, now_ms: float) -> Mapping[str, Offset]:
        """The best sample of each that was heard of lately."""
        found = {}
        for (kind, name), samples in self._samples.items():
            fresh = [item for item in samples if now_ms - item.at_ms <= self._fresh_ms]
            if kind is target and fresh:
                found[name] = min(fresh, key=lambda item: item.uncertain_ms)
        return found

    def drifted(self, target: Target, *, now_ms: float) -> list[str]:
        """Whose clock is beyond the threshold from ours."""
        offsets = self.offsets(target, now_ms=now_ms)
        return [name for name, offset in offsets.items() if offset.beyond(self._threshold_ms)]

    def average_s(self, target: Target, *, now_ms: float) -> float:
        """The mean distance from clocks of a kind, in seconds."""
        offsets = self.offsets(target, now_ms=now_ms).values()
        return statistics.fmean(abs(item.ms) for item in offsets) / 1000 if offsets else 0.0

    def verdict(self, *, now_ms: float) -> Verdict:
        """Whether our own clock is the wrong one."""
        for target in Target:
            offsets = self.offsets(target, now_ms=now_ms)
            if target not in _REFERENCES and self._is_vouched_for(now_ms=now_ms):
                continue
            if target is Target.COORDINATION and self.offsets(Target.STORAGE, now_ms=now_ms):
                continue
            enough = 1 if target in _REFERENCES else WITNESSES_MIN
            beyond = [item.ms for item in offsets.values() if item.beyond(self._threshold_ms)]
            for sign in (1, -1):
                same = [ms for ms in beyond if ms * sign > 0]
                if len(offsets) >= enough and 2 * len(same) > len(offsets):
                    return Verdict(True, self._reason(target, same, of=len(offsets)))
        return Verdict(False)

    def _is_vouched_for(self, *, now_ms: float) -> bool:
        """Whether a reference was heard: where it finds our clock right, no number of clients or
        brokers can outvote both."""
        return any(self.offsets(target, now_ms=now_ms) for target in _REFERENCES)

    def _reason(self, target: Target, offsets_ms: list[float], *, of: int) -> str:
        middle_ms = statistics.median(offsets_ms)
        side = "behind" if middle_ms > 0 else "ahead of"
        whose = f"{len(offsets_ms)} of {of} {target.value}s"
        if target in _REFERENCES:
            whose = f"{_REFERENCES[target]}'s"
        return (
            f"the clock is {abs(middle_ms):.0f} ms {side} {whose}, more than the "
            f"{self._threshold_ms} ms that are allowed; set it right (NTP)"
        )
