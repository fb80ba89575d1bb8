"""The tail in memory: the newest batches are read from here, not from disk (L7).

Each partition has a `Tail`; all share one budget. When it is used up, the oldest bytes of the whole
node go first. The buffers are those of the producers' requests: nothing is copied, unless the batch
is the smaller part of its request.
"""

from bisect import bisect_right
from collections import deque

from dovetail.buffers import Buffer

#: Dead places at the front of a tail are cut away when there are so many.
_COMPACT_AT = 1024


class TailBudget:
    """Bytes that all tails of a node may hold together."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._order: deque[tuple[Tail, int]] = deque()

    def admit(self, tail: "Tail", size: int) -> None:
        """Counts a batch in, and drops the oldest."""
        self._order.append((tail, size))
        self._bytes += size
        while self._bytes > self._bytes_max and self._order:
            oldest, freed = self._order.popleft()
            self._bytes -= freed
            oldest.forget_first()


class Tail:
    """The newest confirmed batches of one partition, without a gap."""

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self._bases: list[int] = []
        self._batches: list[Buffer] = []
        self._head = 0
        self._end = -1
        #: Batches that were dropped before their turn and are still counted in the budget's order.
        self._ghosts = 0

    def add(self, base_offset: int, offset_end: int, batch: Buffer) -> None:
        """Adds the batch behind the last one."""
        if isinstance(batch, memoryview) and len(batch) * 2 < memoryview(batch.obj).nbytes:
            batch = bytes(batch)  # A slice keeps its whole frame, of which it may be a thousandth.
        self._bases.append(base_offset)
        self._batches.append(batch)
        self._end = offset_end
        self._budget.admit(self, len(batch))

    def forget_first(self) -> None:
        """Called by the budget, once for each batch that was added."""
        if self._ghosts:
            self._ghosts -= 1
            return
        self._drop_first()

    def _drop_first(self) -> None:
        self._batches[self._head] = b""
        self._head += 1
        if self._head >= _COMPACT_AT and self._head * 2 > len(self._bases):
            del self._bases[: self._head]
            del self._batches[: self._head]
            self._head = 0

    def forget_below(self, offset: int) -> None:
        """Drops batches that begin below an offset: storage has others in their place."""
        while self._head < len(self._bases) and self._bases[self._head] < offset:
            self._ghosts += 1
            self._drop_first()

    def clear(self) -> None:
        """Drops everything."""
        self._ghosts += len(self._bases) - self._head
        self._bases.clear()
        self._batches.clear()
        self._head = 0

    def read(self, offset: int, bytes_max: int) -> list[Buffer] | None:
        """Batches from the one with `offset` on, at least one; None if it is not here."""
        if self._head == len(self._bases) or offset < self._bases[self._head]:
            return None
        if offset >= self._end:
            return None
        at = bisect_right(self._bases, offset, lo=self._head) - 1
        found = [self._batches[at]]
        size = len(found[0])
        at += 1
        while at < len(self._batches):
            batch = self._batches[at]
            size += len(batch)
            if size > bytes_max:
                break
            found.append(batch)
            at += 1
        return found
