"""The node's time, as a client knows it: measured with every report, good for both sides."""

from typing import Final

from dovetail.clock import Clock

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

    def ask(self) -> None:
        """A request is about to leave whose answer has the node's time."""
        self._sent_ms = self._clock.wall_ms()
        self._began_ms = self._clock.monotonic_ms()

    def on_answer(self, node_ms: int, *, trusted: bool) -> None:
        """The answer to the last `ask` is here; `trusted` unless the node says its clock is off."""
        self.latency_ms = (self._clock.monotonic_ms() - self._began_ms) / 2
        offset_ms = self._sent_ms + self.latency_ms - node_ms
        certain = abs(offset_ms) > self.latency_ms + _CLOCK_MS
        self.offset_ms = offset_ms if certain else 0.0
        if trusted:
            self._used_ms = self.offset_ms

    def now_ms(self) -> int:
        """The node's time, by the last measurement that it vouched for."""
        return round(self._clock.wall_ms() - self._used_ms)
