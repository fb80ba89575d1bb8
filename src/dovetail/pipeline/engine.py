"""The engine of a pipeline: one Structured Streaming query for each team.

    input topic ─ source ─ mapInArrow(TeamTask) ─ sink ─ results, next inputs, dead letters

The driver that runs it is the teams' master. The checkpoint of a query is its journal: which
records belong to which micro-batch. Everything else about a work is in the topics, so that another
driver with the same checkpoint goes on where this one was killed (`work_task` says why nothing is
lost or doubled; `master` who may run).

A query that fails is started again after a pause, from its checkpoint, because most failures pass:
a broker that restarts, an executor that was lost. What does not pass is told in `TeamProgress`
and after `FAILURES_MAX` failures without a finished micro-batch between them it ends the engine.
"""

import threading
import time
import uuid
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dovetail.errors import DovetailError, Unavailable
from dovetail.logging import get_logger
from dovetail.pipeline.client import client_of
from dovetail.pipeline.frontend import create_topics
from dovetail.pipeline.graph import Pipeline, Stage
from dovetail.pipeline.progress import TeamProgress, ends_of, progress_of
from dovetail.pipeline.work_delays import Courier
from dovetail.pipeline.work_task import ROWS_SQL, TeamTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Works in one micro-batch of a team: bounds what a restart has to look through.
ROWS_PER_BATCH = 200_000
#: Failures of one query in a row, before the engine gives up.
FAILURES_MAX = 10
_PAUSE_S_MAX = 10.0
_LOOK_S = 0.2

_log = get_logger("pipeline")


@dataclass(slots=True)
class _Running:
    stage: Stage
    query: "StreamingQuery | None" = None
    failures: int = 0
    failed_batch: int = -1
    committed_batch: int = -1
    begin_again: float = 0.0
    reasons: list[str] = field(default_factory=list)


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
    ) -> None:
        """`checkpoint` is a path that all masters share; `term` is this master's."""
        self._pipeline, self._spark = pipeline, spark
        self._bootstrap, self._term = bootstrap, term
        self._checkpoint = checkpoint.rstrip("/")
        self._rows_per_batch = rows_per_batch
        self._run = uuid.uuid4().hex
        self._running = [_Running(stage) for stage in pipeline.stages()]
        self._stopped = threading.Event()
        #: Held while queries are started again or stopped: none is started after the end.
        self._changing = threading.Lock()
        self._courier = Courier(pipeline.name, bootstrap) if pipeline.has_delays else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Makes the topics that are missing, and starts the queries."""
        create_topics(self._pipeline, self._bootstrap)
        try:
            for one in self._running:
                one.query = self._query(one.stage)
        except BaseException:
            self.stop()
            raise
        if self._courier is not None:
            self._courier.start()

    def stop(self) -> None:
        """Ends the queries; what they have not finished is done by the next master."""
        self._stopped.set()
        if self._courier is not None:
            self._courier.stop()
        with self._changing:
            for one in self._running:
                if one.query is not None:
                    one.query.stop()
                    self._commit(one)

    def watch(self, *, until: threading.Event | None = None) -> None:
        """Keeps the queries running until it is stopped. Raises `Unavailable` if one can not."""
        while not self._stopped.is_set() and not (until is not None and until.is_set()):
            for one in self._running:
                with self._changing:
                    self._look(one)
                    self._commit(one)
            self._stopped.wait(_LOOK_S)

    def progress(self) -> list[TeamProgress]:
        """What each team is doing."""
        return [
            progress_of(
                one.stage.team,
                None if one.query is None else one.query.lastProgress,
                failures=one.failures,
                reason=one.reasons[-1] if one.reasons else "",
            )
            for one in self._running
        ]

    def drain(self, *, timeout_s: float) -> None:
        """Waits until no team has anything to do any more. Raises `Unavailable`."""
        deadline = time.monotonic() + timeout_s
        before: list[int] | None = None
        while before != (before := [self._drained(one, deadline) for one in self._running]):
            pass

    def _drained(self, one: _Running, deadline: float) -> int:
        """Waits until one team has done what is in its topic now; the number of its micro-batch."""
        while True:
            if time.monotonic() > deadline or self._stopped.is_set():
                reason = one.reasons[-1] if one.reasons else "it is still working"
                raise Unavailable(f"team {one.stage.team!r} was not done in time: {reason}")
            with self._changing:
                self._look(one)
            if one.query is None:
                time.sleep(_LOOK_S)
                continue
            try:
                one.query.processAllAvailable()
            except Exception as error:  # noqa: BLE001 - Spark raises what ended the query
                _log.warning("a team failed", team=one.stage.team, reason=str(error)[:500])
                continue
            told = one.query.lastProgress
            return -1 if told is None else int(told["batchId"])

    def _commit(self, one: _Running) -> None:
        """Commits what is done to the team's group. The source does so one micro-batch late."""
        told = None if one.query is None else one.query.lastProgress
        if told is None or told["batchId"] == one.committed_batch:
            return
        try:
            client = client_of(self._bootstrap)
            client.commit(one.stage.group, ends_of(told))
            one.committed_batch = told["batchId"]
        except DovetailError as error:
            # Positions in the group are for display; the checkpoint is what counts.
            _log.warning("positions not committed", team=one.stage.team, reason=str(error))

    def _look(self, one: _Running) -> None:
        if self._stopped.is_set():
            return
        if one.query is not None and one.query.isActive:
            told = one.query.lastProgress if one.failures else None
            if told is not None and int(told["batchId"]) > one.failed_batch:
                one.failures, one.reasons = 0, []
            return
        now = time.monotonic()
        if one.query is not None:
            self._note_failure(one, now)
        if one.query is None and now >= one.begin_again:
            one.query = self._query(one.stage)

    def _note_failure(self, one: _Running, now: float) -> None:
        assert one.query is not None
        last = one.query.lastProgress
        batch = -1 if last is None else int(last["batchId"])
        one.failures = one.failures + 1 if batch == one.failed_batch else 1
        one.failed_batch = batch
        reason = str(one.query.exception() or "it was stopped from outside")
        one.reasons = [reason[:2000]]
        if one.failures >= FAILURES_MAX:
            raise Unavailable(
                f"team {one.stage.team!r} failed {one.failures} times in a row: {reason[:2000]}"
            )
        pause_s = min(_PAUSE_S_MAX, 0.1 * 2**one.failures)
        _log.warning(
            "a team is started again", team=one.stage.team, failures=one.failures, reason=reason
        )
        one.query, one.begin_again = None, now + pause_s

    def _query(self, stage: Stage) -> "StreamingQuery":
        # Sources are looked up in the session that is active on this thread, and a thread that did
        # not make the session has none. Making a table, be it empty, sets it.
        self._spark.createDataFrame([], "id long")
        task = TeamTask(stage, self._bootstrap, self._run)
        records = (
            self._spark.readStream.format("dovetail")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", stage.topics.input)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("minPartitions", str(stage.workers))
            .option("maxOffsetsPerTrigger", str(self._rows_per_batch))
            .option("kafka.group.id", stage.group)
            .load()
        )
        rows = records.mapInArrow(task, ROWS_SQL)
        writer = (
            rows.writeStream.format("dovetail")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("idConflict", "fail")
            .option("checkpointLocation", f"{self._checkpoint}/{stage.pipeline}/{stage.team}")
        )
        if self._term is not None:
            writer = writer.option("term", str(self._term))
        return writer.start()
