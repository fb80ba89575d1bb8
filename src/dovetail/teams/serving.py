"""Serving one partition of a team: jobs in, outcomes out, as each of them ends.

    input partition ─ polled ─► without repetitions ─► crew ─► chain ─► lanes ─► output partitions
                                  `seen_log`                     │
                                                         snapshots, in a group

The chain decides what is written, the crew runs functions, lanes talk to brokers; this joins them.
Nothing here waits: `filenos` and `due_s` say what to wait for, and `step` goes on. Only beginning
asks the broker and waits for its answers.

Jobs in hand are bounded, in number and bytes. A job that takes long holds none of the others up:
they end, and their outcomes are seen; only the position stays behind it, up to `HELD_BACK_MAX`.
"""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dovetail.errors import DovetailError, ProducerFenced, Unavailable
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient, Partition, name_of
from dovetail.settings.tracing import TracingSettings
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, to_arrow
from dovetail.spark.fetching import Fetched, Reader
from dovetail.teams.chains.chain import Chain, ChainBroken, Effect, Follow, Placed
from dovetail.teams.chains.chain_id import group_of, producer_of
from dovetail.teams.chains.lane import Lane, clock_s
from dovetail.teams.chains.rows import Row
from dovetail.teams.chains.snapshot import Entry, Snapshot, created
from dovetail.teams.envelope import Job
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import DeadLetter, Failure, FailureKind, Postponed
from dovetail.teams.outcome_rows import (
    counts_of,
    ended_of,
    follow_rows,
    outcome_row,
    output_topics,
)
from dovetail.teams.seen_log import Record, SeenLog, records_of
from dovetail.teams.workers.crew import Crew, Done, Ended

#: Jobs that are read and have not ended. Enough for a crew that takes two chunks for each worker.
IN_HAND_MAX = 5_000
IN_HAND_BYTES_MAX = 32 * 1024 * 1024
#: Jobs behind one that takes long: what the next attempt reads back, at most.
HELD_BACK_MAX = 200_000
#: Outcomes wait so long for others before they are written.
GATHER_S = 0.001
#: The broker answers when there is something; else so late.
_POLL_WAIT_MS = 1_000
#: A snapshot is committed so often while there is work, and soon after the last job has ended.
_SNAPSHOT_S, _SNAPSHOT_IDLE_S = 1.0, 0.1
#: Committed positions expire at the broker; they are renewed before.
_RENEW_S = 3_600.0
#: Topics that follow-ups go to may grow.
_COUNTS_S = 30.0
#: The crew's number for a result that is stored: this minus the offset of its job.
_STORED = -1


@dataclass(frozen=True, slots=True)
class Share:
    """One partition of a team, for a task to serve."""

    stage: Stage
    #: The team's chain, and the number of results partitions that it was created with.
    chain: str
    results: int
    number: int
    #: How many functions may run at once in this partition, if none takes long.
    size: int
    #: The group has held a snapshot before.
    created: bool
    delays: bool
    term: int

    @property
    def input(self) -> Partition:
        return self.stage.topics.input, self.number

    @property
    def group(self) -> str:
        return group_of(self.chain, self.number)


class Serving:
    """One attempt at a partition, from the last snapshot on."""

    def __init__(
        self,
        share: Share,
        client: KafkaClient,
        *,
        committing: KafkaClient,
        traced: TracingSettings | None = None,
    ) -> None:
        """`committing` is for snapshots, and waits little: the next one will do. Raises
        `ChainBroken`, `ProducerFenced`, and what the broker refuses."""
        self._share, self._client, self._committing = share, client, committing
        self._stage = share.stage
        self._crew = Crew(share.stage, size=share.size, traced=traced)
        self._seen = SeenLog(client, share.input, remember_ms=share.stage.remember_ms)
        self._input = Reader(client, share.input, committed=True)
        self._lanes: dict[Partition, Lane] = {}
        self._counts: dict[str, int] = {}
        self._counts_at_s = 0.0
        #: Jobs that have not ended, as they came, and their size.
        self._jobs: dict[int, Job] = {}
        self._bytes = 0
        #: Outcomes that are stored, and of which what follows is being made.
        self._following: dict[int, Row] = {}
        #: Read, and not taken yet; behind them the input goes on.
        self._backlog: deque[Record] = deque()
        self._read_to = 0
        self._retry_input_s = self._input_by_s = 0.0
        self._input_since_s: float | None = None
        self._send_at_s: float | None = None
        self._committed: Snapshot | None = None
        self._committed_at_s = self._moved_at_s = clock_s()
        self._chain = self._begin()

    # --- beginning -------------------------------------------------------------------------------

    def _begin(self) -> Chain:
        """Finds the last snapshot, or creates the chain."""
        share, results = self._share, self._stage.topics.results
        self._look_at_counts()
        wanted = [(results, number) for number in range(share.results)]
        wanted += [(topic, n) for topic, count in self._counts.items() for n in range(count)]
        snapshot = self._adopted(wanted)
        if 0 < share.term < snapshot.term:
            raise ProducerFenced(
                f"the master of term {share.term} begins, but one of term {snapshot.term} has "
                "committed"
            )

        self._committed = snapshot
        self._read_to = snapshot.position
        chain = Chain(
            replace(snapshot, term=max(snapshot.term, share.term)),
            producer_id=producer_of(share.chain, share.number),
            results=wanted[: share.results],
        )
        self._lanes = {place: Lane(self._client, chain, place) for place in snapshot.entries}
        self._starting = chain.begin(now_s=clock_s())
        return chain

    def _adopted(self, places: Iterable[Partition]) -> Snapshot:
        """The snapshot, with entries for these places; missing ones are committed first.

        The ends are asked for before the group: see `snapshot.created`.
        """
        share, client = self._share, self._client
        places = list(places)
        while True:
            ends = client.offsets(dict.fromkeys(places, LATEST))
            stored = client.committed(share.group)
            snapshot = Snapshot.of(share.input, stored)
            if snapshot is not None and not set(places) - set(snapshot.entries):
                return snapshot
            if snapshot is None and share.created:
                raise ChainBroken(
                    f"the positions of {share.input[0]}-{share.number} in group {share.group!r} "
                    "are gone, and with them what is done. Start the team with a new checkpoint if "
                    "its jobs may be done again"
                )
            if snapshot is None:
                position = client.offsets({share.input: EARLIEST})[share.input]
            else:
                position = snapshot.position
                ends = {k: end for k, end in ends.items() if k not in snapshot.entries}
            new = created(share.input, position, ends, at_ms=_now_ms(), term=share.term)
            positions, texts = new.positions(), new.texts()
            if snapshot is not None:
                # What others have committed meanwhile stays.
                del positions[share.input]
            client.commit(share.group, positions, metadata=texts)

    def _look_at_counts(self) -> None:
        topics = output_topics(self._stage, delays=self._share.delays)
        found = self._client.partitions(topics)
        self._counts = {topic: len(numbers) for topic, numbers in found.items()}
        self._counts_at_s = clock_s()

    # --- waiting ---------------------------------------------------------------------------------

    def filenos(self) -> list[int]:
        """What to wait for."""
        lanes = [lane.fileno() for lane in self._lanes.values()]
        return [one for one in (*lanes, self._input.fileno(), *self._crew.filenos()) if one >= 0]

    def due_s(self, now_s: float) -> float:
        """When to call `step` at the latest, on the clock that counts suspension."""
        times = [self._committed_at_s + (_RENEW_S if self._is_committed else _SNAPSHOT_S)]
        times += [due for lane in self._lanes.values() if (due := lane.due_s()) is not None]
        if self._send_at_s is not None:
            times.append(self._send_at_s)
        if self._input.fileno() < 0 and self._wants_more:
            times.append(self._retry_input_s)
        monotonic_s = time.monotonic()
        crew_s = self._crew.due_s(monotonic_s)
        if crew_s is not None:
            times.append(now_s + crew_s - monotonic_s)
        if not self._is_committed and not self._chain.in_hand:
            times.append(max(self._moved_at_s, self._committed_at_s) + _SNAPSHOT_IDLE_S)
        return min(times)

    def step(self, now_s: float, ready: set[int]) -> None:
        """Goes on with everything for which something has come. Raises what ends the attempt."""
        effects: list[Effect] = self._starting
        self._starting = []
        for lane in self._lanes.values():
            effects += lane.step(now_s, ready=lane.fileno() in ready)
        self._do(effects)

        self._take_input(now_s, ready)
        for offset, ended in self._crew.step(time.monotonic()):
            self._job_ended(offset, ended, now_s)
        self._take_backlog()
        self._send(now_s)
        self._forget_ended(now_s)
        self._snapshot(now_s)

    def close(self) -> None:
        """Commits how far it came, and leaves."""
        with suppress(DovetailError):
            self._commit()
        self._crew.close()
        self._input.close()
        for lane in self._lanes.values():
            lane.close()

    # --- jobs ------------------------------------------------------------------------------------

    @property
    def _wants_more(self) -> bool:
        chain = self._chain
        return (
            chain.ready
            and not self._backlog
            and chain.in_hand < IN_HAND_MAX
            and self._bytes < IN_HAND_BYTES_MAX
            and chain.held_back < HELD_BACK_MAX
        )

    def _take_input(self, now_s: float, ready: set[int]) -> None:
        asked = self._input.fileno()
        try:
            if asked >= 0 and asked in ready:
                self._read(self._input.take(self._read_to))
                self._input_since_s = None
            elif asked >= 0 and now_s > self._input_by_s:
                raise Unavailable(f"{name_of(self._share.input)}: no answer in time")
            if self._input.fileno() < 0 and self._wants_more and now_s >= self._retry_input_s:
                self._input.ask(self._read_to, wait_ms=_POLL_WAIT_MS)
                self._input_by_s = now_s + self._client.request_s
                if self._input.fileno() < 0:
                    raise Unavailable(f"{name_of(self._share.input)}: no connection to its leader")
        except Unavailable:
            self._input.drop()
            self._client.forget_leaders()
            self._input_since_s = self._input_since_s or now_s
            if now_s - self._input_since_s > self._client.timeout_s:
                raise
            self._retry_input_s = now_s + 0.1

    def _read(self, fetched: Fetched) -> None:
        if not fetched.batches:
            return
        batch = to_arrow(
            fetched.batches,
            self._share.input,
            offset_min=self._read_to,
            columns=COLUMNS_WITH_HEADERS,
        )
        self._read_to = fetched.batches[-1].offset_end
        if batch.num_rows:
            records = records_of(batch, self._share.input)
            self._backlog.extend(self._seen.fresh(records))
        if not self._backlog:
            self._chain.skip(self._read_to)

    def _take_backlog(self) -> None:
        chain, before = self._chain, self._crew.in_hand
        while self._backlog and chain.in_hand < IN_HAND_MAX and self._bytes < IN_HAND_BYTES_MAX:
            record = self._backlog.popleft()
            self._jobs[record.offset] = record.job
            self._bytes += len(record.job.payload)
            effects = chain.take(record.offset)
            if effects:
                self._do(effects)
            else:
                self._crew.add(record.offset, record.job)
            if not self._backlog:
                chain.skip(self._read_to)
        if self._crew.in_hand > before:
            # What was taken just now begins at once.
            for offset, ended in self._crew.step(time.monotonic()):
                self._job_ended(offset, ended, clock_s())

    def _job_ended(self, offset: int, ended: Ended, now_s: float) -> None:
        """A function has ended, or what follows from a stored result is made."""
        if offset < 0:
            self._made_again(_STORED - offset, ended)
            return
        job = self._jobs.get(offset)
        if job is None or self._chain.has_outcome(offset):
            return
        if now_s - self._counts_at_s > _COUNTS_S:
            self._look_at_counts()
        counts = self._counts
        place, row = outcome_row(
            self._stage, offset, job, ended, results=self._share.results, counts=counts
        )
        follows = follow_rows(self._stage, offset, job, ended, counts=counts, now_ms=_now_ms())
        self._know_places(follows)
        self._chain.decide(place, row, follows)

    def _made_again(self, offset: int, ended: Ended) -> None:
        """What follows from a stored result; if a connector fails now, a dead letter says so."""
        outcome, job = self._following.pop(offset, None), self._jobs.get(offset)
        if outcome is None or job is None:
            return
        if isinstance(ended, Done):
            ended = Done(job, ended.result, ended.forwards)
        elif isinstance(ended, Postponed):
            ended = DeadLetter(job, Failure(FailureKind.EXCEPTION, ended.reason), ended.attempts)
        else:
            ended = DeadLetter(job, ended.failure, ended.attempts)
        self._follow(offset, outcome, ended)

    def _follow(self, offset: int, outcome: Row, ended: Ended) -> None:
        follows = follow_rows(
            self._stage,
            offset,
            self._jobs[offset],
            ended,
            counts=self._counts | counts_of(outcome),
            now_ms=_now_ms(),
        )
        self._know_places(follows)
        self._chain.follow(offset, follows)

    def _know_places(self, follows: Sequence[Placed]) -> None:
        """Output partitions that are new to the chain get an entry before they are used."""
        new = {place for place, _ in follows if not self._chain.knows(place)}
        if not new:
            return
        snapshot = self._adopted(new)
        for place in new:
            self._add_place(place, snapshot.entries[place])

    def _add_place(self, place: Partition, entry: Entry) -> None:
        self._lanes[place] = Lane(self._client, self._chain, place)
        self._do(self._chain.add(place, entry, now_s=clock_s()))

    def _forget_ended(self, now_s: float) -> None:
        ended = self._chain.ended
        if not ended:
            return
        for offset in ended:
            job = self._jobs.pop(offset, None)
            self._following.pop(offset, None)
            if job is not None:
                self._bytes -= len(job.payload)
        ended.clear()
        self._moved_at_s = now_s

    # --- rows ------------------------------------------------------------------------------------

    def _send(self, now_s: float) -> None:
        if not self._chain.has_waiting:
            self._send_at_s = None
            return
        if self._send_at_s is None:
            self._send_at_s = now_s + GATHER_S
        elif now_s >= self._send_at_s:
            self._send_at_s = None
            self._do(self._chain.send(now_s=now_s, now_ms=_now_ms()))

    def _do(self, effects: Iterable[Effect]) -> None:
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            if isinstance(effect, Follow):
                self._follow_stored(effect.outcome)
            else:
                waiting.extend(self._lanes[effect.place].do(effect))

    def _follow_stored(self, outcome: Row) -> None:
        """An outcome that another attempt stored: what follows is made of it."""
        job = self._jobs[outcome.job]
        ended = ended_of(outcome, job)
        if isinstance(ended, Done) and self._stage.connectors:
            self._following[outcome.job] = outcome
            # Its function may still be running here, under its own number.
            self._crew.add(_STORED - outcome.job, Job(job.id, ended.result), stored=True)
        else:
            self._follow(outcome.job, outcome, ended)

    # --- snapshots -------------------------------------------------------------------------------

    @property
    def _is_committed(self) -> bool:
        return self._committed is not None and self._committed.position == self._chain.position

    def _snapshot(self, now_s: float) -> None:
        quiet_s = now_s - max(self._moved_at_s, self._committed_at_s)
        idle = not self._chain.in_hand and quiet_s > _SNAPSHOT_IDLE_S
        due_s = _RENEW_S if self._is_committed else _SNAPSHOT_S
        if now_s - self._committed_at_s < due_s and not (idle and not self._is_committed):
            return
        self._committed_at_s = now_s
        # If it does not get through, the next one will.
        with suppress(DovetailError):
            self._commit()

    def _commit(self) -> None:
        if not self._chain.ready:
            return
        snapshot = self._chain.snapshot(now_ms=_now_ms())
        self._committing.commit(self._share.group, snapshot.positions(), metadata=snapshot.texts())
        self._committed = snapshot


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
