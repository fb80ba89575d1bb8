"""Which entries a store has, and where; shared by the writing thread and the readers.

One lock covers the tables, but never a read of entries from the disk. A segment that is dropped
while a reader uses it keeps its file open until the last reader has finished.
"""

import errno
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from heapq import merge
from itertools import islice
from typing import NamedTuple

from dovetail.errors import Damaged, EntryUnknown, LedgerUnknown
from dovetail.storage.disk.commands import Cut, CutSegment
from dovetail.storage.disk.files import Disk
from dovetail.storage.disk.frame import RECORD_BYTES
from dovetail.storage.disk.run import Row, Rows, Run, load_rows
from dovetail.storage.disk.segment import (
    Segment,
    index_name,
    scan_runs,
    segment_name,
    write_index,
)
from dovetail.storage.held import HELD_SPANS_MAX, Held, Span, joined, without
from dovetail.storage.identifiers import Entry, EntryId, Term

#: Neighbouring entries are read in one go when no more than this lies between them.
READ_GAP_BYTES_MAX = 64 * 1024

#: Rows of sealed runs that are kept in memory: 16 MiB is a million entries.
ROWS_CACHE_BYTES_MAX = 16 * 1024 * 1024


class Stretch(NamedTuple):
    """Entries that lie near each other in one segment."""

    segment: Segment
    rows: list[Row]


class EntryIndex:
    """The runs of every live ledger."""

    def __init__(
        self, disk: Disk, segments: dict[int, Segment], *, deleted: Container[int]
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._ledgers: dict[int, list[Run]] = {}
        #: Entries that were found not to check, by ledger, with the segment and position.
        self._lost: dict[int, dict[int, tuple[int, int]]] = {}
        self._rows_cache: OrderedDict[tuple[int, int], Rows] = OrderedDict()
        self._rows_cache_bytes = 0
        self.lock = threading.RLock()
        for segment in segments.values():
            for run in segment.runs:
                if run.ledger not in deleted:
                    self.add(run)

    # Changed by the writing thread

    def add(self, run: Run) -> None:
        """Makes a run known; its ledger lives."""
        with self.lock:
            self._ledgers.setdefault(run.ledger, []).append(run)

    def forget_ledger(self, ledger: int) -> set[int]:
        """The ledger is deleted; returns the segments in which it lay."""
        with self.lock:
            self._lost.pop(ledger, None)
            return {run.segment for run in self._ledgers.pop(ledger, [])}

    def forget_segment(self, segment: Segment) -> None:
        """What lives in the segment lies elsewhere too, from now on only there."""
        with self.lock:
            for ledger in {run.ledger for run in segment.runs} & self._ledgers.keys():
                runs = self._ledgers[ledger]
                self._ledgers[ledger] = [run for run in runs if run.segment != segment.number]
                lost = self._lost.get(ledger, {})
                for entry in [e for e, place in lost.items() if place[0] == segment.number]:
                    del lost[entry]
            segment.runs.clear()

    def drop(self, segment: Segment) -> bool:
        """Takes the segment out; True if it has no reader, so that its file can be closed."""
        with self.lock:
            del self._segments[segment.number]
            segment.dropped = True
            return segment.readers == 0

    # Asked by anybody

    def has(self, ledger: int) -> bool:
        """Whether the ledger has entries here."""
        return ledger in self._ledgers

    def ledgers(self) -> set[int]:
        """All ledgers with entries here."""
        with self.lock:
            return set(self._ledgers)

    def entry_last(self, ledger: int) -> int | None:
        """The highest entry of the ledger."""
        with self.lock:
            runs = self._ledgers.get(ledger)
            return max(run.last for run in runs) if runs else None

    def place(self, ledger: int, entry: int) -> tuple[Segment, Row] | None:
        """Where the entry lies, or None."""
        with self.lock:
            found = self._find(ledger, entry)
            if found is None:
                return None
            run, rows, at = found
            return self._segments[run.segment], rows.row(at)

    def rows(self, run: Run) -> Rows:
        """The rows of a run, from memory or from the index file."""
        with self.lock:
            return self._rows(run)

    def held(self, ledger: int, *, first: int, last: int) -> Held:
        """What is here of the entries from `first` to `last`, `HELD_SPANS_MAX` spans at most."""
        with self.lock:
            runs = [r for r in self._ledgers.get(ledger, ()) if r.first <= last and r.last >= first]
            spans = joined(merge(*(self._spans(run, first, last) for run in runs)))
            found = list(islice(spans, HELD_SPANS_MAX + 1))
            lost = sorted(
                Span(entry, entry)
                for entry in self._lost.get(ledger, {})
                if not self._is_here(ledger, entry)
            )
        more = EntryId(found[-1].first) if len(found) > HELD_SPANS_MAX else None
        whole = without(found[:HELD_SPANS_MAX], lost)
        if len(whole) > HELD_SPANS_MAX:  # What was lost has cut spans in two.
            more = EntryId(whole[HELD_SPANS_MAX].first)
        return Held(tuple(whole[:HELD_SPANS_MAX]), more)

    def _spans(self, run: Run, first: int, last: int) -> Iterator[Span]:
        if run.last - run.first + 1 == run.count:
            yield Span(max(first, run.first), min(last, run.last))
            return
        entries = self._rows(run).entries
        for at in range(bisect_left(entries, first), len(entries)):
            if entries[at] > last:
                return
            yield Span(entries[at], entries[at])

    # Damage

    def note_lost(self, ledger: int, row: Row, *, segment: int) -> bool:
        """The entry does not check any more where it lies; True if that was known."""
        place = (segment, row.position)
        with self.lock:
            lost = self._lost.setdefault(ledger, {})
            known = lost.get(row.entry) == place
            lost[row.entry] = place
            return known

    def ledgers_with_loss(self) -> set[int]:
        """The ledgers of which an entry that was here cannot be read any more."""
        with self.lock:
            found = {
                ledger
                for ledger, entries in self._lost.items()
                if any(not self._is_here(ledger, entry) for entry in entries)
            }
            for segment in self._segments.values():
                found |= segment.holes.keys() & self._ledgers.keys()
            return found

    def in_hole(self, ledger: int, entry: int) -> bool:
        """Whether the entry may have lain where nothing tells any more what did."""
        with self.lock:
            return any(
                hole.first <= entry <= hole.last
                for segment in self._segments.values()
                for hole in segment.holes.get(ledger, ())
            )

    def _is_here(self, ledger: int, entry: int) -> bool:
        """Whether an entry that was lost in one place has been stored in another since."""
        found = self._find(ledger, entry)
        if found is None:
            return False
        run, rows, at = found
        return (run.segment, rows.positions[at]) != self._lost[ledger][entry]

    def read(self, ledger: int, first: int, *, last: int, bytes_max: int) -> list[Entry]:
        """Entries from `first` on without a gap. Raises as `LedgerStore.read`."""
        with self._kept_open(ledger, first, last=last, bytes_max=bytes_max) as stretches:
            return [entry for stretch in stretches for entry in self._read(ledger, stretch)]

    def _read(self, ledger: int, stretch: Stretch) -> list[Entry]:
        try:
            return _read_stretch(stretch)
        except Damaged:
            bad = [row for row in stretch.rows if not stretch.segment.checks(row)]
            for row in bad:
                self.note_lost(ledger, row, segment=stretch.segment.number)
            if bad:
                raise
            # What the disk cannot read lies between them.
            return [
                e for row in stretch.rows for e in _read_stretch(Stretch(stretch.segment, [row]))
            ]

    @contextmanager
    def _kept_open(
        self, ledger: int, first: int, *, last: int, bytes_max: int
    ) -> Iterator[list[Stretch]]:
        """Where entries from `first` on lie, without a gap; their files stay open meanwhile."""
        with self.lock:
            found = self._stretches(ledger, first, last, bytes_max)
            for stretch in found:
                stretch.segment.readers += 1
        try:
            yield found
        finally:
            self._let_go([segment for segment, _ in found])

    def _let_go(self, segments: list[Segment]) -> None:
        """Ends a read of each of them, and of the list; again, it does nothing."""
        with self.lock:
            while segments:
                segment = segments.pop()
                segment.readers -= 1
                if segment.dropped and segment.readers == 0:
                    segment.file.close()

    def cut(self, active: Segment) -> Cut:
        """All segments as they are, kept open. Asked by the writing thread, between two groups."""
        with self.lock:
            held = list(self._segments.values())
            for segment in held:
                segment.readers += 1
        found = (
            CutSegment(
                segment_name(segment.number),
                segment.file,
                segment.position if segment is active else segment.file.size(),
            )
            for segment in held
        )
        return Cut(tuple(found), lambda: self._let_go(held))

    def _stretches(self, ledger: int, first: int, last: int, bytes_max: int) -> list[Stretch]:
        if ledger not in self._ledgers:
            raise LedgerUnknown(f"ledger {ledger} is not on this storage node")

        stretches: list[Stretch] = []
        lost = self._lost.get(ledger, {})
        entry, taken = first, 0
        while entry <= last and (taken < bytes_max or not taken):
            found = self._find(ledger, entry)
            if found is None:
                break
            run, rows, at = found
            end = -1
            while at < len(rows) and entry <= last and (taken < bytes_max or not taken):
                row = rows.row(at)
                if row.entry != entry:
                    break
                if end >= 0 and lost.get(entry) == (run.segment, row.position):
                    break  # It may have been stored anew since: the newest place is read.
                if not 0 <= row.position - end <= READ_GAP_BYTES_MAX or end < 0:
                    stretches.append(Stretch(self._segments[run.segment], []))
                stretches[-1].rows.append(row)
                end = row.position + RECORD_BYTES + row.length
                taken += row.length
                entry += 1
                at += 1

        if not stretches:
            raise EntryUnknown(f"ledger {ledger} has no entry {first} on this storage node")
        return stretches

    def _find(self, ledger: int, entry: int) -> tuple[Run, Rows, int] | None:
        for run in reversed(self._ledgers.get(ledger, ())):
            if run.first <= entry <= run.last:
                rows = self._rows(run)
                at = rows.index_of(entry)
                if at is not None:
                    return run, rows, at
        return None

    def _rows(self, run: Run) -> Rows:
        if run.rows is not None:
            return run.rows
        key = (run.segment, run.rows_at)
        cached = self._rows_cache.get(key)
        if cached is not None:
            self._rows_cache.move_to_end(key)
            return cached
        rows = self._load(run)
        if rows is None:
            return self._rebuilt(run)
        self._rows_cache[key] = rows
        self._rows_cache_bytes += 16 * len(rows)
        while self._rows_cache_bytes > ROWS_CACHE_BYTES_MAX and len(self._rows_cache) > 1:
            _, dropped = self._rows_cache.popitem(last=False)
            self._rows_cache_bytes -= 16 * len(dropped)
        return rows

    def _load(self, run: Run) -> Rows | None:
        """The rows in the index file; None if it cannot be read or fails its checksum."""
        try:
            file = self._disk.open(index_name(run.segment))
            try:
                return load_rows(file, run)
            finally:
                file.close()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EIO):
                return None
            raise

    def _rebuilt(self, wanted: Run) -> Rows:
        """The rows of a run whose index file does not check: its segment is the truth.

        If that is damaged too, what it does not tell any more leaves a hole.
        """
        segment = self._segments[wanted.segment]
        told = _by_ledger(scan_runs(segment)[0])
        for ledger, runs in _by_ledger(segment.runs).items():
            found = told.get(ledger, [])
            if [run.what for run in found] == [run.what for run in runs]:
                for run, same in zip(runs, found, strict=True):
                    run.rows = same.rows
            else:
                segment.holes[ledger] = [Span(run.first, run.last) for run in runs]
                _keep_told(runs, found)

        rows = wanted.rows
        assert rows is not None
        with suppress(OSError):  # Then rows stay in memory, and the next start builds the index.
            if segment.holes:
                self._note_holes(segment)
            else:
                write_index(self._disk, segment, segment.runs)
        return rows

    def _note_holes(self, segment: Segment) -> None:
        """Lets runs go of which nothing is left; the next start must find the damage again.

        An empty index tells it that the segment was cut to its end.
        """
        segment.damaged = True
        segment.runs[:] = [run for run in segment.runs if run.count]
        for ledger in segment.holes.keys() & self._ledgers.keys():
            self._ledgers[ledger] = [run for run in self._ledgers[ledger] if run.count]
        index = self._disk.open(index_name(segment.number))
        try:
            index.truncate(0)
            index.sync()
        finally:
            index.close()


def _by_ledger(runs: Iterable[Run]) -> dict[int, list[Run]]:
    found: dict[int, list[Run]] = {}
    for run in runs:
        found.setdefault(run.ledger, []).append(run)
    return found


def _keep_told(runs: Iterable[Run], told: Iterable[Run]) -> None:
    """Leaves in the runs of a ledger what its segment still tells, wherever it lies there."""
    known = {row.entry: row for run in told if run.rows is not None for row in run.rows}
    for run in runs:
        ids = sorted(entry for entry in known if run.first <= entry <= run.last)
        run.rows = Rows.of(known[entry] for entry in ids)
        run.count = len(ids)
        run.first, run.last = (ids[0], ids[-1]) if ids else (0, -1)
        run.payload_bytes = sum(run.rows.lengths)


def _read_stretch(stretch: Stretch) -> list[Entry]:
    """The entries of a stretch, read in one go and sliced. Raises `Damaged`."""
    segment, rows = stretch
    start = rows[0].position
    end = rows[-1].position + RECORD_BYTES + rows[-1].length
    data = segment.read(start, end - start)
    entries = []
    for row in rows:
        record, payload = segment.decode(data, row.position - start, row)
        entries.append(
            Entry(EntryId(row.entry), Term(record.term), EntryId(record.confirmed), payload)
        )
    return entries
