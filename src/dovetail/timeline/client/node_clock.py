"""The node's time, as a client knows it: measured with every report, for both sides."""

import asyncio
from typing import Final

from dovetail.clock import Clock
from dovetail.timeline.frames import Report

#: A clock that differs by more than its uncertainty and this is taken for wrong.
_CLOCK_MS: Final = 5.0


class NodeClock:
    """How far the node's clock is from ours, and how far away it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_ms = 0
        self._began_ms = 0.0
        #: Milliseconds from here to the node, as last measured.
        self.latency_ms = 0.0
        #: Our clock less the node's, as last measured; 0 while they may well be the same.
        self.offset_ms = 0.0
        self._used_ms = 0.0
        #: Whether anything is known of the node's clock.
        self.compared = False

    def report(
        self, session: int, *, handled: int = 0, failed: int = 0, busy: bool = False, free: int = 0
    ) -> Report:
        """A report to send at once; its answer has the node's time."""
        self._sent_ms = self._clock.wall_ms()
        self._began_ms = self._clock.monotonic_ms()
        uncertain_ms = self.latency_ms
        measured = (self.latency_ms, self.offset_ms, uncertain_ms)
        return Report(session, handled, failed, busy, *measured, free)

    def on_answer(self, node_ms: int, *, trusted: bool) -> None:
        """The last report was answered; `trusted` unless the node says that its clock is off."""
        self.compared = True
        self.latency_ms = (self._clock.monotonic_ms() - self._began_ms) / 2
        offset_ms = self._sent_ms + self.latency_ms - node_ms
        certain = abs(offset_ms) > self.latency_ms + _CLOCK_MS
        self.offset_ms = offset_ms if certain else 0.0
        if trusted:
            self._used_ms = self.offset_ms

    async def until(self, time_ms: int) -> None:
        """Returns at that time, by the node's clock."""
        while (left_ms := time_ms - self.now_ms()) > 0:
            await asyncio.sleep(left_ms / 1000)

    def now_ms(self) -> int:
        """The node's time, by the last measurement that it vouched for."""
        return round(self._clock.wall_ms() - self._used_ms)
