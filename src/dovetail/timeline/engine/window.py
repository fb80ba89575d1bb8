"""Windows: when a new assignment takes effect, and which consumers it includes; pure.

Time is cut into windows of `window_ms`, by the wall clock, so that all brokers cut alike. Each
window has one assignment. At its end the one for the next window is made, from the consumers that
are present then:

    window       |      T        |     T + 1      |     T + 2
    assignment   |   A, B        |   A, B, C      |   A, C
    comes        |       C ──────┼─▶ served       |
    goes         |               |      B ────────┼─▶ its buckets are assigned anew

A new consumer gets its first message in the next window. What a lost one had not leased goes to its
backups (dealer `racks`) or waits for the next window; what it had leased returns when the leases
end. Assignments do not change in between, so nothing in flight is turned around.

There are two exceptions, which serve nobody worse: a window whose assignment is empty takes the
first consumer at once; and a consumer that was busy for a whole window, with messages waiting in
its buckets, is left out of the next one until it can take messages again.

Events and the present in, the assignment out.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail.timeline.engine.assignment import DealerName, Member, assign


@dataclass(frozen=True, slots=True)
class Attendee:
    """A consumer at the end of a window; `busy` if it took nothing and could take nothing, `idle`
    if it took nothing though it could."""

    member: Member
    busy: bool = False
    idle: bool = False


class Windows:
    """The assignment in force."""

    def __init__(self, dealer: DealerName, *, buckets: int, window_ms: int) -> None:
        self._dealer = dealer
        self._buckets = buckets
        self._window_ms = window_ms
        self._window = -1
        self.assignment = assign(dealer, (), buckets=buckets)

    def window_of(self, now_ms: int) -> int:
        return now_ms // self._window_ms

    def ends_ms(self, now_ms: int) -> int:
        """When the window of `now_ms` ends."""
        return (self.window_of(now_ms) + 1) * self._window_ms

    def on_time(self, attendees: Iterable[Attendee], *, now_ms: int) -> bool:
        """Assigns anew if a window has ended; True if the assignment is another one now.

        A clock that goes back changes nothing until it has caught up.
        """
        window = self.window_of(now_ms)
        if window <= self._window and self.assignment.members:
            return False
        self._window = max(window, self._window)
        there = list(attendees)
        able = [attendee.member for attendee in there if not attendee.busy]
        members = able or [attendee.member for attendee in there]
        if tuple(sorted(members)) == self.assignment.members:
            return False
        self.assignment = assign(self._dealer, members, buckets=self._buckets)
        return True
