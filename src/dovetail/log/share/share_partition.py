"""One partition, shared by the members of a group (KIP-932): which member has which record; pure.

The records between `start` and `end` are in flight: all before are finished, all behind were never
delivered. In between lie spans, adjacent and without a gap:

    from          event                                to
    (never)       acquire                              ACQUIRED, count 1
    AVAILABLE     acquire                              ACQUIRED, count + 1
    ACQUIRED      accept                               ACKNOWLEDGED
    ACQUIRED      release, or the lock ends            AVAILABLE; at the limit given up
    ACQUIRED      the member's session ends            as released
    ACQUIRED      reject                               given up
    ACQUIRED      renew                                ACQUIRED, a new lock
    given up      the group has dead letters           ARCHIVING, then ARCHIVED when it is stored
    given up      it has none                          ARCHIVED
    AVAILABLE     the log does not have it any more    ARCHIVED
    any           the log begins behind it             forgotten

Promises:
- A record has at most one lock. A member without the lock, or that no longer has it, can decide
  nothing.
- The acknowledgements of a request are applied all together or not at all.
- A record is delivered at most `deliveries_max` times, as far as deliveries are stored: one that is
  not stored when the owner dies is not counted.

The machine runs ahead of storage: `stored` is what must be written before an acknowledgement is
answered. If that write fails, the machine is discarded with all its locks, and a new one begins
with the stored state. So an acquired record is stored as available, and what was not answered may
be delivered again.

Not here: reading the log, storing, dead letters (`keeper.py`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dovetail.log.share.types import (
    DONE,
    Acknowledge,
    Acknowledgement,
    Acquired,
    Batch,
    Mark,
    ShareCounts,
    ShareError,
    ShareSettings,
)

_KINDS = frozenset(int(kind) for kind in Acknowledge)


@dataclass(slots=True)
class Span:
    """Records that stand the same."""

    first: int
    last: int
    mark: Mark
    count: int
    member: str = ""
    lock_ms: float = 0.0

    @property
    def length(self) -> int:
        return self.last - self.first + 1


class SharePartition:
    """See the module."""

    def __init__(
        self,
        start: int,
        spans: Iterable[tuple[int, int, int]],
        settings: ShareSettings,
        counts: ShareCounts | None = None,
    ) -> None:
        """As it is stored: spans follow each other from `start`. `counts` goes on counting."""
        self.settings = settings
        self.counts = counts or ShareCounts()
        self.start = start
        #: Whether something has to be stored that somebody was told, or will be.
        self.dirty = False
        #: Where the log begins: what is older is forgotten, and nobody's fault.
        self._log_start = 0
        self._spans: list[Span] = []
        for length, mark, count in spans:
            first = self.end
            self._spans.append(Span(first, first + length - 1, Mark(mark), count))

    @property
    def end(self) -> int:
        """The offset behind the last record that was ever acquired."""
        return self._spans[-1].last + 1 if self._spans else self.start

    def stored(self) -> tuple[int, tuple[tuple[int, int, int], ...]]:
        """What has to be stored: where it begins, and the spans from there on.

        A delivery that is under way counts, but never makes a record to be given up.
        """
        kept: list[tuple[int, int, int]] = []
        limit = self.settings.deliveries_max - 1
        for span in self._spans:
            mark, count = span.mark, span.count
            if mark is Mark.ACQUIRED:
                mark, count = Mark.AVAILABLE, min(count, max(limit, 0))
            if kept and kept[-1][1:] == (mark, count):
                kept[-1] = (kept[-1][0] + span.length, mark, count)
            else:
                kept.append((span.length, int(mark), count))
        return self.start, tuple(kept)

    def spans(self) -> Iterator[Span]:
        """The records in flight."""
        return iter(self._spans)

    @property
    def next_deadline_ms(self) -> float | None:
        """When the next lock ends."""
        locks = [span.lock_ms for span in self._spans if span.mark is Mark.ACQUIRED]
        return min(locks, default=None)

    # --- acquiring ------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int | None:
        """Where to read for records to acquire; None if nothing can be acquired now."""
        for span in self._spans:
            if span.mark is Mark.AVAILABLE:
                return span.first
        return self.end if self.end - self.start < self.settings.in_flight_max else None

    def acquire(
        self,
        member: str,
        read_from: int,
        batches: Iterable[Batch],
        *,
        records_max: int,
        strict: bool,
        now_ms: float,
    ) -> list[Acquired]:
        """Gives a member what is available in these batches, which were read from `read_from` on.

        A batch is given whole, beyond `records_max` and the room in flight, unless `strict`; but
        never more than `in_flight_max` records of it: each may get a mark of its own.
        """
        taken: list[Acquired] = []
        left, at = records_max, read_from
        for batch in batches:
            if left <= 0:
                break
            if batch.first > at:
                self._gone(at, batch.first - 1)
            at = batch.last + 1
            if batch.skip:
                self._gone(batch.first, batch.last)
                continue

            first = max(batch.first, read_from)
            for span in self._take(first, batch.last, left if strict else None):
                span.mark, span.member = Mark.ACQUIRED, member
                span.count += 1
                span.lock_ms = now_ms + self.settings.lock_ms
                taken.append(Acquired(span.first, span.last, span.count))
                left -= span.length
                self.counts.acquired += span.length
        self._settle()
        return taken

    def _take(self, first: int, last: int, limit: int | None) -> list[Span]:
        """The available spans of this range, at most `limit` records; cut to fit."""
        found: list[Span] = []
        left = limit
        for span in self._cut(first, min(last, self.end - 1)):
            if span.mark is not Mark.AVAILABLE or left == 0:
                continue
            if left is not None and span.length > left:
                span = self._cut(span.first, span.first + left - 1)[0]
            found.append(span)
            left = None if left is None else left - span.length

        room = self.settings.in_flight_max - (self.end - self.start)
        if last < self.end or left == 0 or room <= 0:
            return found
        if first > self.end:
            raise AssertionError(f"acquired from {first}, behind the end {self.end}")
        most = self.settings.in_flight_max if left is None else min(left, room)
        new_last = min(last, self.end + most - 1)
        made = Span(self.end, new_last, Mark.AVAILABLE, 0)
        self._spans.append(made)
        found.append(made)
        return found

    def _gone(self, first: int, last: int) -> None:
        """These records are not to be delivered: what is not anybody's is done with."""
        for span in self._cut(first, min(last, self.end - 1)):
            if span.mark is Mark.AVAILABLE:
                span.mark = Mark.ARCHIVED
        if first <= self.end <= last:
            self._spans.append(Span(self.end, last, Mark.ARCHIVED, 0))

    # --- what became of them --------------------------------------------------------------------

    def acknowledge(
        self, member: str, said: Sequence[Acknowledgement], *, now_ms: float
    ) -> ShareError:
        """Takes over what a member says, all of it or nothing.

        What lies before the log's start is forgotten, and passed over.
        """
        self.expire(now_ms=now_ms)
        before = -1
        for first, last, kinds in said:
            length = last - first + 1
            fits = before < first <= last and len(kinds) in (1, length)
            if not fits or not _KINDS.issuperset(kinds):
                return ShareError.INVALID_REQUEST
            if Acknowledge.RENEW in kinds and not self.settings.renews:
                return ShareError.RENEW_OFF
            before = last
            if not self._has(member, max(first, self._log_start), last):
                return ShareError.INVALID_RECORD_STATE

        for first, last, kinds in said:
            runs = [((first, last), kinds[0])] if len(kinds) == 1 else _runs(first, kinds)
            for (begin, end), kind in runs:
                self._decide(max(begin, self._log_start), end, kind, now_ms)
            self.dirty = self.dirty or any(kind != Acknowledge.RENEW for kind in kinds)
        self._settle()
        return ShareError.NONE

    def _has(self, member: str, first: int, last: int) -> bool:
        """Whether the member has the lock of all these records."""
        if first > last:
            return True
        if first < self.start or last >= self.end:
            return False
        return all(
            span.mark is Mark.ACQUIRED and span.member == member
            for span in self._within(first, last)
        )

    def _decide(self, first: int, last: int, kind: int, now_ms: float) -> None:
        for span in self._cut(first, last):
            if kind == Acknowledge.ACCEPT:
                span.mark = Mark.ACKNOWLEDGED
                self.counts.accepted += span.length
            elif kind == Acknowledge.GAP:
                span.mark = Mark.ARCHIVED
            elif kind == Acknowledge.REJECT:
                self._give_up(span)
                self.counts.rejected += span.length
            elif kind == Acknowledge.RENEW:
                span.lock_ms = now_ms + self.settings.lock_ms
            else:
                self._release(span)
                self.counts.released += span.length

    def release_all(self, member: str) -> bool:
        """A member's session ended: others can have what it had; whether it had anything.

        The delivery counts, as with Kafka: a record on which members fail would else never end.
        """
        found = [s for s in self._spans if s.mark is Mark.ACQUIRED and s.member == member]
        for span in found:
            self._release(span)
            self.counts.released += span.length
        self._settle()
        self.dirty = self.dirty or bool(found)
        return bool(found)

    def expire(self, *, now_ms: float) -> bool:
        """Locks that are over: others can have the records; whether there were any."""
        over = [s for s in self._spans if s.mark is Mark.ACQUIRED and s.lock_ms <= now_ms]
        for span in over:
            self._release(span)
            self.counts.expired += span.length
        if over:
            self._settle()
            self.dirty = True
        return bool(over)

    def _release(self, span: Span) -> None:
        span.member = ""
        if span.count >= self.settings.deliveries_max:
            self._give_up(span)
            self.counts.exhausted += span.length
        else:
            span.mark = Mark.AVAILABLE

    def _give_up(self, span: Span) -> None:
        span.mark = Mark.ARCHIVING if self.settings.dead_letters else Mark.ARCHIVED

    # --- dead letters, and the end of the log ---------------------------------------------------

    def dying(self) -> list[Acquired]:
        """Records that wait for their dead letters."""
        found = (span for span in self._spans if span.mark is Mark.ARCHIVING)
        return [Acquired(span.first, span.last, span.count) for span in found]

    def buried(self, first: int, last: int) -> None:
        """The dead letters of these are stored."""
        for span in self._cut(first, last):
            if span.mark is Mark.ARCHIVING:
                span.mark = Mark.ARCHIVED
                self.counts.dead_letters += span.length
        self._settle()
        self.dirty = True

    def trim(self, log_start: int) -> bool:
        """The log begins here now; whether that changes anything."""
        self._log_start = max(self._log_start, log_start)
        if log_start <= self.start:
            return False
        self._cut(self.start, min(log_start, self.end) - 1)
        self._spans = [span for span in self._spans if span.first >= log_start]
        self.start = log_start
        self._settle()
        self.dirty = True
        return True

    # --- spans ----------------------------------------------------------------------------------

    def _at(self, offset: int) -> int:
        return bisect_right(self._spans, offset, key=lambda span: span.first) - 1

    def _within(self, first: int, last: int) -> list[Span]:
        """The spans that have a part in this range."""
        if not self._spans or last < first:
            return []
        return self._spans[max(self._at(first), 0) : self._at(last) + 1]

    def _cut(self, first: int, last: int) -> list[Span]:
        """The spans of this range, of which the first and the last are cut to fit."""
        first = max(first, self.start)
        if last < first:
            return []
        self._split(first)
        self._split(last + 1)
        return self._within(first, last)

    def _split(self, offset: int) -> None:
        """Makes a span begin at this offset."""
        if not self.start < offset < self.end:
            return
        at = self._at(offset)
        span = self._spans[at]
        if span.first == offset:
            return
        rest = Span(offset, span.last, span.mark, span.count, span.member, span.lock_ms)
        span.last = offset - 1
        self._spans.insert(at + 1, rest)

    def _settle(self) -> None:
        """Goes on behind what is done with, and puts together what stands the same."""
        kept: list[Span] = []
        for span in self._spans:
            if not kept and span.mark in DONE:
                self.start = span.last + 1
                continue
            last = kept[-1] if kept else None
            if last is not None and _alike(last, span):
                last.last = span.last
            else:
                kept.append(span)
        self._spans = kept


def _alike(one: Span, other: Span) -> bool:
    if one.mark is not other.mark:
        return False
    if one.mark in DONE:
        return True
    return one.mark is Mark.AVAILABLE and one.count == other.count


def _runs(first: int, kinds: Sequence[int]) -> Iterator[tuple[tuple[int, int], int]]:
    """Ranges of the same kind."""
    begin = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[begin]:
            yield (first + begin, first + at - 1), kinds[begin]
            begin = at
