"""The engine of a pipeline: one Structured Streaming query for each team.

    source ─ ranges of the input topic ─► TeamRun ─ ends ─► sink, which commits them
                                            │
                    input topic ─ fetched ─►│─ written ─► results, next inputs, dead letters

The driver that runs it is the teams' master. The checkpoint of a query is its journal: it says
which records belong to which micro-batch. Everything else about a job is in the topics, so another
driver with the same checkpoint continues where this one was killed (`task` says why nothing is lost
or doubled; `master` says who may run).

A query that fails is restarted after a pause, from its checkpoint, because most failures are
transient: a broker restarts, an executor is lost. `TeamProgress` reports failures, and after
`FAILURES_MAX` of them without a finished micro-batch in between the engine ends.
"""

import random
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dovetail.errors import DovetailError, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient, Partition
from dovetail.logging import get_logger
from dovetail.spark.options import ReadOptions, WriteOptions
from dovetail.spark.query_id import claim_query_id
from dovetail.spark.sessions import register_source
from dovetail.teams.delays import Courier
from dovetail.teams.graph import Pipeline, Stage
from dovetail.teams.metrics import PipelineMetrics
from dovetail.teams.progress import TeamMeter, TeamProgress, finished_batch
from dovetail.teams.task import TeamTask
from dovetail.teams.team_table import ENDS_SQL, FORMAT, TeamRun, TeamTable
from dovetail.teams.topics import create_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Jobs in one micro-batch of a team: bounds what a restart has to read again.
ROWS_PER_BATCH = 200_000
#: Failures of one query in a row, before the engine gives up.
FAILURES_MAX = 10
#: Spark's message when a Python process did not start within ten seconds: the machine is busy,
#: nothing is broken, and giving up would not help.
_TOO_SLOW = "Python worker failed to connect back"
_PAUSE_S_MAX = 10.0
_LOOK_S = 0.2
#: A progress report does not wait longer for an unreachable broker; it shows what is known.
_ENDS_S_MAX = 2.0

_log = get_logger("teams")


@dataclass(slots=True)
class _Running:
    stage: Stage
    meter: TeamMeter
    query: "StreamingQuery | None" = None
    begin_again: float = 0.0
    #: Whether the position of the meter is in the group too.
    committed: bool = True


class Engine:
    """Runs the teams of a pipeline on a Spark session, until it is stopped."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: "SparkSession",
        *,
        bootstrap: str,
        checkpoint: str,
        term: int | None = None,
        rows_per_batch: int = ROWS_PER_BATCH,
        metrics: PipelineMetrics | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`checkpoint` is a path that all masters share, `term` is this master's, and `config` has
        TLS and login by librdkafka's names. Raises `InvalidInput`."""
        self._pipeline, self._spark = pipeline, spark
        self._brokers, self._term = Brokers.at(bootstrap, config), term
        self._checkpoint = checkpoint.rstrip("/")
        self._rows_per_batch = rows_per_batch
        self._run = uuid.uuid4().hex
        self._running = [_Running(stage, TeamMeter(stage.team)) for stage in pipeline.stages()]
        self._metrics = metrics or PipelineMetrics()
        self._stopped = threading.Event()
        #: Held while queries are started again or stopped: none is started after the end.
        self._changing = threading.Lock()
        self._courier = Courier(pipeline.name, self._brokers) if pipeline.has_delays else None
        #: Commits positions; guarded by `_changing` once the engine has started.
        self._committing = KafkaClient(self._brokers)
        self._looking = KafkaClient(self._brokers, timeout_s=_ENDS_S_MAX)
        #: Held while the broker is asked for ends; nothing else waits for the answer.
        self._asking = threading.Lock()
        self._known_ends: dict[str, dict[Partition, int]] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Creates the missing topics and starts the queries."""
        brokers = self._brokers
        create_topics(self._pipeline, brokers.bootstrap, config=dict(brokers.settings))
        try:
            for one in self._running:
                one.meter.start(self._position(one.stage), now_s=time.monotonic())
                self._begin(one)
        except BaseException:
            self.stop()
            raise
        if self._courier is not None:
            self._courier.start()

    def stop(self) -> None:
        """Stops the queries; the next master does what they have not finished."""
        self._stopped.set()
        if self._courier is not None:
            self._courier.stop()

        with self._changing:
            for one in self._running:
                if one.query is not None:
                    one.query.stop()
                    self._note(one)
                    self._commit(one)
            self._committing.close()
        with self._asking:
            self._looking.close()

    def watch(self, *, until: threading.Event | None = None) -> None:
        """Keeps the queries running until the engine stops. Raises `Unavailable` if one cannot."""
        while not self._stopped.is_set() and not (until is not None and until.is_set()):
            for one in self._running:
                with self._changing:
                    if self._stopped.is_set():
                        return
                    self._note(one)
                    self._commit(one)
                    self._look(one)
            self._stopped.wait(_LOOK_S)

    def progress(self) -> list[TeamProgress]:
        """What each team is doing, or did until it was stopped."""
        with self._asking:
            if not self._stopped.is_set():
                self._known_ends = self._ends()
            ends = self._known_ends

        with self._changing:
            found = []
            for one in self._running:
                self._note(one)
                topics = one.stage.topics
                found.append(
                    one.meter.progress(
                        now_s=time.monotonic(),
                        ends=None if ends is None else ends[topics.input],
                        dead_end=None if ends is None else sum(ends[topics.dead].values()),
                    )
                )
            return found

    @property
    def delays_error(self) -> str | None:
        """Why delayed jobs are not carried at the moment."""
        return None if self._courier is None else self._courier.failure

    def drain(self, *, timeout_s: float) -> None:
        """Waits until no team has anything left to do. Raises `Unavailable`."""
        deadline = time.monotonic() + timeout_s
        before: list[int] | None = None
        while before != (before := [self._drained(one, deadline) for one in self._running]):
            pass

    def _drained(self, one: _Running, deadline: float) -> int:
        """Waits until one team has done what is in its topic now; the number of its micro-batch."""
        while True:
            if time.monotonic() > deadline or self._stopped.is_set():
                reason = one.meter.last_error or "it is still working"
                raise Unavailable(f"team {one.stage.team!r} did not finish in time: {reason}")
            with self._changing:
                self._look(one)
            if one.query is None:
                time.sleep(_LOOK_S)
                continue

            try:
                one.query.processAllAvailable()
            except Exception as error:  # noqa: BLE001 - Spark raises what ended the query
                _log.warning("team failed", team=one.stage.team, reason=str(error)[:500])
                continue
            progress = one.query.lastProgress
            return -1 if progress is None else int(progress["batchId"])

    def _position(self, stage: Stage) -> dict[Partition, int]:
        """Where the team's last master stopped, as far as its group knows."""
        client, topic = self._committing, stage.topics.input
        places = [(topic, number) for number in client.partitions([topic])[topic]]
        first = client.offsets(dict.fromkeys(places, EARLIEST))
        stored = client.committed(stage.group)
        return {place: max(first[place], stored.get(place, (0, ""))[0]) for place in places}

    def _ends(self) -> dict[str, dict[Partition, int]] | None:
        """The ends of inputs and dead letters, by topic; None if the broker does not answer."""
        names = [one.stage.topics for one in self._running]
        topics = [topic for name in names for topic in (name.input, name.dead)]
        try:
            there = self._looking.partitions(topics)
            places = [(topic, number) for topic, numbers in there.items() for number in numbers]
            ends = self._looking.offsets(dict.fromkeys(places, LATEST))
        except DovetailError:
            return None
        return {
            topic: {place: end for place, end in ends.items() if place[0] == topic}
            for topic in topics
        }

    def _note(self, one: _Running) -> None:
        """Notes what is finished."""
        if one.query is None or (progress := one.query.lastProgress) is None:
            return
        if one.meter.failures and one.query.isActive:
            # It is past what it failed at: a query reports nothing before that.
            one.meter.failures, one.meter.last_error = 0, ""
        if (batch := finished_batch(progress)) is None:
            return
        if one.meter.finished(batch, now_s=time.monotonic()):
            one.committed = False
            self._metrics.batch(self._pipeline.name, one.stage.team, batch.took_ms)

    def _commit(self, one: _Running) -> None:
        """Commits what is finished to the team's group, for lag tools.

        Spark's own commit would come one micro-batch late.
        """
        if one.committed:
            return
        try:
            self._committing.commit(one.stage.group, one.meter.position)
            one.committed = True
        except DovetailError as error:
            # Positions in the group are for display; the checkpoint is what counts.
            _log.warning("positions not committed", team=one.stage.team, reason=str(error))

    def _look(self, one: _Running) -> None:
        if self._stopped.is_set():
            return
        if one.query is not None and one.query.isActive:
            return
        now = time.monotonic()
        if one.query is not None:
            self._note_failure(one, str(one.query.exception() or "it was stopped from outside"))
        if one.query is None and now >= one.begin_again:
            self._begin(one)

    def _begin(self, one: _Running) -> None:
        """Starts a query; a conflict with another master that starts at once is retried."""
        try:
            one.query = self._query(one.stage)
        except Exception as error:
            if self._term is None:
                raise
            self._note_failure(one, str(error))

    def _note_failure(self, one: _Running, error: str) -> None:
        meter, reason = one.meter, error[:2000]
        meter.failures += 1
        meter.last_error = reason
        self._metrics.failure(self._pipeline.name, one.stage.team)
        if meter.failures >= FAILURES_MAX and _TOO_SLOW not in reason:
            meter.failed = True
            raise Unavailable(
                f"team {one.stage.team!r} failed {meter.failures} times in a row: {reason}"
            )

        # Teams that failed together do not come back in step.
        pause_s = min(_PAUSE_S_MAX, 0.1 * 2**meter.failures) * random.uniform(0.5, 1.5)  # noqa: S311
        _log.warning(
            "team failed; it is restarted",
            team=one.stage.team,
            failures=meter.failures,
            reason=reason,
        )
        one.query, one.begin_again = None, time.monotonic() + pause_s

    def _query(self, stage: Stage) -> "StreamingQuery":
        # Spark looks up sources in the session that is active on this thread, and only the thread
        # that made the session has one. Creating a table, even an empty one, sets it.
        self._spark.createDataFrame([], "id long")
        register_source(self._spark, TeamTable)
        reading = {
            **self._brokers.for_tables(),
            "subscribe": stage.topics.input,
            "startingOffsets": "earliest",
            "minPartitions": str(stage.workers),
            "maxOffsetsPerTrigger": str(self._rows_per_batch),
            "kafka.group.id": stage.group,
        }
        writing = {**self._brokers.for_tables(), "idConflict": "fail"}
        if self._term is not None:
            writing["term"] = str(self._term)

        task = TeamTask(stage, self._brokers, self._run)
        run = TeamRun(task, ReadOptions.of(reading), WriteOptions.of(writing))
        checkpoint = f"{self._checkpoint}/{stage.pipeline}/{stage.team}"
        claim_query_id(checkpoint)
        ranges = self._spark.readStream.format(FORMAT).options(**reading).load()
        return (
            ranges.mapInArrow(run, ENDS_SQL)
            .writeStream.format(FORMAT)
            .options(**writing)
            .option("checkpointLocation", checkpoint)
            .start()
        )
