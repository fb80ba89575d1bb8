"""The engine of a pipeline: one Spark job whose tasks serve all partitions of all its teams.

    driver                                    tasks, one for each slot of Spark
    who serves what (`Lease`)  ──────────►    partitions: jobs in, outcomes out (`serving`)
    positions of the snapshots ◄── broker ◄── snapshots

The driver that runs it is the teams' master. It hands out partitions, watches, and restarts what
fails; no job passes through it. What is done is in the topics and in the groups of snapshots, so
another driver with the same checkpoint continues where this one was killed (`chain` says why
nothing is lost or doubled; `master` says who may run). The checkpoint holds what names the chains.

The tasks run until they are ended: by `stop`, or because there is more to hand out, when an input
topic has grown or Spark has other slots than before, or fewer than it says. Tasks that fail are
restarted after a pause, because most failures are transient: a broker restarts, an executor is
lost. `TeamProgress` reports failures, and after `FAILURES_MAX` of them without any progress in
between the engine ends.
"""

import random
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dovetail import tracing
from dovetail.background import start_thread
from dovetail.errors import DovetailError, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient, Partition
from dovetail.logging import get_logger
from dovetail.teams.chains.chain_id import ChainId, claim_chain, group_of, has_begun, note_begun
from dovetail.teams.delays import Courier
from dovetail.teams.graph import Pipeline, Stage
from dovetail.teams.lease import TASKS_SQL, Lease
from dovetail.teams.metrics import PipelineMetrics
from dovetail.teams.progress import TeamMeter, TeamProgress
from dovetail.teams.serving import Share
from dovetail.teams.topics import create_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Failures in a row, before the engine gives up.
FAILURES_MAX = 10
#: Spark's message when a Python process did not start within ten seconds: the machine is busy,
#: nothing is broken, and giving up would not help.
_TOO_SLOW = "Python worker failed to connect back"
_PAUSE_S_MAX = 10.0
_LOOK_S = 0.1
#: Tasks that run for so long have come to terms with whatever failed before.
_STEADY_S = 10.0
#: Between two looks at the positions, at the slots of Spark and at the partitions of inputs.
_POSITIONS_S, _PLAN_S = 1.0, 5.0
#: How long tasks have to end when they are told to; Spark kills what has not.
_STOP_S_MAX = 15.0
#: A progress report does not wait longer for an unreachable broker; it shows what is known.
_ENDS_S_MAX = 2.0
_TEAM = re.compile(r"TeamFailed: team '([^']+)'")

_log = get_logger("teams")


@dataclass(slots=True)
class _Running:
    stage: Stage
    meter: TeamMeter
    location: str
    chain: ChainId | None = None
    numbers: tuple[int, ...] = ()
    #: Partitions that are known to have a snapshot.
    begun: frozenset[int] = frozenset()
    #: Whether the position of the meter is in the group too.
    committed: bool = True


class _Tasks:
    """A job of Spark: all tasks of the pipeline, on a thread that waits for their end."""

    def __init__(self, spark: "SparkSession", frame: "DataFrame", *, name: str, count: int) -> None:
        self._context, self._frame, self._name = spark.sparkContext, frame, name
        self.count = count
        self.started_s = time.monotonic()
        self.error: str | None = None
        self._thread = start_thread(self._run, name="teams/tasks", of=name)

    def _run(self) -> None:
        self._context.setJobGroup(self._name, self._name, interruptOnCancel=True)
        try:
            self._frame.collect()
            self.error = "its tasks have ended"
        except Exception as error:  # noqa: BLE001 - Spark raises what ended the job
            self.error = str(error) or repr(error)

    @property
    def over(self) -> bool:
        """Whether they have ended."""
        return not self._thread.is_alive()

    def running(self) -> int:
        """How many of them Spark runs now; the others wait for slots."""
        tracker = self._context.statusTracker()
        infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._name)]
        stages = [tracker.getStageInfo(one) for info in infos if info for one in info.stageIds]
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def stop(self) -> None:
        """Ends them; what they have not finished is done by others."""
        deadline = time.monotonic() + _STOP_S_MAX
        # A job that has not begun yet is not known to Spark, so ask again.
        while not self.over and time.monotonic() < deadline:
            self._context.cancelJobGroup(self._name)
            self._thread.join(0.2)


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
        metrics: PipelineMetrics | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`checkpoint` is a path that all masters share, `term` is this master's, and `config` has
        TLS and login by librdkafka's names. Raises `InvalidInput`."""
        self._pipeline, self._spark = pipeline, spark
        self._brokers, self._term = Brokers.at(bootstrap, config), term
        where = f"{checkpoint.rstrip('/')}/{pipeline.name}"
        self._running = [
            _Running(stage, TeamMeter(stage.team), f"{where}/{stage.team}")
            for stage in pipeline.stages()
        ]
        self._metrics = metrics or PipelineMetrics()
        self._stopped = threading.Event()
        #: Held while tasks are started again or stopped: none is started after the end.
        self._changing = threading.Lock()
        self._tasks: _Tasks | None = None
        self._plan: dict[str, object] = {}
        #: Tasks that Spark turned out to run at once, if it has fewer slots for us than it says.
        self._slots_max: int | None = None
        self._begin_again_s = self._positions_at_s = self._planned_at_s = 0.0
        self._courier = Courier(pipeline.name, self._brokers) if pipeline.has_delays else None
        #: Looks up what is to be served; guarded by `_changing` once the engine has started.
        self._client = KafkaClient(self._brokers)
        #: Reads and commits positions; guarded by `_changing`.
        self._positions = KafkaClient(self._brokers, timeout_s=_ENDS_S_MAX)
        #: Asks for ends, while `_asking` is held; nothing else waits for the answer.
        self._looking = KafkaClient(self._brokers, timeout_s=_ENDS_S_MAX)
        self._asking = threading.Lock()
        self._known_ends: dict[str, dict[Partition, int]] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Creates what is missing, topics and chains, and starts the tasks."""
        brokers = self._brokers
        create_topics(self._pipeline, brokers.bootstrap, config=dict(brokers.settings))
        try:
            for one in self._running:
                self._prepare(one)
                one.meter.start(self._start_of(one), now_s=time.monotonic())
            self._begin()
        except BaseException:
            self.stop()
            raise
        if self._courier is not None:
            self._courier.start()

    def stop(self) -> None:
        """Stops the tasks; the next master does what they have not finished."""
        self._stopped.set()
        if self._courier is not None:
            self._courier.stop()

        with self._changing:
            if self._tasks is not None:
                self._tasks.stop()
                self._look_at_positions()
            self._client.close()
            self._positions.close()
        with self._asking:
            self._looking.close()

    def watch(self, *, until: threading.Event | None = None) -> None:
        """Keeps the teams running until the engine stops. Raises `Unavailable` if one cannot."""
        while not self._stopped.is_set() and not (until is not None and until.is_set()):
            with self._changing:
                if self._stopped.is_set():
                    return
                if time.monotonic() - self._positions_at_s >= _POSITIONS_S:
                    self._look_at_positions()
                self._look()
            self._stopped.wait(_LOOK_S)

    def progress(self) -> list[TeamProgress]:
        """What each team is doing, or did until it was stopped."""
        with self._asking:
            if not self._stopped.is_set():
                self._known_ends = self._ends()
            ends = self._known_ends

        with self._changing:
            if not self._stopped.is_set() and ends is not None:
                self._look_at_positions()
            found = []
            for one in self._running:
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
        while True:
            with self._changing:
                self._look()
                self._look_at_positions()
            with self._asking:
                ends = self._ends()
            # Positions first: what a team has forwarded by then is in the ends of the next one.
            busy = None if ends is None else self._busy(ends)
            if ends is not None and busy is None:
                return
            if time.monotonic() > deadline or self._stopped.is_set():
                one = busy or self._running[0]
                reason = one.meter.last_error or "it is still working"
                raise Unavailable(f"team {one.stage.team!r} did not finish in time: {reason}")
            time.sleep(_LOOK_S)

    def _busy(self, ends: Mapping[str, Mapping[Partition, int]]) -> _Running | None:
        for one in self._running:
            wanted = ends[one.stage.topics.input].items()
            if any(one.meter.position.get(place, 0) < end for place, end in wanted):
                return one
        return None

    # --- positions -------------------------------------------------------------------------------

    def _start_of(self, one: _Running) -> dict[Partition, int]:
        """Where the team continues, as far as its snapshots tell."""
        places = [(one.stage.topics.input, number) for number in one.numbers]
        first = self._client.offsets(dict.fromkeys(places, EARLIEST))
        return first | self._snapshots_of(self._client, one)

    def _snapshots_of(self, client: KafkaClient, one: _Running) -> dict[Partition, int]:
        assert one.chain is not None
        found = {}
        for number in one.numbers:
            place = (one.stage.topics.input, number)
            stored = client.committed(group_of(one.chain.id, number))
            if place in stored:
                found[place] = stored[place][0]
        return found

    def _look_at_positions(self) -> None:
        """Notes how far the teams are, and commits it to their groups, for lag tools."""
        self._positions_at_s = time.monotonic()
        try:
            for one in self._running:
                found = self._snapshots_of(self._positions, one)
                self._note_begun(one, found)
                if one.meter.moved(found, now_s=time.monotonic()):
                    one.committed, one.meter.failures, one.meter.last_error = False, 0, ""
                if not one.committed:
                    self._positions.commit(one.stage.group, one.meter.position)
                    one.committed = True
        except DovetailError as error:
            # They are for display, and for `drain`, which looks again.
            _log.warning("positions not known", pipeline=self._pipeline.name, reason=str(error))

    def _note_begun(self, one: _Running, found: Mapping[Partition, int]) -> None:
        """A partition that has a snapshot now must not begin anew without one."""
        for _, number in found:
            one.meter.served = True
            if number not in one.begun:
                note_begun(self._spark, one.location, number)
                one.begun |= {number}

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

    # --- tasks -----------------------------------------------------------------------------------

    def _prepare(self, one: _Running) -> None:
        topics = one.stage.topics
        there = self._client.partitions([topics.input, topics.results])
        one.numbers = tuple(there[topics.input])
        if one.chain is None:
            one.chain = claim_chain(self._spark, one.location, results=len(there[topics.results]))
        noted = (n for n in one.numbers if has_begun(self._spark, one.location, n))
        one.begun = frozenset(noted)

    def _begin(self) -> None:
        """Hands out the partitions: as many tasks as Spark has slots, each with its part."""
        shares = [share for one in self._running for share in self._shares(one)]
        count = max(1, min(self._slots(), self._slots_max or len(shares), len(shares)))
        lease = Lease(
            {number: shares[number::count] for number in range(count)},
            self._brokers,
            tracing.in_use(),
        )
        self._plan = self._wanted()
        self._planned_at_s = time.monotonic()
        rows = self._spark.range(0, count, numPartitions=count)
        name = f"teams of {self._pipeline.name} {uuid.uuid4().hex[:8]}"
        frame = rows.mapInArrow(lease, TASKS_SQL)
        self._tasks = _Tasks(self._spark, frame, name=name, count=count)

    def _slots(self) -> int:
        """How many tasks Spark can run at once, as it says."""
        return int(self._spark.sparkContext.defaultParallelism)

    def _shares(self, one: _Running) -> list[Share]:
        assert one.chain is not None
        # A topic with fewer partitions than the team has workers gets several for each.
        size = -(-one.stage.workers // max(1, len(one.numbers)))
        return [
            Share(
                stage=one.stage,
                chain=one.chain.id,
                results=one.chain.results,
                number=number,
                size=size,
                created=number in one.begun,
                delays=self._pipeline.has_delays,
                term=self._term or 0,
            )
            for number in one.numbers
        ]

    def _wanted(self) -> dict[str, object]:
        """What the hand-out depends on."""
        return {"slots": self._slots()} | {one.stage.team: one.numbers for one in self._running}

    def _look(self) -> None:
        """Restarts what has ended, and hands out anew what has changed."""
        now_s = time.monotonic()
        if self._tasks is None:
            if now_s >= self._begin_again_s:
                self._restart()
            return
        if self._tasks.over:
            error, self._tasks = self._tasks.error or "", None
            self._note_failure(error)
            return

        if self._is_steady(self._tasks):
            for one in self._running:
                one.meter.failures, one.meter.last_error = 0, ""
        if now_s - self._planned_at_s > _PLAN_S:
            self._planned_at_s = now_s
            self._hand_out_anew()

    def _restart(self) -> None:
        try:
            for one in self._running:
                self._prepare(one)
            self._begin()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again and counted
            self._note_failure(str(error))

    def _hand_out_anew(self) -> None:
        """Input topics that have grown, and slots that Spark has got or lost."""
        try:
            for one in self._running:
                there = self._positions.partitions([one.stage.topics.input])
                one.numbers = tuple(there[one.stage.topics.input])
        except DovetailError:
            return
        tasks = self._tasks
        assert tasks is not None, "they run"
        if self._wanted() != self._plan:
            self._slots_max = None
        elif 0 < (running := tasks.running()) < tasks.count and self._is_steady(tasks):
            # Others use the slots: those that run take over what the others would never get.
            self._slots_max = running
        else:
            return
        _log.info("partitions are handed out anew", pipeline=self._pipeline.name)
        tasks.stop()
        self._tasks, self._begin_again_s = None, 0.0

    def _is_steady(self, tasks: _Tasks) -> bool:
        return time.monotonic() - tasks.started_s > _STEADY_S

    def _note_failure(self, error: str) -> None:
        reason, now_s = error[:2000], time.monotonic()
        named = _TEAM.search(error)
        blamed = [one for one in self._running if named is None or one.stage.team == named.group(1)]
        failures = 0
        for one in blamed:
            meter = one.meter
            meter.failures += 1
            meter.last_error = reason
            failures = max(failures, meter.failures)
            self._metrics.failure(self._pipeline.name, one.stage.team)
            if meter.failures >= FAILURES_MAX and _TOO_SLOW not in reason:
                meter.failed = True
                raise Unavailable(
                    f"team {one.stage.team!r} failed {meter.failures} times in a row: {reason}"
                )

        # Masters that failed together do not come back in step.
        pause_s = min(_PAUSE_S_MAX, 0.1 * 2**failures) * random.uniform(0.5, 1.5)  # noqa: S311
        _log.warning(
            "tasks failed; they are restarted",
            teams=[one.stage.team for one in blamed],
            failures=failures,
            reason=reason,
        )
        self._begin_again_s = now_s + pause_s
