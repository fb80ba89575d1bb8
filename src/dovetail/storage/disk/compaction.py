"""Frees space: moves the live entries of a mostly dead segment, then deletes the segment.

A damaged segment is kept unchanged, because what is intact in it may be the last copy. Once
everything that this node should hold is known to be readable (wholeness.py), its live entries are
moved like any others, except those that were stored anew since: they stay where they are now.

Survives: a crash at any point. A moved entry is on disk before its old segment goes. Until then it
lies in two places, and the newer one is read.

A segment whose file somebody removed is moved too, while this process still has the file open.
"""

from collections.abc import Callable, Iterator

from dovetail.buffers import Buffer
from dovetail.errors import Damaged, DovetailError
from dovetail.storage.disk.frame import Record
from dovetail.storage.disk.index import EntryIndex
from dovetail.storage.disk.run import Row, Run, bytes_in_file
from dovetail.storage.disk.segment import Segment

#: Bytes that one step moves, so that appends wait little behind it.
COMPACTION_STEP_BYTES = 4 * 1024 * 1024


class Compaction:
    """One segment at a time, step by step, on the store's thread."""

    def __init__(
        self,
        index: EntryIndex,
        segments: dict[int, Segment],
        *,
        live_ratio: float,
        write: Callable[[list[tuple[Record, Buffer]]], DovetailError | None],
        settle: Callable[[], bool],
        drop: Callable[[Segment], None],
    ) -> None:
        """`write` stores records; `settle` is true when they are on the disk and marked so."""
        self._index = index
        self._segments = segments
        self._live_ratio = live_ratio
        self._write = write
        self._settle = settle
        self._drop = drop
        self._victim: Segment | None = None
        self._moving: list[tuple[Run, Iterator[Row] | None]] = []
        #: Damaged segments go too, with what cannot be read of these ledgers.
        self.lets_damage_go = False
        self.settled: frozenset[int] = frozenset()

    def forget(self, segment: Segment) -> None:
        """The segment is gone by another way."""
        if segment is self._victim:
            self._give_up()

    def step(self, active: Segment) -> bool:
        """Moves some live entries; True if there is more. No room or damage ends the attempt."""
        if self._victim is None and not self._pick(active):
            return False
        victim = self._victim
        assert victim is not None
        try:
            records = self._next_records(victim)
        except (Damaged, OSError):
            self._give_up()
            self.lets_damage_go = False
            return False
        if records and self._write(records) is not None:
            self._give_up()
            return False
        if not self._moving:
            if self._has_needed_holes(victim):
                self._give_up()
                self.lets_damage_go = False
                return False
            if not self._settle():
                return False
            self._give_up()
            self._index.forget_segment(victim)
            victim.damaged = False
            self._drop(victim)
        return True

    def _next_records(self, victim: Segment) -> list[tuple[Record, Buffer]]:
        records: list[tuple[Record, Buffer]] = []
        moved = 0
        while self._moving and moved < COMPACTION_STEP_BYTES:
            run, rows = self._moving.pop()
            if not self._index.has(run.ledger):
                continue
            rows = iter(self._index.rows(run)) if rows is None else rows
            row = next(rows, None)
            if row is None:
                continue
            self._moving.append((run, rows))
            place = self._index.place(run.ledger, row.entry) if victim.damaged else None
            if place is not None and place != (victim, row):
                continue  # It was stored anew.
            try:
                record, payload = victim.read_entry(row)
            except Damaged:
                known = self._index.note_lost(run.ledger, row, segment=victim.number)
                if known and run.ledger in self.settled:
                    continue
                self._note_lost(victim)
                raise
            records.append((record, payload))
            moved += len(payload)
        return records

    def _note_lost(self, victim: Segment) -> None:
        """Finds all that does not check, so that it is repaired at once and not one by one."""
        for run in [run for run in victim.runs if self._index.has(run.ledger)]:
            for row in self._index.rows(run):
                if not victim.checks(row):
                    self._index.note_lost(run.ledger, row, segment=victim.number)

    def _pick(self, active: Segment) -> bool:
        for segment in self._segments.values():
            if segment is active or segment.readers:
                continue
            if segment.damaged and (not self.lets_damage_go or self._has_needed_holes(segment)):
                continue
            live = [run for run in segment.runs if self._index.has(run.ledger)]
            due = segment.damaged or segment.removed
            if due or bytes_in_file(live) < self._live_ratio * segment.position:
                self._victim = segment
                self._moving = [(run, None) for run in live]
                return True
        return False

    def _has_needed_holes(self, segment: Segment) -> bool:
        """Whether the segment may have lost entries that are not known to be unneeded."""
        live = (ledger for ledger in segment.holes if self._index.has(ledger))
        return any(ledger not in self.settled for ledger in live)

    def _give_up(self) -> None:
        self._victim, self._moving = None, []
