"""Limits the bytes of requests, and of answers, that a node holds at once.

A small frame is charged when it has arrived, a large one in steps as it is filled; a length that a
client only promises costs nothing. When no bytes are left, a connection waits in line and does not
read from its socket: the client's own system holds the rest.

There are two lanes, each with its own share and line: small requests (metadata, heartbeats,
fetches, commits) do not queue behind large ones.

Large frames that are half received could fill their lane and wait for each other for ever. So one
of them at a time may exceed the lane's bytes, until the lane is within them again.

An answer is held until its client has read it. A connection whose client does not read has one such
answer and starts no more; a node with many of these closes the one that has waited longest.
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
        #: Those whose frame is half there; they go before `_waiting`.
        self._unfinished: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()
        #: Who may go beyond the lane's bytes.
        self._overdrawing: object = None
        self.bytes_taken = 0

    def take(self, who: object, size: int, on_granted: Callable[[], None]) -> bool:
        if not self._waiting and self._fits(size):
            self.bytes_taken += size
            return True
        self._waiting[who] = (size, on_granted)
        return False

    def extend(self, who: object, size: int, on_granted: Callable[[], None]) -> bool:
        if self._charge_more(who, size):
            return True
        self._unfinished[who] = (size, on_granted)
        return False

    def give_back(self, size: int) -> None:
        self.bytes_taken -= size
        assert self.bytes_taken >= 0
        if self.bytes_taken <= self._bytes_max:
            self._overdrawing = None

        while self._unfinished:
            who, (wanted, on_granted) = next(iter(self._unfinished.items()))
            if not self._charge_more(who, wanted):
                return
            del self._unfinished[who]
            on_granted()
        while self._waiting:
            who, (wanted, on_granted) = next(iter(self._waiting.items()))
            if not self._fits(wanted):
                return
            del self._waiting[who]
            self.bytes_taken += wanted
            on_granted()

    def forget(self, who: object) -> None:
        self._waiting.pop(who, None)
        self._unfinished.pop(who, None)

    def _charge_more(self, who: object, size: int) -> bool:
        if not self._fits(size):
            if self._overdrawing not in (None, who):
                return False
            self._overdrawing = who
        self.bytes_taken += size
        return True

    def _fits(self, size: int) -> bool:
        return self.bytes_taken == 0 or self.bytes_taken + size <= self._bytes_max


class AnswerBudget:
    """Answers that clients have not read, by connection, those that wait longest first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._unread: OrderedDict[object, tuple[int, Callable[[], None]]] = OrderedDict()
        self.bytes_held = 0

    def hold(self, who: object, size: int, give_up: Callable[[], None]) -> None:
        """So many bytes are unread on a connection; `give_up` closes it if others need the room."""
        before, _ = self._unread.get(who, (0, give_up))
        self._unread[who] = (size, give_up)
        self.bytes_held += size - before
        while self.bytes_held > self._bytes_max and len(self._unread) > 1:
            _, (unread, close) = self._unread.popitem(last=False)
            self.bytes_held -= unread
            close()

    def release(self, who: object) -> None:
        """The client has read them, or is gone."""
        size, _ = self._unread.pop(who, (0, None))
        self.bytes_held -= size


class ByteBudget:
    """Shared by all connections of a node: so many bytes for requests, and as many for answers."""

    def __init__(self, bytes_max: int) -> None:
        self.answers = AnswerBudget(bytes_max)
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

    def extend(self, who: object, size: int, on_granted: Callable[[], None]) -> bool:
        """As `take`, for the next step of a large request of which a step is taken already."""
        return self._large.extend(who, size, on_granted)

    def give_back(self, size: int) -> None:
        """Returns all bytes of one request, and lets in those that wait, in order."""
        self._lane(size).give_back(size)

    def forget(self, who: object) -> None:
        """Takes a waiting connection out of the line."""
        self._small.forget(who)
        self._large.forget(who)

    def _lane(self, size: int) -> _Lane:
        return self._small if size <= SMALL_BYTES_MAX else self._large
