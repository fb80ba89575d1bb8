"""Runs a pipeline from the command line: alone or as one of several masters, with a display."""

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from dovetail.background import on_signals, start_task, start_thread
from dovetail.cli.options import Target
from dovetail.cli.output import answers, note, print_json_line, print_table
from dovetail.cli.printable import printable
from dovetail.coordination import Coordinator
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.election import Algorithm, ElectionSettings, HttpSite
from dovetail.errors import DovetailError
from dovetail.exposition import BackgroundCollector, serve_metrics
from dovetail.settings import Settings
from dovetail.supervision import PROCESS
from dovetail.teams.graph import Masters, Pipeline
from dovetail.teams.report import COLUMNS, Report, rows_of
from dovetail.teams.reporter import Reporter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Time between two looks at the teams.
_LOOK_S = 1.0
#: For `--once`: a pipeline that has not come to rest within a day never will.
_ONCE_S_MAX = 86_400.0


@contextmanager
def reporting(settings: Settings, pipeline: Pipeline, target: Target) -> Iterator[Reporter]:
    """A reporter, and its metrics over HTTP if the settings want them."""
    with Reporter(pipeline, target.bootstrap, config=target.security) as reporter:
        where = settings.metrics
        if not where.enabled:
            yield reporter
            return
        reporter.metrics.registry.register(BackgroundCollector(PROCESS))
        server = serve_metrics(reporter.metrics.registry, where.host, where.port)
        note(f"metrics at {server.url}")
        try:
            yield reporter
        finally:
            server.stop()


def run_alone(
    pipeline: Pipeline,
    spark: "SparkSession",
    reporter: Reporter,
    *,
    target: Target,
    checkpoint: str,
    once: bool,
    as_json: bool,
) -> None:
    """Runs the teams until it is interrupted, or with `once` until there is nothing to do."""
    from dovetail.teams.engine import Engine

    display = Display(as_json=as_json)
    stop = threading.Event()
    on_signals(lambda _: stop.set(), signal.SIGTERM)
    engine = Engine(
        pipeline,
        spark,
        bootstrap=target.bootstrap,
        checkpoint=checkpoint,
        metrics=reporter.metrics,
        config=target.security,
    )
    with engine:
        reporter.leads(engine)
        if once:
            engine.drain(timeout_s=_ONCE_S_MAX)
            display.show(reporter.look())
            return
        with display.live(lambda: reporter.latest):
            engine.watch(until=stop)


def stand_by(
    settings: Settings,
    pipeline: Pipeline,
    spark: "SparkSession",
    reporter: Reporter,
    *,
    target: Target,
    checkpoint: str,
    as_json: bool,
) -> None:
    """Takes part in the election, and runs the teams while it is the master.

    Raises `InvalidInput` if each team has a master and Spark no slot for each.
    """
    from dovetail.teams.engine import check_slots
    from dovetail.teams.master import (
        Master,
        Warmth,
        masters_log,
        member_of,
        run_team_masters,
        settings_for,
    )

    values = settings.stream.model_dump()
    values["coordination_stream_id"] = values["coordination_stream_id"] or masters_log(pipeline)
    wanted = ElectionSettings.of(values)
    display = Display(as_json=as_json)
    by_team = pipeline.masters is Masters.TEAM
    if by_team:
        check_slots(spark, len(pipeline.teams))

    async def lead() -> None:
        async with _coordinator(settings, wanted) as coordinator:
            where, config = target.bootstrap, target.security
            site, warmth = HttpSite(), Warmth(spark)

            def master_of(team: str | None) -> Master:
                mine = wanted if team is None else settings_for(wanted, team)
                return Master(
                    pipeline,
                    spark,
                    member_of(mine, where, coordinator=coordinator, config=config, site=site),
                    bootstrap=where,
                    checkpoint=checkpoint,
                    team=team,
                    warmth=warmth,
                    on_event=lambda state, term: display.say(state, term, team=team),
                    reporter=reporter,
                    config=config,
                )

            running = start_task(
                run_team_masters(pipeline.teams, master_of) if by_team else master_of(None).run(),
                name="teams/master",
                of=pipeline.name,
                expected=(DovetailError,),
            )
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
            try:
                await running
            except asyncio.CancelledError:
                return

    with display.live(lambda: reporter.latest):
        asyncio.run(lead())


@asynccontextmanager
async def _coordinator(
    settings: Settings, wanted: ElectionSettings
) -> AsyncIterator[Coordinator | None]:
    """The coordination service where the election needs one, else nothing."""
    if wanted.algorithm is not Algorithm.COORDINATOR:
        yield None
        return

    etcd = EtcdSettings.of(settings.coordination)
    async with await EtcdCoordinator.open(etcd) as coordinator:
        yield coordinator


class Display:
    """What is shown while teams run: a live table on a terminal, else a line for each change."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._last: dict[str, Any] = {}
        #: The loop and the thread of the display both print, and Python's streams mix lines.
        self._printing = threading.Lock()

    def say(self, state: str, term: int, *, team: str | None = None) -> None:
        """Reports a step of the election, of the pipeline or of a team."""
        if self._json:
            about = {} if team is None else {"team": team}
            self._line({"state": state, "term": term} | about)
        else:
            of = "" if team is None else f"{team}: "
            note(f"{of}{state}" + (f", term {term}" if term else ""))

    def show(self, report: Report) -> None:
        """Shows the teams, once."""
        document = report.as_document()
        if self._json:
            self._line({"teams": document["teams"]})
            return
        print_table(COLUMNS, rows_of(document))

    @contextmanager
    def live(self, latest: Callable[[], Report | None]) -> Iterator[None]:
        """Shows the teams as they are, while the block runs."""
        stop = threading.Event()
        showing = start_thread(lambda: self._keep_showing(latest, stop), name="cli/display")
        try:
            yield
        finally:
            stop.set()
            showing.join(_LOOK_S * 2)

    def _keep_showing(self, latest: Callable[[], Report | None], stop: threading.Event) -> None:
        if self._json or not sys.stdout.isatty():
            while not stop.wait(_LOOK_S):
                if self._json and (report := latest()) is not None:
                    self.show(report)
            return
        with Live(console=answers(), refresh_per_second=2, transient=True) as shown:
            while not stop.wait(_LOOK_S):
                if (report := latest()) is not None:
                    shown.update(live_table(report.as_document()))

    def _line(self, document: dict[str, Any]) -> None:
        with self._printing:
            if document != self._last:
                self._last = document
                print_json_line(document)


def live_table(document: dict[str, Any]) -> Table:
    """A report as a table that is drawn anew every second."""
    table = Table(title=title_of(document))
    for column in COLUMNS:
        table.add_column(column)
    for row in rows_of(document):
        table.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
    return table


def title_of(document: dict[str, Any]) -> str:
    """The pipeline, its state and its driver."""
    term = f", term {document['term']}" if document["term"] else ""
    title = f"{document['pipeline']}: {document['state']}{term} ({document['driver']})"
    if document.get("ui"):
        title += f"; Spark's pages: {document['ui']}"
    standbys = document.get("standbys")
    return f"{title}; standing by: {', '.join(standbys)}" if standbys else title
