"""Reports the progress of a driver: to its metrics, to whoever watches, and to the cluster.

A thread of its own looks once a second. It never delays the teams, and an unreachable broker costs
only reports: what matters is in the checkpoint.

Not here: what a report says (`report`, `progress`). `leads` and `stands_by` say who leads.
"""

import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

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
        self._engine: Engine | None = None
        self._term = 0
        self._written: Report | None = None
        self._written_at = 0.0
        self._topic_created = False
        self._stopped = False
        #: Set when there is something to report before the next second.
        self._wake = threading.Event()
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

    def leads(self, engine: "Engine", term: int = 0) -> None:
        """Returns at once. This driver is the master; `term` is 0 where there is no election."""
        self._engine, self._term = engine, term
        self._wake.set()

    def stands_by(self) -> None:
        """Returns at once. This driver waits to be elected."""
        self._engine = None
        self._wake.set()

    def look(self) -> Report:
        """Reports now."""
        with self._looking:
            report = self._report()
            self.latest = report
            name = self._pipeline.name
            self.metrics.leading(name, leads=self._engine is not None, term=self._term)
            self.metrics.teams(name, report.teams)
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
        engine = self._engine
        teams = standby_teams(self._pipeline.teams) if engine is None else engine.progress()
        if state is None:
            state = PipelineState.WAITING if engine is None else pipeline_state(teams)
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
            delays_error=None if engine is None else engine.delays_error,
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
            key = self._pipeline.name if leads else f"{self._pipeline.name}#{self._driver}"
            self._producer.produce(TOPIC, msgspec.json.encode(document), key.encode())
            self._producer.flush(_LAST_REPORT_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
