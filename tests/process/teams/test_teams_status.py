"""What a driver reports about itself, to another terminal and to a scraper; without Spark."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import RunningNode

from dovetail.exposition import serve_metrics
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import client_of
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.engine import Engine
from dovetail.teams.progress import PipelineState, TeamProgress, TeamState
from dovetail.teams.reporter import Reporter


def status(node: RunningNode, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail", "pipeline", "status", *more]
    return subprocess.run(
        [*command, "--bootstrap", node.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_driver_that_waits_is_seen_from_elsewhere(node: RunningNode) -> None:
    """T11: waiting for election while it stands by, stopped when it has left, on every way."""
    first, second = Team("first", dict), Team("second", dict)
    first >> second
    pipeline = Pipeline(f"s{uuid.uuid4().hex[:8]}", first, second)
    with Reporter(pipeline, node.bootstrap) as reporter:
        reporter.stands_by()
        reporter.look()
        server = serve_metrics(reporter.metrics.registry, "127.0.0.1", 0)
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            scraped = answer.read().decode()
        server.stop()
        labels = f'pipeline="{pipeline.name}",state="standby",team="first"'
        assert f"dovetail_team_state{{{labels}}} 1.0" in scraped
        assert f'dovetail_pipeline_leading{{pipeline="{pipeline.name}"}} 0.0' in scraped
        deadline = time.monotonic() + 30
        while not (found := _states(node, pipeline)) and time.monotonic() < deadline:
            # The report is on its way; nobody waits for it but this test.
            time.sleep(0.1)
        assert found == ["waiting for election"]
        shown = status(node, pipeline.name)
        assert f"{pipeline.name}: waiting for election" in shown.stdout
    assert _states(node, pipeline) == ["stopped"]


class ToldQuery:
    """A query of Spark, as far as an engine looks at it: it says what the test tells it to."""

    def __init__(self) -> None:
        self.lastProgress: dict[str, Any] | None = None
        self.isActive = True

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> str:
        return "an executor was lost"


def finished(batch: int, start: int | None, end: int, topic: str) -> dict[str, Any]:
    begin = None if start is None else {topic: {"0": start}}
    source = {"startOffset": begin, "endOffset": {topic: {"0": end}}}
    return {"batchId": batch, "sources": [source], "durationMs": {"triggerExecution": 5}}


def test_a_team_starts_works_fails_and_recovers_in_the_reports(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11: states, lag and counts follow what happens to the query; positions are committed."""
    pipeline = Pipeline(f"e{uuid.uuid4().hex[:8]}", Team("a", dict))
    topic = pipeline.topics().input
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many([{}] * 10)
    queries: list[ToldQuery] = []
    spark: Any = None
    engine = Engine(pipeline, spark, bootstrap=node.bootstrap, checkpoint="nowhere")
    monkeypatch.setattr(engine, "_query", lambda _: queries.append(ToldQuery()) or queries[-1])
    over = threading.Event()
    watching = threading.Thread(target=engine.watch, kwargs={"until": over})

    def until(reached: Callable[[TeamProgress], bool]) -> TeamProgress:
        deadline = time.monotonic() + 30
        while not reached(one := reporter.look().teams[0]):
            assert time.monotonic() < deadline, one
            time.sleep(0.05)
        return one

    with Reporter(pipeline, node.bootstrap) as reporter, engine:
        reporter.leads(engine)
        watching.start()
        try:
            assert until(lambda one: one.lag == 10).state is TeamState.STARTING
            queries[0].lastProgress = finished(0, None, 6, topic)
            worked = until(lambda one: one.batch == 0)
            assert (worked.state, worked.lag, worked.jobs_total) == (TeamState.WORKING, 4, 6)
            queries[0].isActive = False
            failed = until(lambda one: one.failures == 1)
            assert (failed.state, failed.last_error) == (
                TeamState.RETRYING,
                "an executor was lost",
            )
            assert reporter.look().state is PipelineState.RETRYING
            until(lambda _: len(queries) == 2)
            queries[1].lastProgress = finished(1, 6, 10, topic)
            again = until(lambda one: one.batch == 1)
            assert (again.lag, again.failures, again.last_error) == (0, 0, "")
        finally:
            over.set()
            watching.join()
    positions = client_of(Brokers(node.bootstrap)).committed(f"dovetail.{pipeline.name}.a")
    assert positions[topic, 0][0] == 10


def test_a_pipeline_that_nobody_runs_is_not_found(node: RunningNode) -> None:
    """T11, U7: with what to do."""
    answer = status(node, "nobody")
    assert answer.returncode != 0
    assert "dovetail pipeline run" in answer.stderr


def _states(node: RunningNode, pipeline: Pipeline) -> list[str]:
    answer = status(node, pipeline.name, "--json")
    if answer.returncode:
        return []
    found = json.loads(answer.stdout)
    assert {one["pipeline"] for one in found} == {pipeline.name}
    assert all(len(one["edges"]) == 1 for one in found)
    return [one["state"] for one in found]
