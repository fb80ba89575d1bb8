"""Bytes of requests that a node holds at once.

A connection takes its frame's bytes before it allocates them. When there are none left it waits
in line, and meanwhile does not read from its socket: the client's own system holds the rest.

There are two lanes, each with a share and a line of its own. A large frame is paid for when its
length is read, long before its bytes are here, so a few clients that promise much and send
nothing can fill the large lane for as long as a frame may take. Small requests (metadata,
heartbeats, fetches, commits) are in the other lane and go on.
"""

from collections import OrderedDict
from collections.abc import Callable

#: Up to this a request is small: what fits the scratch buffer of a connection.
SMALL_BYTES_MAX = 64 * 1024

#: The part of all bytes that is kept for small requests: one in so many.
_SMALL_SHARE = 8


class _Lane:
    """Requests of one kind."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()
        self.bytes_taken = 0

    def take(self, who: object, size: int, on_granted: Callable[[], None]) -> bool:
        if not self._waiting and self._fits(size):
            self.bytes_taken += size
            return True
        self._waiting[who] = (size, on_granted)
        return False

    def give_back(self, size: int) -> None:
        self.bytes_taken -= size
        assert self.bytes_taken >= 0
        while self._waiting:
            who, (wanted, on_granted) = next(iter(self._waiting.items()))
            if not self._fits(wanted):
                return
            del self._waiting[who]
            self.bytes_taken += wanted
            on_granted()

    def forget(self, who: object) -> None:
        self._waiting.pop(who, None)

    def _fits(self, size: int) -> bool:
        return self.bytes_taken == 0 or self.bytes_taken + size <= self._bytes_max


class ByteBudget:
    """Shared by all connections of a node."""

    def __init__(self, bytes_max: int) -> None:
        small = bytes_max // _SMALL_SHARE
        self._small = _Lane(small)
        self._large = _Lane(bytes_max - small)

    @property
    def bytes_taken(self) -> int:
        """Bytes of requests that are held now."""
        return self._small.bytes_taken + self._large.bytes_taken

    def take(self, who: object, size: int, on_granted: Callable[[], None]) -> bool:
        """True if the bytes are taken now; else `on_granted` is called once they are.

        `on_granted` only takes note: it is called from whoever gives bytes back. A request larger
        than its whole lane is let in when nothing else is there, so it cannot wait for ever.
        """
        return self._lane(size).take(who, size, on_granted)

    def give_back(self, size: int) -> None:
        """Returns the bytes of one request, and lets in those that wait, in order."""
        self._lane(size).give_back(size)

    def forget(self, who: object) -> None:
        """Takes a waiting connection out of the line."""
        self._small.forget(who)
        self._large.forget(who)

    def _lane(self, size: int) -> _Lane:
        return self._small if size <= SMALL_BYTES_MAX else self._large
