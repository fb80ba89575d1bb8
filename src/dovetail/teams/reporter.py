"""Reports the progress of a driver: to its metrics, to watchers, and to the cluster.

Its thread runs once a second. It never delays the teams, and an unreachable broker costs only
reports: what matters is in the checkpoint.

Not here: what a report says (`report`, `progress`). `leads` and `stands_by` report who leads.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import msgspec
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # Its exports are implicit.
    AdminClient,
    NewTopic,
)

from dovetail.background import keep_thread
from dovetail.errors import Refused
from dovetail.kafka.client.brokers import Brokers
from dovetail.logging import get_logger
from dovetail.spark.records import COMPILED
from dovetail.supervision import current
from dovetail.teams.graph import Pipeline
from dovetail.teams.metrics import PipelineMetrics
from dovetail.teams.progress import PipelineState, TeamState, pipeline_state, standby_teams
from dovetail.teams.report import (
    EVERY_S_MAX,
    TOPIC,
    TOPIC_CONFIG,
    Report,
    edges_of,
    parts_of,
)
from dovetail.teams.topics import create

if TYPE_CHECKING:
    from dovetail.teams.engine import Engine

#: Between two looks at the teams.
LOOK_S = 1.0
#: How long the last report may take.
_LAST_REPORT_S = 3.0
_ADMIN_S = 10.0

_log = get_logger("teams")


class Reporter:
    """Looks at a driver's engine, and reports."""

    def __init__(
        self,
        pipeline: Pipeline,
        bootstrap: str,
        *,
        metrics: PipelineMetrics | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """`config` has TLS and login, by librdkafka's names. Raises `InvalidInput`."""
        self.metrics = metrics or PipelineMetrics()
        #: The last report.
        self.latest: Report | None = None
        self._pipeline, self._brokers = pipeline, Brokers.at(bootstrap, config)
        self._edges, self._parts = edges_of(pipeline), parts_of(pipeline)
        self._driver = f"{socket.gethostname()}:{os.getpid()}"
        self._started_ms = _now_ms()
        #: The engines of this driver and their terms, by team; under None one of the pipeline.
        self._led: dict[str | None, tuple[Engine, int]] = {}
        self._term = 0
        self._written: Report | None = None
        self._written_at = 0.0
        self._topic_created = False
        self._stopped = False
        #: Set when there is something to report before the next second.
        self._wake = threading.Event()
        self._supervisor = current()
        self._looking = threading.Lock()
        self._thread: threading.Thread | None = None
        self._producer = Producer(self._brokers.for_librdkafka())

    def __enter__(self) -> Self:
        self._thread = keep_thread(self._run, name="teams/reporter", stopped=threading.Event())
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._last_report(failed=error if isinstance(error, Exception) else None)

    def leads(self, engine: "Engine", term: int = 0, *, team: str | None = None) -> None:
        """Returns at once. This driver is the master, of the pipeline or of a team; `term` is 0
        where there is no election."""
        self._led = {**self._led, team: (engine, term)}
        self._term = max(one for _, one in self._led.values())
        self._wake.set()

    def stands_by(self, *, team: str | None = None) -> None:
        """Returns at once. This driver waits to be elected."""
        self._led = {name: led for name, led in self._led.items() if name != team}
        self._wake.set()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether this driver works: what of it fails again and again, and which teams do.

        A driver that stands by is well.
        """
        problems, last = self._supervisor.problems(), self.latest
        if last is not None:
            problems += [
                f"team {one.team}: {one.last_error}" for one in last.teams if one.last_error
            ]
            if last.delays_error is not None:
                problems.append(f"delayed jobs: {last.delays_error}")
        return not problems, {"status": "degraded" if problems else "ok", "problems": problems}

    def look(self) -> Report:
        """Reports now."""
        with self._looking:
            report = self._report()
            self.latest = report
            name = self._pipeline.name
            self.metrics.leading(name, leads=bool(self._led), term=self._term)
            self.metrics.teams(name, report.teams)
            self.metrics.decoder(name, compiled=COMPILED)
            self.metrics.delays(name, failing=report.delays_error is not None)
            self._write(report)
            return report

    def _run(self) -> None:
        while not self._stopped:
            self._wake.wait(LOOK_S)
            self._wake.clear()
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - the teams must not end for want of a report
                _log.warning("progress not reported", reason=str(error))

    def _report(self, state: PipelineState | None = None) -> Report:
        led = list(self._led.values())
        found = {one.team: replace(one, term=term) for e, term in led for one in e.progress()}
        teams = [found.get(one.team, one) for one in standby_teams(self._pipeline.teams)]
        if state is None:
            state = pipeline_state(teams) if led else PipelineState.WAITING
        errors = [engine.delays_error for engine, _ in led if engine.delays_error is not None]
        return Report(
            pipeline=self._pipeline.name,
            state=state,
            driver=self._driver,
            term=self._term,
            started_ms=self._started_ms,
            at_ms=_now_ms(),
            edges=self._edges,
            parts=self._parts,
            teams=tuple(teams),
            delays_error=errors[0] if errors else None,
            masters=self._pipeline.masters,
            ui=next((engine.ui for engine, _ in led if engine.ui), None),
        )

    def _write(self, report: Report) -> None:
        """Sends the report if it says something new, or nothing was sent for long enough."""
        now = time.monotonic()
        if (
            self._written is not None
            and not report.differs(self._written)
            and now - self._written_at < EVERY_S_MAX
        ):
            return
        self._create_topic()
        try:
            value = msgspec.json.encode(report.as_document())
            self._producer.produce(TOPIC, value, report.key.encode())
        except BufferError:
            # The broker was away for a hundred thousand reports; old ones are of no use.
            self._producer.purge()
        self._producer.poll(0)
        self._written, self._written_at = report, now

    def _create_topic(self) -> None:
        if self._topic_created:
            return
        admin = AdminClient(self._brokers.for_librdkafka())
        try:
            create(admin, [NewTopic(TOPIC, 1, config=TOPIC_CONFIG)], timeout_s=_ADMIN_S)
            self._topic_created = True
        except Refused as error:
            _log.warning("no topic for reports", topic=TOPIC, reason=str(error))

    def _last_report(self, failed: Exception | None) -> None:
        """Reports that the pipeline is stopped, or failed and why."""
        last = self.latest
        if last is None:
            return
        failing = failed is not None or any(one.state is TeamState.FAILED for one in last.teams)
        leads = last.state is not PipelineState.WAITING
        state = PipelineState.FAILED if failing and leads else PipelineState.STOPPED

        with self._looking:
            try:
                report = self._report(state)
            except Exception as error:  # noqa: BLE001 - the last one must do
                _log.warning("progress not reported", reason=str(error))
                report = last
            document = {**report.as_document(), "state": state.value}
            self._producer.produce(TOPIC, msgspec.json.encode(document), last.key.encode())
            self._producer.flush(_LAST_REPORT_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
