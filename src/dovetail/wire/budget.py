"""Bytes of requests that a node holds at once.

A connection takes its frame's bytes before it allocates them. When there are none left it waits
in line, and meanwhile does not read from its socket: the client's own system holds the rest.
"""

from collections import OrderedDict
from collections.abc import Callable


class ByteBudget:
    """Shared by all connections of a node."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()
        self.bytes_taken = 0

    def take(self, who: object, size: int, on_granted: Callable[[], None]) -> bool:
        """True if the bytes are taken now; else `on_granted` is called once they are.

        A request larger than everything is let in when nothing else is held, so it can not wait
        for ever.
        """
        if not self._waiting and self._fits(size):
            self.bytes_taken += size
            return True
        self._waiting[who] = (size, on_granted)
        return False

    def give_back(self, size: int) -> None:
        """Returns bytes, and lets in who waits, in order."""
        self.bytes_taken -= size
        while self._waiting:
            who, (wanted, on_granted) = next(iter(self._waiting.items()))
            if not self._fits(wanted):
                return
            del self._waiting[who]
            self.bytes_taken += wanted
            on_granted()

    def forget(self, who: object) -> None:
        """Takes a waiting connection out of the line."""
        self._waiting.pop(who, None)

    def _fits(self, size: int) -> bool:
        return self.bytes_taken == 0 or self.bytes_taken + size <= self._bytes_max
