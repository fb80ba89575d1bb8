"""Where the live rows of a queue begin: keeps leasing fast while a snapshot is open for long.

A message that is leased leaves the queue, but its index entry stays until PostgreSQL vacuums; and
while any transaction of the server is open, a dump or an idle session, nothing that was taken since
is vacuumed. A statement that begins at the first entry then walks along all of them: 46 to 144 ms
for each lease after 300,000 messages (F66).

So a broker remembers a *floor*: a time before which nothing is queued, as far as it knows. Each
settling begins at the floor and raises it to the first message that it finds, so it walks only
along what was taken since the last one. A floor only affects speed, but one that is too high hides
a message. So everything queued here, or reported by another broker after it was stored, lowers it;
no broker uses a floor while it cannot hear the others; and every so often the queue is walked from
its very beginning, in case a notification was lost with its broker. Without an open snapshot that
costs nothing and is done each time; otherwise rarely enough to take one part in `WALK_SHARE` of the
time.
"""

from typing import Final

#: The walk from the beginning may take one part of so many of the time.
WALK_SHARE: Final = 50
#: Floors stay so far behind the present: clocks differ, and what is stored becomes visible later.
BEHIND_MS: Final = 250
#: Before everything.
BOTTOM_MS: Final = -1
_NEVER_MS: Final = 2**62


class Floors:
    """What a broker knows of one timeline's queue. Pure; see the module."""

    def __init__(self) -> None:
        self.queue_ms = self.ends_ms = BOTTOM_MS
        #: When the next walk from the beginning is due, and when the last one was.
        self._walk_ms = self._walked_ms = 0.0
        #: The first time that was queued since the settling that is under way began; None without.
        self._since_ms: int | None = None

    def begin(self, *, now_ms: int, listening: bool) -> bool:
        """A settling begins; True if it is the only one, so that it may `raise_to` what it finds.

        It goes back to the beginning if it is time for that, or if others are not heard; also if
        the clock was set back: floor and time were those of a present that has not come yet.
        """
        if not listening or not self._walked_ms <= now_ms < self._walk_ms:
            self.queue_ms = self.ends_ms = BOTTOM_MS
        if self._since_ms is not None:
            return False
        self._since_ms = _NEVER_MS
        return True

    def lower(self, due_ms: int) -> None:
        """Something is queued at this time."""
        self.queue_ms = min(self.queue_ms, due_ms)
        if self._since_ms is not None:
            self._since_ms = min(self._since_ms, due_ms)

    def lower_ends(self, look_ms: int) -> None:
        """A lease is to be looked at then, which may be past."""
        self.ends_ms = min(self.ends_ms, look_ms)

    def raise_to(self, first_ms: int | None, *, now_ms: int, settled: bool) -> None:
        """A settling found nothing queued before `first_ms`, or nothing at all; and nothing left in
        `ends` that was to be looked at by now, if it has `settled` all."""
        assert self._since_ms is not None
        behind_ms = now_ms - BEHIND_MS
        found_ms = behind_ms if first_ms is None else min(first_ms, behind_ms)
        self.queue_ms = max(BOTTOM_MS, min(found_ms, self._since_ms))
        if settled:
            self.ends_ms = max(BOTTOM_MS, behind_ms)

    def end(self, *, now_ms: int, took_ms: float, walked: bool) -> None:
        """The settling that was the only one has ended, however it did."""
        self._since_ms = None
        if walked:
            self._walked_ms, self._walk_ms = now_ms, now_ms + took_ms * WALK_SHARE
