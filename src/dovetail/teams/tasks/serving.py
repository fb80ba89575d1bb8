"""Serves one partition of a team: jobs in, outcomes out, as each of them ends.

    input partition ─ polled ─► without repetitions ─► crew ─► chain ─► lanes ─► output partitions
                                  `seen_log`                     │
                                                         snapshots, in a group

The chain decides what is written, the crew runs functions, lanes talk to brokers; this joins them.

Jobs in hand are bounded, in number and bytes. A job that takes long does not delay the others: they
end, and their outcomes are visible; only the position stays behind it, up to `HELD_BACK_MAX`.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from dovetail.errors import Forbidden, TopicUnknown
from dovetail.kafka.client.client import KafkaClient, Partition
from dovetail.settings.tracing import TracingSettings
from dovetail.spark.fetching import Fetched
from dovetail.spark.objects import found_in
from dovetail.teams.chains.chain import Placed
from dovetail.teams.chains.lane import clock_s
from dovetail.teams.chains.rows import Row
from dovetail.teams.chains.snapshot import Snapshot
from dovetail.teams.envelope import Job
from dovetail.teams.outcome import BATCH_BYTES_MAX, DeadLetter, Failure, FailureKind, Postponed
from dovetail.teams.progress import JobProgress, Note
from dovetail.teams.tasks.attempt import Attempt, Share, now_ms
from dovetail.teams.tasks.cancel_log import CancelLog
from dovetail.teams.tasks.outcome_rows import (
    counts_of,
    ended_of,
    follow_rows,
    outcome_row,
    output_topics,
    sprayed_of,
    too_large,
)
from dovetail.teams.tasks.seen_log import Record, SeenLog, records_of
from dovetail.teams.workers.allowance import Allowance
from dovetail.teams.workers.crew import Crew, Done, Ended

#: Jobs that are read and have not ended. Enough for a crew that takes two chunks for each worker.
IN_HAND_MAX = 5_000
IN_HAND_BYTES_MAX = 32 * 1024 * 1024
#: Jobs behind one that takes long: what the next attempt reads back, at most.
HELD_BACK_MAX = 1_000_000
#: Topics that follow-ups go to may grow.
_COUNTS_S = 30.0
#: The crew's number for a result that is stored: this minus the offset of its job.
_STORED = -1


class Serving(Attempt):
    """One attempt at a partition of a team."""

    def __init__(
        self,
        share: Share,
        client: KafkaClient,
        *,
        committing: KafkaClient,
        cancels: CancelLog,
        traced: TracingSettings | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """Raises as `Attempt` does. `traced` says how functions make spans; `allowance` is that of
        the team, if it has a limit."""
        self._crew = Crew(share.stage, size=share.size, traced=traced, allowance=allowance)
        self._seen = SeenLog(client, share.input, remember_ms=share.stage.remember_ms)
        self._cancels, self._cancels_seen = cancels, cancels.count
        self._counts: dict[str, int] = {}
        #: What topics take in a batch, of those that take less than is usual.
        self._limits: dict[str, int] = {}
        self._counts_at_s = 0.0
        #: Jobs that have not ended, as they came, and their size.
        self._jobs: dict[int, Record] = {}
        self._bytes = 0
        #: Outcomes that are stored, and of which what follows is being made.
        self._following: dict[int, Row] = {}
        #: Read, and not taken yet; behind them the input goes on.
        self._backlog: deque[Record] = deque()
        self._news_committed = self._news_sent = 0
        super().__init__(share, client, committing=committing)

    def outputs(self) -> Sequence[Partition]:
        self._look_at_counts()
        # Once: the answer waits behind a poll of half a second, and every job would too. A limit
        # that is lowered meanwhile ends the attempt, and the next one knows it.
        self._limits = small_topics(self._client, [self._stage.topics.results, *self._counts])
        return [(topic, n) for topic, count in self._counts.items() for n in range(count)]

    def _look_at_counts(self) -> None:
        topics = output_topics(self._stage, delays=self._share.delays)
        found = self._client.partitions(topics)
        self._counts = {topic: len(numbers) for topic, numbers in found.items()}
        self._counts_at_s = clock_s()

    # --- waiting ---------------------------------------------------------------------------------

    def filenos(self) -> list[int]:
        others = (self._cancels.fileno(), *self._crew.filenos())
        return [*super().filenos(), *(one for one in others if one >= 0)]

    def due_s(self, now_s: float) -> float:
        times = [super().due_s(now_s)]
        if self._cancels.due_s is not None:
            times.append(self._cancels.due_s)
        monotonic_s = time.monotonic()
        crew_s = self._crew.due_s(monotonic_s)
        if crew_s is not None:
            times.append(now_s + crew_s - monotonic_s)
        return min(times)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._crew.close()

    # --- jobs ------------------------------------------------------------------------------------

    @property
    def wants_more(self) -> bool:
        chain = self._chain
        return (
            chain.ready
            and not self._backlog
            and chain.in_hand < IN_HAND_MAX
            and self._bytes < IN_HAND_BYTES_MAX
            and chain.held_back < HELD_BACK_MAX
        )

    def work(self, now_s: float, ready: set[int]) -> None:
        self._take_cancels(now_s, ready)
        position = self._input.position
        fetched = self._input.take(now_s, ready)
        if fetched is not None:
            self._read(fetched, position)
        if self.wants_more:
            self._input.ask(now_s)

        self._step_crew(now_s)
        self._take_backlog()
        if self.wants_more:
            # The task need not wake again for it.
            self._input.ask(now_s)

    def _take_cancels(self, now_s: float, ready: set[int]) -> None:
        """Ends what is in hand and not wanted any more."""
        self._cancels.step(now_s, ready)
        if self._cancels.count == self._cancels_seen:
            return
        self._cancels_seen = self._cancels.count
        for offset, record in list(self._jobs.items()):
            reason = self._cancelled(record)
            if reason is not None and self._crew.cancel(offset, now_s=time.monotonic()):
                self._job_ended(offset, _cancelled(record.job, reason), now_ms())

    def _cancelled(self, record: Record) -> str | None:
        remember_ms = self._stage.remember_ms
        cancels = self._cancels.cancels
        return cancels.reason(record.job, at_ms=record.at_ms, remember_ms=remember_ms)

    def _read(self, fetched: Fetched, position: int) -> None:
        if not fetched.batches:
            return
        found = found_in(fetched.batches, self._share.input, offset_min=position)
        if found:
            records = records_of(found, self._share.input)
            self._backlog.extend(self._seen.fresh(records))
        if not self._backlog:
            self._chain.skip(self._input.position)

    def _take_backlog(self) -> None:
        chain, crew, backlog, jobs = self._chain, self._crew, self._backlog, self._jobs
        before, room = crew.in_hand, IN_HAND_MAX - chain.in_hand
        cancelling = len(self._cancels.cancels) > 0
        while backlog and room > 0 and self._bytes < IN_HAND_BYTES_MAX:
            record, room = backlog.popleft(), room - 1
            offset, job = record.offset, record.job
            jobs[offset] = record
            self._bytes += len(job.payload)
            effects = chain.take(offset)
            if effects:
                self.do(effects)
            elif cancelling and (reason := self._cancelled(record)) is not None:
                self._job_ended(offset, _cancelled(job, reason), now_ms())
            else:
                crew.add(offset, job)
            if not backlog:
                chain.skip(self._input.position)
        if crew.in_hand > before:
            # What was taken just now begins at once.
            self._step_crew(clock_s())

    def _step_crew(self, now_s: float) -> None:
        ended = self._crew.step(time.monotonic())
        if ended and now_s - self._counts_at_s > _COUNTS_S:
            self._look_at_counts()
        ended_ms = now_ms()
        for offset, one in ended:
            self._job_ended(offset, one, ended_ms)

    def _job_ended(self, offset: int, ended: Ended, ended_ms: int) -> None:
        """A function has ended, or what follows from a stored result is made."""
        if offset < 0:
            self._made_again(_STORED - offset, ended)
            return
        record = self._jobs.get(offset)
        if record is None:
            return
        (place, row), follows = self._rows_of(offset, record.job, ended, ended_ms)
        if self._limits and isinstance(ended, Done):
            reason = too_large([(place, row), *follows], self._limits)
            if reason:
                failure = Failure(FailureKind.RESULT_TOO_LARGE, reason)
                ended = DeadLetter(record.job, failure, record.job.attempts + 1)
                (place, row), follows = self._rows_of(offset, record.job, ended, ended_ms)
        if follows:
            self.know_places(follows)
        self._chain.decide(place, row, follows)

    def _rows_of(
        self, offset: int, job: Job, ended: Ended, ended_ms: int
    ) -> tuple[Placed, list[Placed]]:
        """The outcome of a job, and what follows from it."""
        stage, counts, results = self._stage, self._counts, self._share.results
        outcome = outcome_row(
            stage, offset, job, ended, results=results, counts=counts, now_ms=ended_ms
        )
        return outcome, follow_rows(stage, offset, job, ended, counts=counts, now_ms=ended_ms)

    def _made_again(self, offset: int, ended: Ended) -> None:
        """What follows from a stored result; if a connector fails now, a dead letter says so."""
        outcome, record = self._following.pop(offset, None), self._jobs.get(offset)
        if outcome is None or record is None:
            return
        job = record.job
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
            self._jobs[offset].job,
            ended,
            counts=self._counts | counts_of(outcome),
            now_ms=sprayed_of(outcome) or now_ms(),
        )
        self.know_places(follows)
        self._chain.follow(offset, follows)

    def follow_stored(self, outcome: Row) -> None:
        """An outcome that another attempt stored: what follows is made of it."""
        job = self._jobs[outcome.job].job
        ended = ended_of(outcome, job)
        if isinstance(ended, Done) and self._stage.connectors:
            self._following[outcome.job] = outcome
            # Its function may still be running here, under its own number.
            self._crew.add(_STORED - outcome.job, Job(job.key, ended.result), stored=True)
        else:
            self._follow(outcome.job, outcome, ended)

    def forget(self, offsets: Collection[int]) -> None:
        for offset in offsets:
            record = self._jobs.pop(offset, None)
            if record is not None:
                self._bytes -= len(record.job.payload)
        for offset in offsets if self._following else ():
            self._following.pop(offset, None)

    # --- what is told ----------------------------------------------------------------------------

    @property
    def is_committed(self) -> bool:
        return super().is_committed and self._news_committed == self._crew.news

    def on_committed(self, snapshot: Snapshot) -> None:
        super().on_committed(snapshot)
        self._news_committed = self._news_sent

    def note(self) -> str:
        """What jobs say of themselves, for the driver's report."""
        crew = self._crew
        self._news_sent = crew.news
        if not crew.progress and not crew.trouble:
            return ""
        said = sorted(crew.progress.items())
        jobs = [
            JobProgress(self._jobs[offset].job.id, part, text)
            for offset, (part, text) in said
            if offset in self._jobs
        ]
        return Note(jobs, crew.trouble).encoded()


def small_topics(client: KafkaClient, topics: Iterable[str]) -> dict[str, int]:
    """What topics take in a batch, of those that take less than is usual; who may not ask, learns
    it when a batch is refused."""
    found = {}
    for topic in topics:
        with suppress(Forbidden, TopicUnknown):
            text = client.topic_setting(topic, "max.message.bytes") or ""
            if text.isdigit() and int(text) < BATCH_BYTES_MAX:
                found[topic] = int(text)
    return found


def _cancelled(job: Job, reason: str) -> DeadLetter:
    return DeadLetter(job, Failure(FailureKind.CANCELLED, reason), job.attempts)
