"""Degradations: what a broker stops doing when something around it fails; pure.

    degradation   begins when                             while it lasts
    DRIFT         our clock is wrong (`drift`), or has    no pushes, no upkeep, no dated writes
                  just jumped
    STORAGE       half of the last operations failed      one in `SAMPLE` goes through, the rest are
                                                          refused at once; of that timeline alone,
                                                          where each has a file of its own
                  a timeline cannot be opened             its requests are refused; tried again
                  its file takes no commands any more     its requests are refused, until a restart
    PARTITION     most of the other brokers vanished, or  we may be the minority: no new consumers
                  our own lease did
    CONSUMERS     most consumers of a timeline fail       pushes pause, then one try
                  most of them are busy                   none to those, they have no credit; if the
                                                          timeline is set so, to nobody
    PRODUCER      most requests of a producer fail        its requests are refused for a while

Each ends by itself: a sampled operation succeeds, a broker returns, a try works. The broker is
healthy, degraded with reasons, or inactive (when it stops). A degradation of one timeline, consumer
or producer does not affect the others.
"""

from collections import Counter, deque
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dovetail.errors import Throttled, Unavailable

#: While storage fails, one operation of so many is tried.
SAMPLE: Final = 10
#: Operations that are judged, and the fewest that say anything.
_JUDGED: Final = 40
_JUDGED_MIN: Final = 10
#: Successes in a row that end a degradation of storage.
_RECOVERED: Final = 3
#: Leases of a timeline that fail in a row before it counts as stopped: a few may meet a restart.
_UNLEASED_MAX: Final = 3
#: Brokers that vanished are dead after this: some leases of a broker, which last seconds.
FORGET_MS: Final = 10_000
#: Pause of a timeline whose consumers fail, and of a producer; doubled each time.
_PAUSE_MS_MIN: Final = 1_000
_PAUSE_MS_MAX: Final = 60_000


class Degradation(Enum):
    """The five, in the words of the metric."""

    DRIFT = "drift"
    STORAGE = "storage"
    PARTITION = "partition"
    CONSUMERS = "consumers"
    PRODUCER = "producer"


class Condition(Enum):
    """What a broker is, seen from its cluster."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    INACTIVE = "inactive"


class StorageGate:
    """Lets operations through while storage works, and a sample of them while it does not."""

    def __init__(self) -> None:
        self._outcomes: deque[bool] = deque(maxlen=_JUDGED)
        self._asked = 0
        self._good_in_a_row = 0
        self.failing = False

    def admit(self) -> None:
        """Raises `Unavailable` if this operation is not to be tried now."""
        if not self.failing:
            return
        self._asked += 1
        if self._asked % SAMPLE:
            raise Unavailable(
                f"storage keeps failing, so only one operation in {SAMPLE} is tried; "
                "try again in a second"
            )

    def on_outcome(self, *, good: bool) -> None:
        self._outcomes.append(good)
        self._good_in_a_row = self._good_in_a_row + 1 if good else 0
        bad = self._outcomes.count(False)
        if self.failing and self._good_in_a_row >= _RECOVERED:
            self.failing = False
            self._outcomes.clear()
        elif len(self._outcomes) >= _JUDGED_MIN and 2 * bad >= len(self._outcomes):
            self.failing = True


class PeerWatch:
    """Notices a partition: coordination is out of reach, or most of the others vanish at once.

    Those that vanished are taken for dead after `FORGET_MS`: a broker that is cut off has lost its
    own lease by then, so whoever still has one is on the side that goes on.
    """

    def __init__(self) -> None:
        self._most = 0
        self._now = 0
        self._since_ms: int | None = None
        #: Whether our own lease at the coordination service is lost.
        self.cut_off = False

    def on_peers(self, count: int, *, now_ms: int) -> None:
        """So many others are there now; one that leaves in peace is taken off by `on_left`."""
        if self._since_ms is not None and now_ms - self._since_ms >= FORGET_MS:
            self._most = self._now
        self._now = count
        self._most = max(self._most, count)
        if 2 * count >= self._most:
            self._since_ms = None
        elif self._since_ms is None or now_ms - self._since_ms >= FORGET_MS:
            self._since_ms = now_ms

    def on_left(self) -> None:
        """Another broker said that it stops."""
        self._most = max(0, self._most - 1)
        if 2 * self._now >= self._most:
            self._since_ms = None

    def parted(self, now_ms: int) -> bool:
        """Whether we may be on the wrong side of a cut."""
        vanished = self._since_ms is not None and now_ms - self._since_ms < FORGET_MS
        return self.cut_off or vanished

    def reason(self, now_ms: int) -> str:
        """What is wrong, for people; empty if nothing is."""
        if self.cut_off:
            return "the coordination service is out of reach"
        return "most of the other brokers have vanished" if self.parted(now_ms) else ""


class Gate:
    """Closes when most outcomes are failures; opens for one try after a pause.

    CLOSED lasts until `closed_until_ms`; what comes then is a try: a failure closes again, for
    twice as long, a success opens.
    """

    def __init__(self) -> None:
        self._outcomes: deque[bool] = deque(maxlen=_JUDGED)
        self._pause_ms = _PAUSE_MS_MIN
        #: Set from its closing on until something is known about the try after the pause.
        self.trying = False
        self._closed_until_ms = 0

    def on_outcome(self, *, good: bool, now_ms: int) -> None:
        """What was begun before the gate closed says nothing new."""
        if self.closed_ms(now_ms):
            return
        if self.trying:
            self.trying = False
            if good:
                self._outcomes.clear()
                self._pause_ms = _PAUSE_MS_MIN
            else:
                self._close(now_ms)
            return
        self._outcomes.append(good)
        bad = self._outcomes.count(False)
        if len(self._outcomes) >= _JUDGED_MIN and 2 * bad > len(self._outcomes):
            self._close(now_ms)

    def _close(self, now_ms: int) -> None:
        self._closed_until_ms = now_ms + self._pause_ms
        self._pause_ms = min(_PAUSE_MS_MAX, 2 * self._pause_ms)
        self.trying = True

    def closed_ms(self, now_ms: int) -> int:
        """For how long it is still closed; 0 if it is open."""
        return max(0, self._closed_until_ms - now_ms)

    def check(self, who: str, now_ms: int) -> None:
        """Raises `Throttled` while it is closed."""
        wait_ms = self.closed_ms(now_ms)
        if wait_ms:
            raise Throttled(
                f"most requests of {who} failed, so it is held back; try again in {wait_ms} ms"
            )


#: What concerns all clients of a broker; the others are of one timeline or one client.
_OF_ALL: Final = frozenset({Degradation.DRIFT, Degradation.STORAGE, Degradation.PARTITION})


@dataclass(frozen=True, slots=True)
class Report:
    """How a broker is, with reasons for people."""

    condition: Condition
    reasons: tuple[tuple[Degradation, str], ...] = ()
    #: Of these, what is wrong with the stores of single timelines, with their names.
    unwell: tuple[tuple[str, str], ...] = ()

    @property
    def of_all(self) -> list[str]:
        """The reasons that concern every client: a load balancer should send nobody here."""
        apart = {text for _, text in self.unwell}
        return [
            text
            for degradation, text in self.reasons
            if degradation in _OF_ALL and text not in apart
        ]

    def concerns(self, timeline: str) -> bool:
        """Whether a client of this timeline should go elsewhere."""
        return bool(self.of_all) or any(name == timeline for name, _ in self.unwell)


class Health:
    """All that is wrong at the moment."""

    def __init__(self, *, jump_ms_max: int = 1_000, one_store: bool = True) -> None:
        """`jump_ms_max`: how far our clock may move beside the time that passes; `one_store`:
        whether all timelines are in one store, and fail with it."""
        self._jump_ms_max = jump_ms_max
        self._shift_ms: float | None = None
        #: Set by a jump of our clock, until it was compared with the others'.
        self.jumped = False
        self.storage = StorageGate()
        self._one_store = one_store
        #: Of timelines with a store each.
        self._stores: dict[str, StorageGate] = {}
        #: Timelines whose store has taken itself out, and what it says.
        self._out: dict[str, str] = {}
        self.peers = PeerWatch()
        self.drift_reason = ""
        self.inactive = False
        self._timelines: dict[str, Gate] = {}
        self._producers: dict[str, Gate] = {}
        #: Timelines most of whose consumers are busy, and whether that stops their pushes.
        self._busy: dict[str, bool] = {}
        #: Leases of each timeline that failed in a row.
        self._unleased: Counter[str] = Counter()
        #: Timelines that are there and cannot be opened here, with the reason.
        self.unopened: Mapping[str, str] = {}

    def storage_of(self, timeline: str) -> StorageGate:
        """The gate of a timeline's store."""
        return self.storage if self._one_store else self._stores.setdefault(timeline, StorageGate())

    def on_out(self, timeline: str, why: str) -> None:
        """Its store takes no commands any more; it may still be read."""
        self._out[timeline] = why

    def on_stored(self, timeline: str) -> None:
        """Its store has taken a command that changes something."""
        self._out.pop(timeline, None)

    def on_lease(self, timeline: str, *, good: bool) -> None:
        """The store was asked for messages. Other commands may well succeed meanwhile."""
        if good:
            self._unleased.pop(timeline, None)
        else:
            self._unleased[timeline] += 1

    def _stuck(self) -> list[str]:
        return sorted(name for name, count in self._unleased.items() if count >= _UNLEASED_MAX)

    def _failing(self) -> list[str]:
        return sorted(name for name, gate in self._stores.items() if gate.failing)

    def consumers(self, timeline: str) -> Gate:
        """The gate of a timeline's consumers."""
        return self._timelines.setdefault(timeline, Gate())

    def on_busy(self, timeline: str, *, most: bool, stop: bool = False) -> None:
        """Most consumers of a timeline can take nothing, or that is over."""
        if most:
            self._busy[timeline] = stop
        else:
            self._busy.pop(timeline, None)

    def producer(self, name: str) -> Gate:
        return self._producers.setdefault(name, Gate())

    def forget_timeline(self, timeline: str) -> None:
        self._timelines.pop(timeline, None)
        self._stores.pop(timeline, None)
        self._out.pop(timeline, None)
        self._busy.pop(timeline, None)
        self._unleased.pop(timeline, None)

    def keep_producers(self, names: Set[str]) -> None:
        """Forgets the gates of all other producers, unless they are closed."""
        for name in [each for each in self._producers if each not in names]:
            if not self._producers[name].trying:
                del self._producers[name]

    def on_clock(self, *, wall_ms: int, monotonic_ms: float) -> None:
        """Notices that our clock has jumped, before anything is done by it."""
        shift_ms = wall_ms - monotonic_ms
        moved_ms = 0.0 if self._shift_ms is None else shift_ms - self._shift_ms
        self._shift_ms = shift_ms
        if abs(moved_ms) > self._jump_ms_max:
            self.jumped = True
            self.drift_reason = f"the clock jumped by {moved_ms:.0f} ms, and is being compared"

    def may_push(self, timeline: str, *, now_ms: int) -> bool:
        """Whether messages of a timeline may be leased and pushed."""
        if self.drift_reason or self.inactive or self._busy.get(timeline):
            return False
        gate = self._timelines.get(timeline)
        return gate is None or not gate.closed_ms(now_ms)

    def check_dated_write(self) -> None:
        """Raises `Unavailable` if a write would carry a wrong time."""
        if self.drift_reason:
            raise Unavailable(f"this broker writes no times at the moment: {self.drift_reason}")

    def gauges(self, *, now_ms: int) -> Mapping[Degradation, int]:
        """How many of each there are, for the metric."""
        return {
            Degradation.DRIFT: int(bool(self.drift_reason)),
            Degradation.STORAGE: int(self.storage.failing)
            + len(self._failing())
            + len(self._stuck())
            + len(self._out)
            + len(self.unopened),
            Degradation.PARTITION: int(self.peers.parted(now_ms)),
            Degradation.CONSUMERS: _closed(self._timelines, now_ms) + len(self._busy),
            Degradation.PRODUCER: _closed(self._producers, now_ms),
        }

    def report(self, *, now_ms: int) -> Report:
        """How this broker is."""
        if self.inactive:
            return Report(Condition.INACTIVE)
        reasons: list[tuple[Degradation, str]] = []
        if self.drift_reason:
            reasons.append((Degradation.DRIFT, self.drift_reason))
        if self.storage.failing:
            reasons.append((Degradation.STORAGE, "the timeline store keeps failing"))
        if self._one_store:
            reasons += [(Degradation.STORAGE, _leases_nothing(name)) for name in self._stuck()]
        unwell = self._unwell()
        reasons += [(Degradation.STORAGE, text) for _, text in unwell]
        if parted := self.peers.reason(now_ms):
            reasons.append((Degradation.PARTITION, parted))

        for name, gate in self._timelines.items():
            if gate.closed_ms(now_ms):
                reasons.append((Degradation.CONSUMERS, f"most consumers of {name!r} fail"))
        for name in sorted(self._busy):
            stopped = "; nothing is pushed" if self._busy[name] else ""
            text = f"most consumers of {name!r} are busy{stopped}"
            reasons.append((Degradation.CONSUMERS, text))
        for name, gate in self._producers.items():
            if gate.closed_ms(now_ms):
                reasons.append((Degradation.PRODUCER, f"most requests of {name!r} fail"))

        condition = Condition.DEGRADED if reasons else Condition.HEALTHY
        return Report(condition, tuple(reasons), tuple(unwell))

    def _unwell(self) -> list[tuple[str, str]]:
        """Timelines whose own stores do not work, while others may."""
        found = [(name, f"the store of {name!r} keeps failing") for name in self._failing()]
        found += [
            (name, f"{name!r} stores nothing any more: {why}")
            for name, why in sorted(self._out.items())
        ]
        if not self._one_store:
            found += [(name, _leases_nothing(name)) for name in self._stuck()]
        found += [
            (name, f"{name!r} cannot be opened: {why}")
            for name, why in sorted(self.unopened.items())
        ]
        return found


def _leases_nothing(timeline: str) -> str:
    return f"the store leases nothing of {timeline!r}"


def _closed(gates: Mapping[str, Gate], now_ms: int) -> int:
    return sum(1 for gate in gates.values() if gate.closed_ms(now_ms))
