"""Masters of a pipeline: one runs its teams, the others stand by, warm.

    standby ──elected──► master of a term ──lost──► standby
    starts Spark,         starts the engine from     stops the engine
    warms it up           the shared checkpoint

An election decides which driver may try (`dovetail.election`: majority, bully, or the coordination
service). The broker decides which one succeeds: it stores one outcome for each job, whichever
master works on it (`chain`), and a task of a term below one that has committed does not begin. So
an old master that wakes up can neither repeat nor contradict what its successor did.

A driver whose Spark has ended, or does not let it stop its tasks, ends; another one then leads.

A standby has started its Spark session and repeats a small job on it, so that Python workers are
forked, modules imported and classes loaded. Once is not enough: Spark ends Python workers that were
idle for a minute. It takes part in the election before it is warm: on a full cluster that job waits
for the slots of the very master that it may have to replace.

With `masters="team"` a driver is all this for each team: one election, one engine, one term each,
in one log and on one port. The drivers of a pipeline then share its teams; a driver that is lost,
or a team that fails again and again, leaves the other teams where they are.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.background import first_of, keep_task
from dovetail.coordination import Coordinator
from dovetail.election import (
    Algorithm,
    ClusterMember,
    ElectionSettings,
    HttpSite,
    HttpTransport,
    Leadership,
    MemberStatus,
    Role,
    member_on_kafka,
)
from dovetail.errors import InvalidSetting
from dovetail.logging import get_logger
from dovetail.spark import java_process
from dovetail.spark.java_process import SparkGone
from dovetail.teams.engine import Engine
from dovetail.teams.graph import Pipeline
from dovetail.teams.reporter import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger("teams")

#: Between two warm-up jobs: less than the minute after which Spark ends idle workers.
WARM_S = 40.0
#: Between two looks whether Spark is there.
_LOOK_S = 1.0
#: Longer than an engine needs whose Spark answers.
STOP_S_MAX = 120.0
#: Of one master: starting, watching and stopping an engine, and a warm-up that waits for slots.
_THREADS = 4

#: Called with an event and the term: `standby` (waits), `warm` (Spark's workers are loaded),
#: `candidate` (the master is silent), `master` (elected), `started` (its tasks are handed out),
#: `lost` (not the master any more).
OnEvent = Callable[[str, int], None]


def masters_log(pipeline: Pipeline) -> str:
    """The topic in which the masters of a pipeline find each other, unless one is set."""
    return f"dovetail.{pipeline.name}.masters"


def settings_for(settings: ElectionSettings, team: str) -> ElectionSettings:
    """The settings of the election of one team, beside those of the others."""
    votes = settings.vote_path
    return replace(
        settings,
        environment_identifier=f"{settings.environment_identifier}.{team}",
        endpoint_path=f"{settings.endpoint_path.rstrip('/')}/{team}",
        vote_path=votes.with_name(f"{votes.name}.{team}"),
    )


def member_of(
    settings: ElectionSettings,
    bootstrap: str,
    *,
    coordinator: Coordinator | None = None,
    config: Mapping[str, str] | None = None,
    site: HttpSite | None = None,
) -> ClusterMember:
    """A member of the masters' election. Raises `InvalidSetting`."""
    # With a coordination service the members need not reach each other.
    alone = settings.algorithm is Algorithm.COORDINATOR
    transport = None if alone else HttpTransport(settings, site=site)
    return member_on_kafka(
        settings, bootstrap, transport=transport, coordinator=coordinator, config=config
    )


def warm_up(spark: "SparkSession") -> None:
    """Runs a small job, so that the first real one finds everything loaded."""

    def same(numbers: Iterable[int]) -> Iterable[int]:
        import dovetail.teams.tasks.lease  # noqa: F401 - what a task of a team needs

        return numbers

    spark.sparkContext.parallelize(range(4), 4).mapPartitions(same).collect()


class Warmth:
    """Keeps the Python workers of a session loaded while somebody waits to be elected."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark
        self._waiting: list[Callable[[], None]] = []
        self._warming: asyncio.Task[None] | None = None
        self._warm = False
        #: Set when there is no Spark any more.
        self.gone = asyncio.Event()

    @asynccontextmanager
    async def kept(self, on_warm: Callable[[], None]) -> AsyncIterator[None]:
        """Warm while the block runs, if there are slots; `on_warm` is called once it is."""
        if self._warm:
            on_warm()
        self._waiting.append(on_warm)
        if self._warming is None:
            self._warming = keep_task(self._keep_warm, name="teams/keep-warm")
        try:
            yield
        finally:
            self._waiting.remove(on_warm)
            if not self._waiting:
                # A job that is running ends by itself; nobody waits for it.
                self._warming.cancel()
                self._warming = None

    async def _keep_warm(self) -> None:
        while True:
            try:
                await asyncio.to_thread(warm_up, self._spark)
                if not self._warm:
                    self._warm = True
                    for on_warm in self._waiting:
                        on_warm()
            except Exception as error:  # noqa: BLE001 - a task may be lost, and Spark goes on
                _log.warning("warm-up failed", reason=str(error)[:500])
                if await asyncio.to_thread(java_process.has_ended, self._spark):
                    self.gone.set()
            for _ in range(int(WARM_S / _LOOK_S)):
                if java_process.has_exited(self._spark):
                    self.gone.set()
                await asyncio.sleep(_LOOK_S)


class Master:
    """One driver among several: it leads when it is elected, and stands by otherwise."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: "SparkSession",
        member: ClusterMember,
        *,
        bootstrap: str,
        checkpoint: str,
        team: str | None = None,
        warmth: Warmth | None = None,
        on_event: OnEvent | None = None,
        reporter: Reporter | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Of the pipeline, or of one `team`; the masters of teams share the `warmth`."""
        self._team, self._warmth = team, warmth or Warmth(spark)
        self._pipeline, self._spark, self._member = pipeline, spark, member
        self._bootstrap, self._checkpoint, self._config = bootstrap, checkpoint, config
        self._on_event = on_event or (lambda _event, _term: None)
        self._reporter = reporter
        #: The engine, while this is the master.
        self.engine: Engine | None = None
        self._said_warm = False

    async def run(self) -> None:
        """Takes part until it is cancelled. Raises what ended the member or the engine."""
        async with self._member as member:
            self._on_event("standby", 0)
            self._report_standby()
            member.on_change.append(self._on_change)
            while True:
                leadership = await self._elected(member)
                about = {"team": self._team} if self._team else {}
                _log.info("this driver is the master", term=leadership.term, **about)
                self._on_event("master", leadership.term)
                await self._lead(leadership.term, leadership.lost)
                self._report_standby()

    async def _lead(self, term: int, lost: asyncio.Event) -> None:
        engine = Engine(
            self._pipeline,
            self._spark,
            bootstrap=self._bootstrap,
            checkpoint=self._checkpoint,
            team=self._team,
            term=term,
            metrics=None if self._reporter is None else self._reporter.metrics,
            config=self._config,
        )
        try:
            await first_of(asyncio.to_thread(engine.start), lost.wait())
            if not lost.is_set():
                self.engine = engine
                self._on_event("started", term)
                if self._reporter is not None:
                    self._reporter.leads(engine, term, team=self._team)
                await first_of(asyncio.to_thread(engine.watch), lost.wait())
        finally:
            self.engine = None
            if lost.is_set():
                # Before anything that Spark could hold up.
                self._on_event("lost", term)
            await self._end(engine)

    async def _end(self, engine: Engine) -> None:
        """Stops an engine, and with it the threads of `start` and `watch`, which no cancellation
        reaches. Raises `SparkGone` if Spark does not let it."""
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await asyncio.to_thread(engine.stop)
        except TimeoutError:
            java_process.end(self._spark)
            raise SparkGone(f"Spark did not end its tasks within {STOP_S_MAX:g} s") from None

    async def _elected(self, member: ClusterMember) -> Leadership:
        """Waits to be elected, warm. Raises `SparkGone`."""
        async with self._warmth.kept(self._say_warm):
            while True:
                _, gone = await first_of(member.lead(), self._warmth.gone.wait())
                if gone:
                    raise SparkGone("Spark has ended, and this driver with it")
                if member.leadership is not None:
                    return member.leadership

    def _say_warm(self) -> None:
        if not self._said_warm:
            self._said_warm = True
            self._on_event("warm", 0)

    def _on_change(self, status: MemberStatus) -> None:
        if status.role is Role.CANDIDATE:
            self._on_event("candidate", status.term)

    def _report_standby(self) -> None:
        if self._reporter is not None:
            self._reporter.stands_by(team=self._team)


async def run_team_masters(teams: Iterable[str], make: Callable[[str], Master]) -> None:
    """Runs a master for each team until it is cancelled; one that fails is made anew after a pause.

    Raises `InvalidSetting`, and `SparkGone`.
    """
    teams = list(teams)
    threads = ThreadPoolExecutor(_THREADS * len(teams), "masters")
    asyncio.get_running_loop().set_default_executor(threads)

    def kept(team: str) -> asyncio.Task[None]:
        return keep_task(
            lambda: make(team).run(),
            name="teams/team-master",
            of=team,
            expected=(InvalidSetting, SparkGone),
        )

    await first_of(*map(kept, teams))
