"""The core of a storage node: decides, writes, syncs; one thread, no asyncio.

Promises:
- An append is answered only when the entry is on disk (`durability = "sync"`).
- The same entry again is a success; another entry under the same id is refused (L5).
- Once `fence(term)` was answered, no append with a lower term is ever acknowledged: the fence is a
  record like any other, synced before the answer.
- No space: the group is taken back whole; the node continues to read, delete and fence.
- Too many open files: the group is refused, and the next one tries again.
- A failed sync: whatever waited for it is *uncertain*, and the node goes out of service. It never
  repeats the sync, because the system forgets which pages failed. A restart reads the disk anew.

What a command gets, depending on what it finds:

    ledger deleted                      LedgerUnknown
    term below the fence                Fenced
    id exists, same bytes               success, nothing is written
    id exists, other bytes              EntryConflict
    id exists, bytes damaged            stored anew
    disk below its reserve              DiskFull (appends only; deletes free space)

Not here: which entries exist on other nodes (reader.py, writer.py); when to commit (node.py).
Other threads may read at any time (index.py).
"""

import random
from collections.abc import Sequence
from time import perf_counter

from dovetail.buffers import Buffer
from dovetail.errors import (
    Damaged,
    DiskFull,
    DovetailError,
    EntryConflict,
    EntryUnknown,
    Fenced,
    InvalidInput,
    LedgerUnknown,
    StorageOut,
    Unavailable,
    Uncertain,
)
from dovetail.storage.disk.commands import (
    Append,
    Applied,
    Command,
    DeleteLedger,
    Fence,
    FilesGone,
    GroupReport,
    LetDamageGo,
    LookForFiles,
    Outcome,
    TakeCut,
)
from dovetail.storage.disk.compaction import Compaction
from dovetail.storage.disk.doubt import Doubts
from dovetail.storage.disk.files import NO_ROOM, PASSING, Disk
from dovetail.storage.disk.frame import PAYLOAD_BYTES_MAX, RECORD_BYTES, Kind, Record
from dovetail.storage.disk.group import Group, encode_group
from dovetail.storage.disk.index import EntryIndex
from dovetail.storage.disk.options import Durability, StoreSettings
from dovetail.storage.disk.recovery import RecoveryReport, recover_segments
from dovetail.storage.disk.room import Room
from dovetail.storage.disk.run import Row, RunSet
from dovetail.storage.disk.segment import (
    MARK,
    Segment,
    create_segment,
    index_name,
    segment_name,
    write_index,
)
from dovetail.storage.disk.synced import Synced, note_synced
from dovetail.storage.held import Held
from dovetail.storage.identifiers import NO_ENTRY, Entry, EntryId, LedgerId, LedgerState, Term


class LedgerStore:
    """Entries of many ledgers in one sequence of segment files."""

    def __init__(self, disk: Disk, settings: StoreSettings, rng: random.Random) -> None:
        """Recovers what is on the disk; `report` says what was found.

        Raises `Damaged`, `DiskFull`, or `StorageOut` if the disk cannot be read or written.
        """
        self._disk = disk
        self._settings = settings
        self._rng = rng
        self.out_because: str | None = None
        #: Why the last write found no room, as under a quota; None since one did.
        self.full_because: str | None = None
        self.group_report = GroupReport()
        self._room = Room(disk, settings)

        try:
            recovered = recover_segments(disk)
            self.report: RecoveryReport = recovered.report
            self._state = recovered.state
            self._group = recovered.group
            self._active_runs = recovered.active_runs
            self.marked = recovered.marked
            self._active = recovered.active or self._create_segment(recovered.number_next)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise DiskFull(
                    "no space to start: free some on the disk of the data folder"
                ) from error
            raise StorageOut(f"cannot open the data folder: {error}") from error

        self._note_synced(self._active.position)  # A start has synced all that it found.
        self._active.runs = self._active_runs.runs
        self._segments = {s.number: s for s in [*recovered.sealed, self._active]}
        self._reserved = self._active.file.size()
        self._index = EntryIndex(disk, self._segments, deleted=self._state.deleted)
        self.doubts = Doubts(self._index, self._segments, self.report)

        self._compaction = Compaction(
            self._index,
            self._segments,
            live_ratio=settings.compaction_live_ratio,
            write=self._write,
            settle=self._settle,
            drop=self._drop_if_dead,
        )
        for segment in list(self._segments.values()):
            self._drop_if_dead(segment)

    # Writing

    def commit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Decides, writes and syncs; an outcome for each command, in order."""
        if self.out_because is not None:
            return [StorageOut(self.out_because) for _ in commands]

        group = Group()
        has_room = self._room.was_there() or self.has_room()
        outcomes = [self._decide(command, group, has_room) for command in commands]
        self.group_report = GroupReport()
        if group.records:
            failure = self._write(group.records)
            if failure is not None:
                return [o if isinstance(o, DovetailError) else failure for o in outcomes]

        for at, command in enumerate(commands):
            if outcomes[at] is None and not isinstance(command, Append):
                try:
                    outcomes[at] = self._apply(command)
                except Damaged as error:  # The fence holds; only its ledger cannot be read.
                    outcomes[at] = error
        return outcomes

    def _decide(self, command: Command, group: Group, has_room: bool) -> Outcome:
        if isinstance(command, LetDamageGo | TakeCut | LookForFiles):
            return None
        ledger = command.ledger
        if isinstance(command, DeleteLedger):
            if ledger not in self._state.deleted and ledger not in group.deleted:
                group.deleted.add(ledger)
                group.records.append((Record(Kind.DELETE, ledger, 0, 0, 0), b""))
            return None

        if ledger in self._state.deleted or ledger in group.deleted:
            return LedgerUnknown(f"ledger {ledger} is deleted")
        fenced = max(self._state.fences.get(ledger, 0), group.fences.get(ledger, 0))
        if command.term < fenced:
            return Fenced(f"term {command.term} refused, ledger {ledger} is fenced at {fenced}")
        if isinstance(command, Fence):
            if command.term > fenced:
                group.fences[ledger] = command.term
                group.records.append((Record(Kind.FENCE, ledger, 0, command.term, 0), b""))
            return None
        return self._decide_append(command, group, has_room)

    def _decide_append(self, command: Append, group: Group, has_room: bool) -> Outcome:
        ledger, entry, payload = command.ledger, command.entry, command.payload
        if not 0 < len(payload) <= PAYLOAD_BYTES_MAX or entry < 0:
            return InvalidInput(f"entry {entry} of {len(payload)} bytes does not fit a segment")
        try:
            known = group.entries.get((ledger, entry)) or self._stored(ledger, entry)
        except OSError as error:
            return Unavailable(f"entry {entry} of ledger {ledger} cannot be compared: {error}")
        if known is not None:
            if bytes(known) == bytes(payload):
                return None
            return EntryConflict(f"ledger {ledger} has another entry {entry}")
        if not has_room:
            return DiskFull(
                f"less than {self._settings.disk_free_bytes_min} bytes free on the disk; "
                "free some room, or lower the retention of topics"
            )
        record = Record(Kind.ENTRY, ledger, entry, command.term, command.confirmed)
        group.entries[ledger, entry] = payload
        group.records.append((record, payload))
        return None

    def _stored(self, ledger: int, entry: int) -> Buffer | None:
        """The payload that is stored under this id; None also if it cannot be read any more.

        Then the append stores it anew: an id has one payload for ever, on whichever node.
        """
        place = self._index.place(ledger, entry)
        if place is None:
            return None
        try:
            return place[0].read_entry(place[1])[1]
        except Damaged:
            self._index.note_lost(ledger, place[1], segment=place[0].number)
            return None

    def _write(self, records: list[tuple[Record, Buffer]]) -> DovetailError | None:
        """Writes and syncs one group, then shows it to readers; an error if it is not stored."""
        size = sum(RECORD_BYTES + len(payload) for _, payload in records)
        started = perf_counter()
        try:
            full = self._active.position + size > self._settings.segment_bytes
            full = full or self._active_runs.rows >= self._settings.segment_entries
            if full and self._active_runs.runs:
                self._roll()
        except OSError as error:
            if error.errno in PASSING:  # Nothing was written, and the old segment is as it was.
                return Unavailable(f"no new segment ({error.strerror}); it is tried again")
            return self._take_back(error)
        if self.out_because is not None:
            return StorageOut(self.out_because)

        try:
            rows = self._write_records(records, size)
        except OSError as error:
            return self._take_back(error)

        written = perf_counter()
        try:
            if self._settings.durability is Durability.SYNC:
                self._active.file.sync()
        except OSError as error:
            self._go_out("sync", error)
            return Uncertain(f"may or may not be stored: {self.out_because}")

        synced = perf_counter()
        self.full_because = None
        self._active.position += size
        self._group += 1
        self.marked = records[-1][0].kind is Kind.MARK
        with self._index.lock:
            for record, row in rows:
                created = self._active_runs.add(record.ledger, row, again=record.again)
                if created is not None:
                    self._index.add(created)

        report = self.group_report
        report.entries, report.payload_bytes = len(rows), sum(row.length for _, row in rows)
        report.write_s, report.sync_s = written - started, synced - written
        return None

    def mark(self) -> None:
        """Notes on the disk that the last group is there, so that damage to it is seen as damage.

        A disk without room gets no mark; the next group tells the same.
        """
        if self.marked or self.out_because is not None:
            return
        if self._synced_for_sure() and self.has_room():
            segment, position = self._active, self._active.position
            if self._write([(MARK, b"")]) is None and segment is self._active:
                self._note_synced(position)

    def _note_synced(self, position: int) -> None:
        note_synced(self._disk, Synced(self._active.number, position))

    def has_room(self) -> bool:
        return self._room.is_there()

    def _write_records(
        self, records: list[tuple[Record, Buffer]], size: int
    ) -> list[tuple[Record, Row]]:
        active = self._active
        if active.position + size > self._reserved:
            room = max(size, min(self._settings.reserve_bytes, self._disk.bytes_free() // 2))
            active.file.reserve(active.position, room)
            self._reserved = active.position + room
        buffers, rows = encode_group(
            records, segment=active, group=self._group, newest_of=self._newest_of
        )
        active.file.write(active.position, buffers)
        return rows

    def _newest_of(self, ledger: int) -> int | None:
        known = self._active_runs.newest(ledger)
        return self._index.entry_last(ledger) if known is None else known

    def _take_back(self, error: OSError) -> DovetailError:
        """After a failed write: nothing of the group may stay."""
        try:
            self._active.file.truncate(self._active.position)
            self._active.file.sync()
            self._reserved = self._active.position
        except OSError as second:
            self.out_because = f"could not cut a failed write ({second.strerror}); restart the node"
            return Uncertain(f"may or may not be stored: {self.out_because}")
        if error.errno in NO_ROOM:
            self.full_because = f"writes are refused ({error.strerror}); free some room"
            self.marked = False  # The next mark tells whether there is room, if nobody writes.
            return DiskFull("the disk is full; free some room, or lower the retention of topics")
        self._go_out("write", error)
        return StorageOut(self.out_because or "")

    def _go_out(self, what: str, error: OSError) -> None:
        self.out_because = f"a {what} failed ({error.strerror}); check the disk, then restart"

    def _apply(self, command: Applied) -> Outcome:
        if isinstance(command, TakeCut):
            return self._index.cut(self._active)
        if isinstance(command, LetDamageGo):
            return self._let_damage_go(command.settled)
        if isinstance(command, LookForFiles):
            return self._look_for_files()
        if isinstance(command, Fence):
            known = self._state.fences.get(command.ledger, 0)
            self._state.fences[command.ledger] = max(known, command.term)
            try:
                return self.state(command.ledger)
            except OSError as error:
                return Unavailable(f"ledger {command.ledger} cannot be read: {error}")
        self._state.deleted[command.ledger] = self._group
        self._state.fences.pop(command.ledger, None)
        for number in self._index.forget_ledger(command.ledger):
            self._drop_if_dead(self._segments[number])
        return None

    # Segments

    def _create_segment(self, number: int) -> Segment:
        segment = create_segment(
            self._disk,
            number,
            salt=self._rng.getrandbits(32),
            state=self._state,
            group=self._group,
            reserve_bytes=min(self._settings.reserve_bytes, self._disk.bytes_free() // 2),
        )
        self._group += 2
        self.marked = True
        return segment

    def _roll(self) -> None:
        """Goes on in a new segment. The new one is born before the old one is sealed.

        Raises `OSError` if it cannot be; then nothing has changed.
        """
        lying = {run.ledger for segment in self._segments.values() for run in segment.runs}
        self._state.forget_deleted(lying)
        old = self._active
        self._active = self._create_segment(old.number + 1)
        self._reserved = self._active.file.size()
        self._segments[self._active.number] = self._active
        self._active_runs = RunSet(self._active.number)
        self._active.runs = self._active_runs.runs
        try:
            old.file.truncate(old.position)
            old.file.sync()
        except OSError as error:
            self._go_out("sync", error)
            return
        self._note_synced(self._active.position)
        try:
            if not old.damaged:  # Else the next start must find the damage again.
                with self._index.lock:
                    write_index(self._disk, old, old.runs)
        except OSError:
            pass  # Its rows stay in memory; the next start builds the index.
        self._drop_if_dead(old)

    def _drop_if_dead(self, segment: Segment) -> None:
        """Removes a sealed segment in which no live ledger has an entry."""
        if segment is self._active or segment.damaged:
            return
        if any(self._index.has(run.ledger) for run in segment.runs):
            return
        idle = self._index.drop(segment)
        self._compaction.forget(segment)
        self._disk.remove(index_name(segment.number))
        self._disk.sync_names()  # An index without its segment is one that was lost (recovery.py).
        self._disk.remove(segment_name(segment.number))
        if idle:
            segment.file.close()

    def compact_step(self) -> bool:
        """Moves some live entries out of a segment that is mostly dead; True if there is more.

        Raises nothing that a caller must handle: no room or damage ends the attempt.
        """
        if self.out_because is not None:
            return False
        more = self._compaction.step(self._active)
        if self._compaction.lets_damage_go and not self.damaged:
            self._compaction.lets_damage_go = False
            self.report.damaged.clear()
        return more

    def _settle(self) -> bool:
        """What was moved must be on the disk before the place that it came from goes.

        It must not look torn either: it was acknowledged long ago.
        """
        self.mark()
        return self.out_because is None

    def _synced_for_sure(self) -> bool:
        """Whether all that was written is on the disk, be it asked for by each group or not."""
        if self._settings.durability is Durability.OS:
            try:
                self._active.file.sync()
            except OSError as error:
                self._go_out("sync", error)
                return False
        return True

    # Damage

    @property
    def damaged(self) -> bool:
        """Whether something on the disk does not check, be it known what or not."""
        return any(segment.damaged for segment in tuple(self._segments.values()))

    def _let_damage_go(self, settled: frozenset[LedgerId]) -> DovetailError | None:
        try:
            if self._active.damaged:
                self._roll()
        except OSError as error:
            return Unavailable(f"no new segment ({error.strerror}); tried again later")
        if self.out_because is not None:
            return StorageOut(self.out_because)
        self.doubts.settle()
        self._compaction.lets_damage_go = True
        self._compaction.settled = settled
        return None

    def _look_for_files(self) -> Outcome:
        try:
            names = set(self._disk.names())
            if segment_name(self._active.number) not in names:
                self._roll()
        except OSError as error:
            return Unavailable(f"the data folder cannot be looked at: {error}")
        for number, segment in self._segments.items():
            segment.removed = segment is not self._active and segment_name(number) not in names
        return FilesGone(tuple(segment_name(n) for n, s in self._segments.items() if s.removed))

    # Reading

    def read(
        self, ledger: LedgerId, first: EntryId, *, last: EntryId, bytes_max: int
    ) -> list[Entry]:
        """Entries from `first` on without a gap, up to `last` and about `bytes_max` (at least one).

        Raises `LedgerUnknown`, `EntryUnknown` if `first` is not here, `Damaged` if an entry does
        not check or may be among what is damaged. Safe from any thread.
        """
        try:
            return self._index.read(ledger, first, last=last, bytes_max=bytes_max)
        except (LedgerUnknown, EntryUnknown):
            if self.doubts.may_have_lost(ledger, first):
                raise Damaged(
                    f"entry {first} of ledger {ledger} may be in a damaged place on the disk"
                ) from None
            raise

    def held(self, ledger: LedgerId, *, first: EntryId, last: EntryId) -> Held:
        """What can be read of the entries from `first` to `last`. Safe from any thread."""
        return self._index.held(ledger, first=first, last=last)

    def state(self, ledger: LedgerId) -> LedgerState:
        """What is known of the ledger; empty if nothing is."""
        fenced = Term(self._state.fences.get(ledger, 0))
        entry_last = self._index.entry_last(ledger)
        if entry_last is None:
            return LedgerState(NO_ENTRY, NO_ENTRY, fenced)
        place = self._index.place(ledger, entry_last)
        assert place is not None
        record, _ = place[0].read_entry(place[1])
        return LedgerState(EntryId(entry_last), EntryId(record.confirmed), fenced)

    def ledgers(self) -> set[LedgerId]:
        """The ledgers that are not deleted."""
        return {LedgerId(ledger) for ledger in self._index.ledgers() | self._state.fences.keys()}

    def bytes_on_disk(self) -> int:
        """Bytes in segment files."""
        return sum(segment.position for segment in self._segments.values())

    def close(self) -> None:
        """Syncs what is open and gives the files back."""
        self.mark()
        if self.out_because is None:
            self._active.file.truncate(self._active.position)
            self._active.file.sync()
        for segment in self._segments.values():
            segment.file.close()
