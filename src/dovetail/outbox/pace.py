"""How long to wait and how much to take; pure.

Retries double from `first_ms` to `most_ms`, spread at random over the upper half, so that many
topics that failed together do not retry together. Polling starts at a few milliseconds after the
last find and doubles to the idle time. The size of the messages seen last determines the next
fetch, so that large messages are not taken by the thousand.
"""

#: Bytes that one fetch should bring: several batches, and little beside the process itself.
FETCH_BYTES = 4 * 1024 * 1024

#: The first fetch of a pass, when nothing is known about the size of its messages.
FETCH_FIRST = 200

#: The first look after a find; below it a look costs more than it gains.
LOOK_MS_MIN = 2.0

#: As long as looks are no further apart than this, the next message is expected any moment, and
#: asking publishers to notify would cost both sides more than looking.
RESTLESS_MS_MAX = 16.0

#: Doublings after which the delay is at its limit anyway.
_DOUBLINGS_MAX = 30


def retry_delay_ms(retries: int, *, first_ms: int, most_ms: int, chance: float) -> int:
    """Time until a failed topic is tried again; `chance` is from 0 to 1."""
    full = min(most_ms, first_ms << min(retries, _DOUBLINGS_MAX))
    return round(full / 2 + full / 2 * chance)


def fetch_count(rows: int, size_bytes: int, *, most: int) -> int:
    """How many rows to fetch next after `rows` with `size_bytes` together."""
    if rows == 0:
        return min(FETCH_FIRST, most)
    return max(1, min(most, FETCH_BYTES * rows // max(1, size_bytes)))


class Pace:
    """The waits between looks."""

    def __init__(self, *, idle_ms: int) -> None:
        self._idle_ms = float(idle_ms)
        self._next_ms = LOOK_MS_MIN

    def found(self) -> None:
        """There was something: the next may be near."""
        self._next_ms = LOOK_MS_MIN

    @property
    def restless(self) -> bool:
        """Whether to look again soon rather than to sleep."""
        return self._next_ms <= min(RESTLESS_MS_MAX, self._idle_ms)

    def next_ms(self, *, asleep: bool) -> float:
        """How long to wait now. `asleep`: publishers will notify, so as long as is allowed."""
        if asleep:
            return self._idle_ms
        now_ms = min(self._next_ms, self._idle_ms)
        self._next_ms = min(self._next_ms * 2, self._idle_ms)
        return now_ms
