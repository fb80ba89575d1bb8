"""Notices another process that takes part under this member's name; pure.

Members differ by their endpoints alone. Two with one endpoint, such as that of a copied
configuration, do not see each other: each counts itself as the only one of its name, takes the
leadership from the other after every timeout, and finds nothing wrong. Terms keep that safe, and it
never ends.

A former life of this member may have left a record on its way, so one is no sign: a process that
goes on writing is. With COORDINATOR the name does not matter, since the lease belongs to a life.
"""

from dovetail.election.election import Identity, Times
from dovetail.election.fold import Claim, Record, Register, Report

#: Without a record for so many timeouts it is gone. Two that take turns write several.
GONE_TIMEOUTS = 10


class Twins:
    """What one member has seen of others under its name, since it started."""

    def __init__(self, me: Identity, times: Times) -> None:
        self._me = me
        self._timeout_ms = times.timeout_ms
        self._first_ms = self._last_ms = float("-inf")

    def on_record(self, record: Record, *, now_ms: float) -> bool:
        """A record was read from the shared log; whether it is the sign of a new twin."""
        if not isinstance(record, Claim | Register | Report) or record.member != self._me.name:
            return False
        if record.incarnation == self._me.incarnation:
            return False

        was_alive = self.alive(now_ms=now_ms)
        if self._is_gone(now_ms):
            self._first_ms = now_ms
        self._last_ms = now_ms
        return self.alive(now_ms=now_ms) and not was_alive

    def alive(self, *, now_ms: float) -> bool:
        """Whether there is one."""
        return not self._is_gone(now_ms) and self._last_ms - self._first_ms >= self._timeout_ms

    def _is_gone(self, now_ms: float) -> bool:
        return now_ms - self._last_ms > GONE_TIMEOUTS * self._timeout_ms
