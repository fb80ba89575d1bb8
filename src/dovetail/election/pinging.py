"""When the leader pings, and which members it has reached.

Promise: a ping to every member at least every heartbeat, and sooner after an event, but never more
often than every `event_ping_ms`: the traffic grows with the members, not with the events.

A member counts as reached from the moment at which the ping that it answered was SENT, so that the
leader gives up before its followers do, however slow the answers are. Pure: time is an argument.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from dovetail.election.identifiers import MemberName


@dataclass(slots=True)
class Pinging:
    """The pings of one leadership."""

    heartbeat_ms: float
    event_ping_ms: float
    _last_ms: float = float("-inf")
    _event_waits: bool = False
    _reached_ms: dict[MemberName, float] = field(default_factory=dict)

    def start(self, members: Collection[MemberName], now_ms: float) -> None:
        """A leadership begins: the members that voted for it were reachable just now."""
        self._last_ms, self._event_waits = float("-inf"), False
        self._reached_ms = dict.fromkeys(members, now_ms)

    @property
    def due_ms(self) -> float:
        """When the next ping is due."""
        return self._last_ms + (self.event_ping_ms if self._event_waits else self.heartbeat_ms)

    def on_event(self) -> None:
        """An event was received."""
        self._event_waits = True

    def on_sent(self, now_ms: float) -> None:
        """A ping went out to everybody."""
        self._last_ms, self._event_waits = now_ms, False

    def on_answer(self, member: MemberName, *, sent_ms: float, now_ms: float) -> None:
        """A member answered the ping of `sent_ms`; one from the future was never sent."""
        if sent_ms <= now_ms:
            self._reached_ms[member] = max(sent_ms, self.reached_ms(member))

    def reached_ms(self, member: MemberName) -> float:
        """When the last ping was sent that the member answered."""
        return self._reached_ms.get(member, float("-inf"))

    def meet(self, members: Collection[MemberName], now_ms: float) -> None:
        """New members have from now on to answer; those that left are forgotten."""
        self._reached_ms = {member: self._reached_ms.get(member, now_ms) for member in members}

    def quorum_until_ms(
        self, others: Collection[MemberName], *, needed: int, timeout_ms: float, now_ms: float
    ) -> float:
        """Until when `needed` of the others were surely reached within the timeout."""
        if needed <= 0:
            return now_ms + timeout_ms
        if needed > len(others):
            return float("-inf")
        reached = sorted((self.reached_ms(member) for member in others), reverse=True)
        return reached[needed - 1] + timeout_ms
