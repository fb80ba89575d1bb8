"""Whether a follower still trusts the leader: by what it hears, and by what it sees itself.

A leader is missed from the earlier of two moments:

- when it was last heard, if it is silent;
- when this member received an event that the leader's pings do not cover, if the leader pings but
  has lost the stream. A leader that advances, or reports that it is busy, is only slow, not missed.

Pure: time is an argument.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.election.identifiers import Position


@dataclass(slots=True)
class LeaderWatch:
    """What one member knows about the stream, and about how the leader keeps up with it."""

    heard_ms: float
    received: dict[int, int] = field(default_factory=dict)
    _covered: dict[int, int] = field(default_factory=dict)
    _uncovered_since_ms: float | None = None

    def missed_since_ms(self) -> float:
        """Since when the leader is missed, if it does nothing from now on."""
        if self._uncovered_since_ms is None:
            return self.heard_ms
        return min(self.heard_ms, self._uncovered_since_ms)

    def on_new_leader(self, now_ms: float) -> None:
        """A leader begins with a clean sheet."""
        self.heard_ms = now_ms
        self._covered = dict(self.received)
        self._uncovered_since_ms = None

    def on_heard(self, now_ms: float) -> None:
        """A sign of life that says nothing about the stream."""
        self.heard_ms = now_ms

    def on_ping(self, position: Position, *, busy: bool, now_ms: float) -> None:
        """The leader says what it has received."""
        self.heard_ms = now_ms
        moved = self._cover(self.received if busy else position)
        if not self._is_behind():
            self._uncovered_since_ms = None
        elif moved or self._uncovered_since_ms is None:
            self._uncovered_since_ms = now_ms

    def on_received(self, position: Position, *, now_ms: float) -> None:
        """This member has received the stream up to here."""
        for lane, offset in position.items():
            if offset > self.received.get(lane, -1):
                self.received[lane] = offset
        if self._uncovered_since_ms is None and self._is_behind():
            self._uncovered_since_ms = now_ms

    def _cover(self, position: Mapping[int, int]) -> bool:
        moved = False
        for lane, offset in position.items():
            if offset > self._covered.get(lane, -1):
                self._covered[lane] = offset
                moved = True
        return moved

    def _is_behind(self) -> bool:
        return any(offset > self._covered.get(lane, 0) for lane, offset in self.received.items())
