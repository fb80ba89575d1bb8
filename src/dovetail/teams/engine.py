"""The engine of a pipeline: one Spark job whose tasks serve all partitions of all its teams.

    driver                                    tasks, one for each slot of Spark
    which task serves what (`Lease`) ────►    partitions: jobs in, outcomes out (`serving`)
    positions of the snapshots ◄── broker ◄── snapshots

The driver that runs it is the teams' master. It hands out partitions, watches, and restarts what
fails; no job passes through it. All results are in the topics and in the groups of snapshots, so
another driver with the same checkpoint continues where this one was killed (`chain` says why
nothing is lost or doubled; `master` says which driver may run). The checkpoint holds what names the
chains.

The tasks run until they are ended: by `stop`, or because there is more to hand out, when an input
topic has grown, the number of Spark's slots has changed, or Spark runs fewer tasks at once than it
reports. Tasks that fail are restarted after a pause, because most failures are transient: a broker
restarts, an executor is lost. `TeamProgress` reports failures, and after `FAILURES_MAX` of them
without any progress in between the engine ends.
"""

import random
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from dovetail import tracing
from dovetail.errors import DovetailError, InvalidInput, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient, Partition
from dovetail.logging import get_logger
from dovetail.spark.java_process import SparkGone, has_ended
from dovetail.teams.chains.chain_id import ChainId, Copy, claim_chain, copy_of, group_of, keep_copy
from dovetail.teams.chains.snapshot import note_in
from dovetail.teams.delays import Courier
from dovetail.teams.graph import Pipeline, Stage
from dovetail.teams.metrics import PipelineMetrics
from dovetail.teams.progress import Note, TeamMeter, TeamProgress
from dovetail.teams.spark_job import SparkJob
from dovetail.teams.tasks.attempt import Share
from dovetail.teams.tasks.dealing import dealt, units_of
from dovetail.teams.tasks.lease import Lease
from dovetail.teams.topics import create_topics
from dovetail.teams.travel.parcel import CannotTravel, Parcel, check_stage, lasting_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
#: Between two copies of a snapshot to the checkpoint.
_COPY_S = 60.0
#: A progress report does not wait longer for an unreachable broker; it shows what is known.
_ENDS_S_MAX = 2.0
#: On the context of a session: the engines that run in it.
_ENGINES = "_dovetail_engines"
_TEAM = re.compile(r"TeamFailed: team '([^']+)'")

_log = get_logger("teams")


@dataclass(slots=True)
class _Running:
    stage: Stage
    meter: TeamMeter
    location: str
    #: It is the gathering behind the team.
    gathers: bool = False
    chain: ChainId | None = None
    numbers: tuple[int, ...] = ()
    #: The snapshots that partitions have in the checkpoint, and when each was kept.
    copies: dict[int, Copy] = field(default_factory=dict)
    kept_at_s: dict[int, float] = field(default_factory=dict)
    #: Whether the position of the meter is in the group too.
    committed: bool = True

    @property
    def input(self) -> str:
        gather = self.stage.gather
        return gather.topic if self.gathers and gather else self.stage.topics.input

    @property
    def results(self) -> str:
        gather = self.stage.gather
        return gather.target.input_topic if self.gathers and gather else self.stage.topics.results

    @property
    def group(self) -> str:
        return f"{self.stage.group}.gather" if self.gathers else self.stage.group


def _all_of(pipeline: Pipeline, where: str, team: str | None) -> list[_Running]:
    """The teams of a pipeline, or one of them, and the gatherings behind them."""
    stages = [one for one in pipeline.stages() if team in (None, one.team)]
    teams = [_Running(one, TeamMeter(one.team), f"{where}/{one.team}") for one in stages]
    gathers = [
        _Running(one, TeamMeter(one.team), f"{where}/{one.team}.gather", gathers=True)
        for one in stages
        if one.gather is not None
    ]
    return teams + gathers


def _in_session(spark: "SparkSession") -> "set[Engine]":
    """The engines that run in a session of Spark."""
    context = spark.sparkContext
    found: set[Engine] | None = getattr(context, _ENGINES, None)
    if found is None:
        found = set()
        setattr(context, _ENGINES, found)
    return found


def check_slots(spark: "SparkSession", engines: int) -> None:
    """Raises `InvalidInput` if Spark can never run a task for each of so many engines."""
    # A cluster may have more of them soon; a local Spark never has.
    context = spark.sparkContext
    local = re.fullmatch(r"local(\[.*\])?", context.master or "") is not None
    if local and context.defaultParallelism < engines:
        raise InvalidInput(
            f"Spark runs {context.defaultParallelism} tasks at once ({context.master}), and "
            f"{engines} engines in it need one each; give it --master 'local[{engines}]' or more"
        )


class Engine:
    """Runs the teams of a pipeline on a Spark session, until it is stopped."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: "SparkSession",
        *,
        bootstrap: str,
        checkpoint: str,
        team: str | None = None,
        term: int | None = None,
        metrics: PipelineMetrics | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`checkpoint` is a path that all masters share, `term` is this master's, and `config` has
        TLS and login by librdkafka's names. With `team` it runs that team alone, and others run
        the rest. Raises `InvalidInput`."""
        self._pipeline, self._spark, self._team = pipeline, spark, team
        self.ui: str | None = spark.sparkContext.uiWebUrl
        self._brokers, self._term = Brokers.at(bootstrap, config), term
        self._running = _all_of(pipeline, f"{checkpoint.rstrip('/')}/{pipeline.name}", team)
        self._metrics = metrics or PipelineMetrics()
        self._stopped = threading.Event()
        #: Held while tasks are started again or stopped: none is started after the end.
        self._changing = threading.Lock()
        self._tasks: SparkJob | None = None
        self._plan: dict[str, object] = {}
        #: Tasks that Spark turned out to run at once, if it has fewer slots for us than it says.
        self._slots_max: int | None = None
        self._begin_again_s = self._positions_at_s = self._planned_at_s = 0.0
        delays = pipeline.has_delays if team is None else pipeline.delays_of(team)
        self._courier = Courier(pipeline.name, self._brokers) if delays else None
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
        """Creates what is missing, topics and chains, and starts the tasks.

        Raises `CannotTravel` for a function that Spark's workers cannot get, and `InvalidInput` if
        there is no slot for it beside the engines that run. One that was stopped meanwhile starts
        nothing.
        """
        check_slots(self._spark, len(_in_session(self._spark) | {self}))
        for one in self._running:
            check_stage(one.stage)
        brokers = self._brokers
        create_topics(self._pipeline, brokers.bootstrap, config=dict(brokers.settings))
        try:
            # Whoever stops it meanwhile waits.
            with self._changing:
                for one in self._running:
                    self._prepare(one)
                    one.meter.start(self._start_of(one), now_s=time.monotonic())
                if self._stopped.is_set():
                    return
                _in_session(self._spark).add(self)
                self._begin()
        except BaseException:
            self.stop()
            raise
        if self._courier is not None:
            self._courier.start()

    def stop(self) -> None:
        """Stops the tasks; the next master does what they have not finished."""
        self._stopped.set()
        _in_session(self._spark).discard(self)
        if self._courier is not None:
            self._courier.end()

        with self._changing:
            if self._tasks is not None:
                self._tasks.stop()
                self._look_at_positions()
            self._client.close()
            self._positions.close()
        with self._asking:
            self._looking.close()
        if self._courier is not None:
            self._courier.stop()

    def watch(self, *, until: threading.Event | None = None) -> None:
        """Keeps the teams running until the engine stops. Raises `Unavailable` if one cannot, and
        `SparkGone`."""
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
            for one in (one for one in self._running if not one.gathers):
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
            wanted = ends[one.input].items()
            if any(one.meter.position.get(place, 0) < end for place, end in wanted):
                return one
        return None

    # --- positions -------------------------------------------------------------------------------

    def _start_of(self, one: _Running) -> dict[Partition, int]:
        """Where the team continues, as far as its snapshots tell."""
        places = [(one.input, number) for number in one.numbers]
        first = self._client.offsets(dict.fromkeys(places, EARLIEST))
        return first | self._snapshots_of(self._client, one)

    def _snapshots_of(self, client: KafkaClient, one: _Running) -> dict[Partition, int]:
        assert one.chain is not None
        found = {}
        for number in one.numbers:
            place = (one.input, number)
            stored = client.committed(group_of(one.chain.id, number))
            if place in stored:
                found[place] = stored[place][0]
                self._keep(one, number, stored)
                one.meter.notes[place] = Note.decoded(note_in(stored[place][1]))
        return found

    def _look_at_positions(self) -> None:
        """Notes how far the teams are, and commits it to their groups, for lag tools."""
        self._positions_at_s = time.monotonic()
        try:
            for one in self._running:
                found = self._snapshots_of(self._positions, one)
                if one.meter.moved(found, now_s=time.monotonic()):
                    one.committed, one.meter.failures, one.meter.last_error = False, 0, ""
                if not one.committed:
                    self._positions.commit(one.group, one.meter.position)
                    one.committed = True
        except DovetailError as error:
            # They are for display, and for `drain`, which looks again.
            _log.warning("positions not known", pipeline=self._pipeline.name, reason=str(error))

    def _keep(self, one: _Running, number: int, stored: Copy) -> None:
        """A partition that has a snapshot must not begin anew without one."""
        one.meter.served = True
        now_s = time.monotonic()
        if number in one.copies and now_s - one.kept_at_s.get(number, 0.0) < _COPY_S:
            return
        one.kept_at_s[number] = now_s
        if one.copies.get(number) != stored:
            keep_copy(self._spark, one.location, number, stored)
            one.copies[number] = stored

    def _ends(self) -> dict[str, dict[Partition, int]] | None:
        """The ends of inputs and dead letters, by topic; None if the broker does not answer."""
        topics = [t for one in self._running for t in (one.input, one.stage.topics.dead)]
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
        there = self._client.partitions([one.input, one.results])
        one.numbers = tuple(there[one.input])
        if one.chain is None:
            one.chain = claim_chain(self._spark, one.location, results=len(there[one.results]))
        kept = {n: copy_of(self._spark, one.location, n) for n in one.numbers}
        one.copies = {number: copy for number, copy in kept.items() if copy is not None}

    def _begin(self) -> None:
        """Hands out the partitions: as many tasks as Spark has slots, each with its part."""
        shares = [share for one in self._running for share in self._shares(one)]
        units = units_of(shares)
        count = max(1, min(self._slots(), self._slots_max or len(units), len(units)))
        lease = Lease(
            Parcel.of(dealt(units, count)),
            self._brokers,
            tracing.in_use(),
        )
        self._plan = self._wanted()
        self._planned_at_s = time.monotonic()
        # Not a query: Spark's SQL takes as long to start as all the rest of Spark.
        tasks = self._spark.sparkContext.parallelize(range(count), count).mapPartitions(lease)
        what = f"teams of {self._pipeline.name}" if self._team is None else f"team {self._team}"
        name = f"{what} {uuid.uuid4().hex[:8]}"
        self._tasks = SparkJob(tasks, pool=self._pipeline.name, name=name, count=count)

    def _slots(self) -> int:
        """How many tasks Spark can run at once, as it says."""
        # Tasks that never end leave nothing to others: engines of one session divide its slots.
        slots, engines = self._spark.sparkContext.defaultParallelism, len(_in_session(self._spark))
        # What the masters of the other teams may need here is not taken first.
        teams = 1 if self._team is None else len(self._pipeline.teams)
        return max(1, int(slots) // max(engines, teams))

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
                copy=one.copies.get(number),
                delays=self._pipeline.has_delays,
                term=self._term or 0,
                gathers=one.gathers,
                own=self._team is not None,
            )
            for number in one.numbers
        ]

    def _wanted(self) -> dict[str, object]:
        """What the hand-out depends on."""
        return {"slots": self._slots()} | {one.input: one.numbers for one in self._running}

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
                one.numbers = tuple(self._positions.partitions([one.input])[one.input])
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

    def _is_steady(self, tasks: SparkJob) -> bool:
        return time.monotonic() - tasks.started_s > _STEADY_S

    def _spark_ended(self) -> bool:
        return has_ended(self._spark)

    def _note_failure(self, error: str) -> None:
        if self._spark_ended():
            raise SparkGone(f"Spark has ended, and this driver with it: {error[:500]}")
        lasting = lasting_reason(error)
        if lasting is not None:
            raise CannotTravel(lasting)
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
