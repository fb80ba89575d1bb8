"""Masters of a pipeline: one runs its teams, the others stand by, warm.

    standby ──elected──► master of a term ──lost──► standby
    starts Spark,         starts the engine from     stops the engine
    warms it up           the shared checkpoint

An election decides who may try (`dovetail.election`: majority, bully, or the coordination service).
Who succeeds is decided where things are stored: the broker stores one outcome for each job, whoever
works on it (`chain`), and a task of a term below one that has committed does not begin. So an old
master that wakes up can neither repeat nor contradict what its successor did.

A standby has its Spark session started and runs a small query on it again and again, so that Python
workers are forked, modules imported and classes loaded. Once is not enough: Spark ends Python
workers that were idle for a minute. It takes part in the election before it is warm: on a full
cluster that query waits for the slots of the very master that it may have to replace.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dovetail.background import first_of, keep_task
from dovetail.coordination import Coordinator
from dovetail.election import (
    Algorithm,
    ClusterMember,
    ElectionSettings,
    HttpTransport,
    Leadership,
    MemberStatus,
    Role,
    member_on_kafka,
)
from dovetail.logging import get_logger
from dovetail.teams.engine import Engine
from dovetail.teams.graph import Pipeline
from dovetail.teams.reporter import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger("teams")

#: Between two warm-up queries: less than the minute after which Spark ends idle workers.
WARM_S = 40.0

#: Called with an event and the term: `standby` (waits), `warm` (Spark's workers are loaded),
#: `candidate` (the master is silent), `master` (elected), `started` (its tasks are handed out),
#: `lost` (not the master any more).
OnEvent = Callable[[str, int], None]


def masters_log(pipeline: Pipeline) -> str:
    """The topic in which the masters of a pipeline find each other, unless one is set."""
    return f"dovetail.{pipeline.name}.masters"


def member_of(
    settings: ElectionSettings,
    bootstrap: str,
    *,
    coordinator: Coordinator | None = None,
    config: Mapping[str, str] | None = None,
) -> ClusterMember:
    """A member of the masters' election. Raises `InvalidSetting`."""
    # With a coordination service the members need not reach each other.
    transport = None if settings.algorithm is Algorithm.COORDINATOR else HttpTransport(settings)
    return member_on_kafka(
        settings, bootstrap, transport=transport, coordinator=coordinator, config=config
    )


def warm_up(spark: "SparkSession") -> None:
    """Runs a small query, so that the first real one finds everything loaded."""

    def same(batches):  # type: ignore[no-untyped-def]
        import dovetail.teams.lease  # noqa: F401 - what a task of a team needs

        yield from batches

    spark.range(0, 64, numPartitions=4).mapInArrow(same, "id long").count()


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
        on_event: OnEvent | None = None,
        reporter: Reporter | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._pipeline, self._spark, self._member = pipeline, spark, member
        self._bootstrap, self._checkpoint, self._config = bootstrap, checkpoint, config
        self._on_event = on_event or (lambda _event, _term: None)
        self._reporter = reporter
        self._warm = False
        #: The engine, while this is the master.
        self.engine: Engine | None = None

    async def run(self) -> None:
        """Takes part until it is cancelled. Raises what ended the member or the engine."""
        async with self._member as member:
            self._on_event("standby", 0)
            self._report_standby()
            member.on_change.append(self._on_change)
            while True:
                leadership = await self._elected(member)
                _log.info("this driver is the master", term=leadership.term)
                self._on_event("master", leadership.term)
                await self._lead(leadership.term, leadership.lost)
                self._on_event("lost", leadership.term)
                self._report_standby()

    async def _lead(self, term: int, lost: asyncio.Event) -> None:
        engine = Engine(
            self._pipeline,
            self._spark,
            bootstrap=self._bootstrap,
            checkpoint=self._checkpoint,
            term=term,
            metrics=None if self._reporter is None else self._reporter.metrics,
            config=self._config,
        )
        try:
            await asyncio.to_thread(engine.start)
            self.engine = engine
            self._on_event("started", term)
            if self._reporter is not None:
                self._reporter.leads(engine, term)
            await first_of(asyncio.to_thread(engine.watch), lost.wait())
        finally:
            self.engine = None
            # It ends the thread of `watch` too, which no cancellation reaches.
            await asyncio.to_thread(engine.stop)

    async def _elected(self, member: ClusterMember) -> Leadership:
        """Waits to be elected, warm."""
        warming = keep_task(self._keep_warm, name="teams/keep-warm")
        try:
            return await member.lead()
        finally:
            # A query that is running ends by itself; nobody waits for it.
            warming.cancel()

    async def _keep_warm(self) -> None:
        while True:
            try:
                await asyncio.to_thread(warm_up, self._spark)
                if not self._warm:
                    self._warm = True
                    self._on_event("warm", 0)
            except Exception as error:  # noqa: BLE001 - if Spark is gone, the takeover will fail
                _log.warning("warm-up failed", reason=str(error)[:500])
            await asyncio.sleep(WARM_S)

    def _on_change(self, status: MemberStatus) -> None:
        if status.role is Role.CANDIDATE:
            self._on_event("candidate", status.term)

    def _report_standby(self) -> None:
        if self._reporter is not None:
            self._reporter.stands_by()
