"""The chain: exactly one outcome for each job, however many attempts serve a partition; pure.

An *attempt* works through one input partition of a team, from a snapshot on, with an open end. Any
number of attempts may do so at the same time: a master that was paused wakes up, a task is started
early, Spark runs one twice. They share a producer id, a constant epoch, and for each output
partition one count of sequence numbers that never starts again, modulo 2^31: the *chain*. A broker
stores a batch of the chain only if its number follows the last one there. That is a compare-and-set
on the output partition, and attempts know of each other only what they read there.

Promise: each job has one outcome on the results topic, and what follows from it (jobs of other
teams, a dead letter, the job's next life) is stored once and follows from the *stored* outcome.
A snapshot never lies behind a job whose outcome or follow-ups are missing.

Survives: an attempt that crashes, sleeps or is doubled at any step; answers that are lost; writes
and snapshots that arrive late; a broker that answers success for another attempt's batch.

    a job       running ─decide─► decided ─its row is in the view─► stored ─follow─► ended
                   └───────────── another attempt's row is in the view ──┘

    a place     reading ─► ready ─send─► sent ─answer, refusal or silence─► reading

The rules, by the numbers of the model (docs/teams.md):
- *View* (2, 3). Reading an output partition from its snapshot on to the high watermark makes its
  view; each batch of the chain must follow the one before, else `ChainBroken`. No outcome is
  written before the views of all results partitions are read.
- *Write* (4). At most one unverified batch for a partition: outcomes that the view does not have,
  and follow-ups of outcomes that it has.
- *Verify* (5, 6). An answer only says how far to read: success means nothing until the batch was
  read back. If it lies there byte for byte, its rows are in the view. Otherwise, as after a refusal
  or silence, the view is read on. A row that another attempt stored counts, whatever it says, and
  our own is dropped; what is not there is sent again under the next number.
- *Position* (7). The lowest job whose outcome and follow-ups are not all in the view.
- *Snapshot* (8). For each output partition the first batch that holds a row of a job at or above
  the position, own or another's; else how far it was read. Rows are forgotten below it only.
- *Age* (13). Nothing is sent more than `AGE_S_MAX` after the partition was last read to its end, on
  a clock that counts suspension; so no attempt meets a broker that forgot the producer.

Not here: sockets and clocks (`lane`, `serving`), the form of a snapshot (`snapshot`), and which
partition a row goes to. That must be a function of the stored outcome and of what the chain was
created with: the number of results partitions is in the checkpoint, the numbers of partitions of
other topics are in the outcome's header.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from operator import itemgetter

import msgspec

from dovetail.errors import BatchTooLarge, DovetailError, Uncertain
from dovetail.kafka.client.client import Partition, name_of
from dovetail.kafka.client.producer import EncodedBatch
from dovetail.record_batch import HEADER_BYTES, SEQUENCE_END
from dovetail.spark.decoder import BatchView
from dovetail.teams.chains.rows import BATCH_BYTES, OUTCOME, Row, decode_rows, encode_rows
from dovetail.teams.chains.snapshot import Entry, Snapshot

#: Brokers forget a producer after a day without a batch; an hour is far from that.
AGE_S_MAX = 3600.0
#: A partition that was not read for so long is read on before it is written to.
FRESH_S = 600.0
#: A refusal with nothing new to read: what another attempt has under way must show by then.
STILL_S_MAX = 60.0
#: An entry that is older does not excuse records that retention has removed.
TRUST_MS = 24 * 3_600_000
#: Rows of jobs that ended are dropped from memory when there are so many.
_KNOWN_MAX = 10_000
_job_of = itemgetter(0)


class ChainBroken(DovetailError):
    """Batches of a chain are missing: retention or an operator removed what was still needed."""

    retriable = False


@dataclass(frozen=True, slots=True)
class Read:
    """Read `place` from `start` on, to `end`, or to the high watermark if it is None."""

    place: Partition
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Send:
    """Send the batch, but not after `until_s`."""

    place: Partition
    batch: EncodedBatch
    until_s: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Make what follows from an outcome that is stored, and call `follow` with it."""

    outcome: Row


Effect = Read | Send | Follow
#: A row and where it goes.
Placed = tuple[Partition, Row]


class _State(Enum):
    READING = auto()
    READY = auto()
    SENT = auto()


@dataclass(slots=True)
class _View:
    """What is known of one output partition."""

    entry: Entry
    seen: int
    next: int
    state: _State = _State.READING
    #: Whether it was read to its end at least once.
    known: bool = False
    #: All of the chain that lay there at this time is known.
    known_at_s: float = 0.0
    #: When the current read or send began.
    began_s: float = 0.0
    #: Base offset, number and highest job of each batch of the chain, from the snapshot on.
    batches: deque[tuple[int, int, int]] = field(default_factory=deque)
    #: What is to be written, in order.
    waiting: dict[tuple[int, bytes], Row] = field(default_factory=dict)
    #: What is sent and not verified.
    sent: list[Row] = field(default_factory=list)
    sent_batch: EncodedBatch | None = None
    #: Follow-ups of other attempts, for jobs that this one has not followed up yet.
    rows: dict[int, set[bytes]] = field(default_factory=dict)
    #: Since when refusals have shown nothing new.
    refused_since_s: float | None = None
    #: Of the records of a batch; less where the topic takes less.
    bytes_max: int = BATCH_BYTES


class _Job(msgspec.Struct, gc=False):
    outcome: Row | None = None
    follows: Sequence[Placed] = ()
    #: Rows that follow and are not in the view; None while they are not known.
    open: set[tuple[Partition, bytes]] | None = None
    stored: bool = False


class Chain:
    """One attempt's part in the chain of an input partition."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        producer_id: int,
        results: Iterable[Partition],
        encode: Callable[..., EncodedBatch] = encode_rows,
    ) -> None:
        """`results` are the partitions that outcomes go to: all of them have entries."""
        self._begun = snapshot
        self._producer_id, self._encode = producer_id, encode
        self._results = frozenset(results)
        self._views: dict[Partition, _View] = {}
        self._order: deque[int] = deque()
        self._jobs: dict[int, _Job] = {}
        #: Outcomes of other attempts, for jobs that were not taken yet.
        self._outcomes: dict[int, Row] = {}
        self._taken_to = self._begun_at = snapshot.position
        #: Jobs that have ended since the caller last emptied this.
        self.ended: list[int] = []
        for place, entry in snapshot.entries.items():
            self._add(place, entry)
        missing = self._results - set(self._views)
        if missing:
            raise ChainBroken(f"no entry for {', '.join(map(name_of, sorted(missing)))}")

    # --- what is asked ---------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether jobs can be taken: the views of all results partitions are read."""
        return all(self._views[place].known for place in self._results)

    @property
    def position(self) -> int:
        """The lowest job that has not ended, or behind the last one that was taken."""
        while self._order and self._order[0] not in self._jobs:
            self._order.popleft()
        return self._order[0] if self._order else self._taken_to

    @property
    def in_hand(self) -> int:
        """Jobs that were taken and have not ended."""
        return len(self._jobs)

    @property
    def has_waiting(self) -> bool:
        """Whether rows wait for their partition to become ready."""
        return any(view.waiting for view in self._views.values())

    @property
    def held_back(self) -> int:
        """Jobs from the position on, those that have ended included."""
        return len(self._order)

    def knows(self, place: Partition) -> bool:
        """Whether the chain has an entry for an output partition."""
        return place in self._views

    def snapshot(self, *, now_ms: int) -> Snapshot:
        """What an attempt that begins now has to read."""
        position = self.position
        entries = {}
        for place, view in self._views.items():
            while view.batches and view.batches[0][2] < position:
                view.batches.popleft()
            if not view.known:
                entries[place] = view.entry
                continue
            offset, sequence = view.batches[0][:2] if view.batches else (view.seen, view.next)
            entries[place] = Entry(offset, sequence, position, view.entry.begin, now_ms)
        return replace(self._begun, position=position, entries=entries)

    # --- what happens ----------------------------------------------------------------------------

    def begin(self, *, now_s: float) -> list[Effect]:
        """The attempt begins: all that the snapshot knows of is read."""
        return [self._read(place, now_s) for place in self._views]

    def add(self, place: Partition, entry: Entry, *, now_s: float) -> list[Effect]:
        """An output partition is used for the first time; its entry is committed."""
        self._add(place, entry)
        return [self._read(place, now_s)]

    def take(self, job: int) -> list[Effect]:
        """A job was read from the input; `Follow` comes if its outcome is stored."""
        assert job >= self._taken_to, "jobs are taken in order"
        self._taken_to = job + 1
        self._order.append(job)
        self._jobs[job] = one = _Job()
        outcome = self._outcomes.pop(job, None)
        if outcome is None:
            return []
        one.stored, one.outcome = True, outcome
        return [Follow(outcome)]

    def skip(self, offset_end: int) -> None:
        """Everything before an offset was read: repetitions, and offsets without a record."""
        self._taken_to = max(self._taken_to, offset_end)

    def decide(self, place: Partition, outcome: Row, follows: Sequence[Placed]) -> None:
        """The function has ended. If another attempt's outcome is stored, this one is dropped."""
        assert place in self._results
        assert outcome.name == OUTCOME
        job = self._jobs.get(outcome.job)
        if job is None or job.stored:
            return
        job.outcome, job.follows = outcome, follows
        self._views[place].waiting[outcome.job, OUTCOME] = outcome

    def follow(self, job: int, follows: Sequence[Placed]) -> None:
        """What follows from the stored outcome of a job; all places are known to the chain."""
        one = self._jobs.get(job)
        if one is None or one.open is not None:
            return
        assert one.stored, "only stored outcomes have follow-ups"
        if not follows:
            self._end(job)
            return
        one.open = set()
        for place, row in follows:
            view = self._views[place]
            if row.name in view.rows.get(job, ()):
                continue
            one.open.add((place, row.name))
            view.waiting[job, row.name] = row
        self._end_if_done(job, one)

    def release(self, job: int) -> None:
        """A job ends with the outcome of another, which is in the view (`gathers`)."""
        if self._jobs.pop(job, None) is None:
            return
        for view in self._views.values():
            view.waiting.pop((job, OUTCOME), None)
        self.ended.append(job)

    def send(self, *, now_s: float, now_ms: int) -> list[Effect]:
        """What can be written now."""
        effects: list[Effect] = []
        for place, view in self._views.items():
            if not view.waiting or view.state is not _State.READY:
                continue
            if place in self._results and not self.ready:
                continue
            if now_s - view.known_at_s > FRESH_S:
                effects.append(self._read(place, now_s))
                continue

            rows = list(view.waiting.values())
            batch = self._encode(
                rows,
                partition=self._begun.input[1],
                producer_id=self._producer_id,
                sequence=view.next,
                now_ms=now_ms,
                bytes_max=view.bytes_max,
            )
            view.sent, view.sent_batch = rows[: batch.count], batch
            view.waiting = {(row.job, row.name): row for row in rows[batch.count :]}
            view.state, view.began_s = _State.SENT, now_s
            effects.append(Send(place, batch, view.known_at_s + AGE_S_MAX))
        return effects

    def on_stored(self, place: Partition, offset: int) -> list[Effect]:
        """The broker says that the batch is stored, at an offset; -1 if it does not know where."""
        view = self._views[place]
        if view.state is not _State.SENT or view.sent_batch is None:
            return []
        end = offset + view.sent_batch.count
        # An answer for an old batch says nothing about how far to read. What is known then was so
        # when the batch was sent, at least.
        return [self._read(place, view.began_s, end if offset >= view.seen else None)]

    def on_refused(self, place: Partition, *, reason: str, now_s: float) -> list[Effect]:
        """Refused, lost, or too late to be sent: the partition shows what is stored.

        Raises `Uncertain` if it keeps being refused, and shows nothing new.
        """
        view = self._views[place]
        if view.refused_since_s is None:
            view.refused_since_s = now_s
        elif now_s - view.refused_since_s > STILL_S_MAX:
            raise Uncertain(f"{reason}; nothing new can be read for {STILL_S_MAX:g} s")
        return [self._read(place, now_s)]

    def on_too_large(self, place: Partition, *, reason: str, now_s: float) -> list[Effect]:
        """The topic takes no batch of that size: its rows are sent in smaller ones.

        Raises `BatchTooLarge` about a single row.
        """
        view = self._views[place]
        if view.sent_batch is not None and view.sent_batch.count == 1:
            [row] = view.sent
            raise BatchTooLarge(
                f"{reason}: job {row.job} makes a record of {len(view.sent_batch.data)} bytes "
                f"there. Raise max.message.bytes of topic {place[0]!r}"
            )
        if view.sent_batch is not None:
            view.bytes_max = max(1, (len(view.sent_batch.data) - HEADER_BYTES) // 2)
        return [self._read(place, now_s)]

    def on_read(
        self, place: Partition, batches: Iterable[BatchView], *, seen: int, log_start: int
    ) -> list[Effect]:
        """A part of an output partition was read, up to `seen`. Raises `ChainBroken`."""
        view = self._views[place]
        effects: list[Effect] = []
        for batch in batches:
            if batch.base_offset < view.seen or batch.producer_id != self._producer_id:
                continue
            if batch.control:
                continue
            if batch.base_sequence != view.next:
                raise ChainBroken(
                    f"{name_of(place)} has batch {batch.base_sequence} of team's chain at offset "
                    f"{batch.base_offset}, where {view.next} must be; records before it are gone "
                    f"(the log begins at {log_start})"
                )
            effects += self._absorb(place, view, batch)
        view.seen = max(view.seen, seen)
        return effects

    def on_end(self, place: Partition) -> None:
        """What was to be read of an output partition is read."""
        view = self._views[place]
        # Rows that were sent and are not there are sent again, before all others.
        again = {(row.job, row.name): row for row in view.sent if self._is_open(place, row)}
        view.waiting = again | view.waiting
        view.sent, view.sent_batch = [], None
        view.state, view.known, view.known_at_s = _State.READY, True, view.began_s

    def check_start(self, place: Partition, *, log_start: int, now_ms: int) -> None:
        """Raises `ChainBroken` if records that an old entry needs may be gone."""
        view = self._views[place]
        if log_start > view.seen and now_ms - view.entry.at_ms > TRUST_MS:
            raise ChainBroken(
                f"{name_of(place)} begins at offset {log_start}, and the last position of this "
                f"team there, {view.seen}, is older than a day: rows written since may be "
                "gone. Start the team with a new checkpoint if its jobs may be done again"
            )

    # --- the view --------------------------------------------------------------------------------

    def _add(self, place: Partition, entry: Entry) -> None:
        usable = entry.usable_at(self._begun_at)
        self._views[place] = _View(usable, usable.offset, usable.sequence)

    def _read(self, place: Partition, began_s: float, end: int | None = None) -> Read:
        view = self._views[place]
        view.state, view.began_s = _State.READING, began_s
        return Read(place, view.seen, end)

    def _absorb(self, place: Partition, view: _View, batch: BatchView) -> list[Effect]:
        """The next batch of the chain: this attempt's own, or another's."""
        own = view.sent_batch is not None and _same_records(view.sent_batch, batch)
        rows = view.sent if own else decode_rows(batch, place)
        view.refused_since_s = None
        highest = max(map(_job_of, rows))
        view.batches.append((batch.base_offset, batch.base_sequence, highest))
        view.next = (view.next + batch.record_count) % SEQUENCE_END
        view.seen = batch.offset_end

        effects: list[Effect] = []
        if own:
            view.sent, view.sent_batch = [], None
        for row in rows:
            if row.name == OUTCOME and place in self._results:
                effects += self._outcome_stored(place, view, row)
            else:
                self._follow_stored(place, view, row)
        return effects

    def _outcome_stored(self, place: Partition, view: _View, row: Row) -> list[Effect]:
        job = self._jobs.get(row.job)
        if job is None:
            if row.job >= self._taken_to:
                self._outcomes[row.job] = row
            return []
        if job.stored:
            return []
        job.stored = True
        if view.waiting:
            view.waiting.pop((row.job, OUTCOME), None)
        own, job.outcome = job.outcome, row
        if own is row or (own is not None and own.says_the_same(row)):
            self.follow(row.job, job.follows)
            return []
        # Another attempt decided; what follows is made of what it stored.
        job.follows = ()
        return [Follow(row)]

    def _follow_stored(self, place: Partition, view: _View, row: Row) -> None:
        job = self._jobs.get(row.job)
        if job is None and row.job < self._taken_to:
            return
        if job is None or job.open is None:
            view.rows.setdefault(row.job, set()).add(row.name)
            if len(view.rows) > _KNOWN_MAX:
                view.rows = {one: names for one, names in view.rows.items() if self._wants(one)}
            return
        view.waiting.pop((row.job, row.name), None)
        job.open.discard((place, row.name))
        self._end_if_done(row.job, job)

    def _wants(self, job: int) -> bool:
        return job >= self._taken_to or job in self._jobs

    def _is_open(self, place: Partition, row: Row) -> bool:
        job = self._jobs.get(row.job)
        if job is None:
            return False
        if row.name == OUTCOME and place in self._results:
            return not job.stored
        return job.open is not None and (place, row.name) in job.open

    def _end_if_done(self, number: int, job: _Job) -> None:
        if job.open is not None and not job.open:
            self._end(number)

    def _end(self, number: int) -> None:
        del self._jobs[number]
        self.ended.append(number)


def _same_records(sent: EncodedBatch, stored: BatchView) -> bool:
    """Byte for byte; ids would not do. A broker may rewrite the header with its own time."""
    return (
        sent.sequence % SEQUENCE_END == stored.base_sequence
        and sent.count == stored.record_count
        and len(sent.data) - HEADER_BYTES == len(stored.records)
        # Views compare each byte for itself, in fifty times the time.
        and sent.data.endswith(stored.records)
    )
