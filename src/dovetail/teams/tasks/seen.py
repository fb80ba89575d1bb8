"""Which jobs came before: the ids of one partition of an input topic, for a time to live; pure.

Promise: a record is a repetition exactly if an earlier record of its partition has the same
identity and a time later than its own minus the time to live. That is a function of the log alone:
every reader of the partition, from any point, with or without a cache, finds the same answer. Equal
ids share a partition, because the id is the record's key.

An id that keeps coming stays known: what counts is when it was last seen. (Counting from when it
was last accepted would make the answer depend on the whole log, not on one window.)

Memory: two generations. A generation is closed when it spans the time to live; closing one drops
the one before. So there are never more ids than arrive in twice the time to live, and a record
costs one look-up. If the window of a late record reaches into what was dropped, `lacks` says so,
and the caller reads that window from the log.

Not here: reading the log (see `seen_log`).
"""

from collections.abc import Sequence

from dovetail.teams.envelope import Identity


class Seen:
    """The identities in one partition before a record, back to `covers_ms`."""

    def __init__(self, *, remember_ms: int, covers_ms: int, forgets: bool = True) -> None:
        """With `forgets=False` nothing is dropped: for a short life, to judge very late records."""
        self.remember_ms = remember_ms
        #: Times from here on are known completely.
        self.covers_ms = covers_ms
        self._old: dict[Identity, int] = {}
        self._young: dict[Identity, int] = {}
        self._young_since_ms: int | None = None
        self._newest_ms = covers_ms
        self._forgets = forgets

    def __len__(self) -> int:
        return len(self._old) + len(self._young)

    def lacks(self, at_ms: int) -> bool:
        """Whether too little is known to judge a record of that time."""
        return at_ms - self.remember_ms < self.covers_ms - 1

    def repeats(self, identities: Sequence[Identity], times_ms: Sequence[int]) -> list[bool]:
        """Which of the records, in their order, are repetitions; all are known from here on.

        One call for many: 0.3 µs a record, where a call for each took 0.7.
        """
        found: list[bool] = []
        remember_ms, old, young = self.remember_ms, self._old, self._young
        newest_ms = self._newest_ms
        if self._young_since_ms is None and times_ms:
            self._young_since_ms = times_ms[0]

        for identity, at_ms in zip(identities, times_ms, strict=True):
            last_ms = young.get(identity)
            if last_ms is None:
                last_ms = old.get(identity)
            found.append(last_ms is not None and last_ms > at_ms - remember_ms)
            young[identity] = at_ms if last_ms is None or at_ms > last_ms else last_ms
            if at_ms > newest_ms:
                self._newest_ms = newest_ms = at_ms
                if self._is_full():
                    self._turn()
                    old, young = self._old, self._young
        return found

    def _is_full(self) -> bool:
        """Whether the young generation spans the time to live."""
        since_ms = self._young_since_ms
        return self._forgets and self._newest_ms - (since_ms or 0) >= self.remember_ms

    def _turn(self) -> None:
        """Closes the young generation, and drops the old one."""
        if self._old:
            self.covers_ms = max(self.covers_ms, max(self._old.values()) + 1)
        self._old, self._young = self._young, {}
        self._young_since_ms = self._newest_ms
