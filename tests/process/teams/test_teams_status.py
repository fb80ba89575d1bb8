"""What a driver reports about itself, to another terminal and to a scraper; without Spark."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import warm_python
from tests.conftest import RunningNode

from dovetail.exposition import serve_metrics
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.chains.chain_id import claim_chain, group_of
from dovetail.teams.engine import Engine
from dovetail.teams.progress import TeamProgress, TeamState
from dovetail.teams.reporter import Reporter


def status(node: RunningNode, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail", "pipeline", "status", *more]
    return warm_python.run(
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


class ToldTasks:
    """The tasks of an engine, as far as it looks at them: they end when the test says so."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.error: str | None = None

    @property
    def over(self) -> bool:
        return self.error is not None

    def stop(self) -> None:
        self.error = "stopped"


class ToldEngine(Engine):
    """An engine without Spark: the test plays its tasks."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.all: list[ToldTasks] = []

    def _begin(self) -> None:
        self.all.append(ToldTasks())
        self._tasks = self.all[-1]  # type: ignore[assignment]

    def _hand_out_anew(self) -> None:
        """There is no Spark whose slots could change."""

    def _spark_ended(self) -> bool:
        return False


def test_a_team_starts_works_fails_and_recovers_in_the_reports(
    node: RunningNode, tmp_path: Path
) -> None:
    """T11: states, lag and counts follow what happens to the tasks; positions are committed."""
    pipeline = Pipeline(f"e{uuid.uuid4().hex[:8]}", Team("a", dict))
    topic = pipeline.topics().input
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many([{}] * 10)
    where = {"master": "spark://host:7077", "uiWebUrl": "http://driver:4040"}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(**where))
    engine = ToldEngine(pipeline, spark, bootstrap=node.bootstrap, checkpoint=str(tmp_path))
    over = threading.Event()
    watching = threading.Thread(target=engine.watch, kwargs={"until": over})
    client = KafkaClient(Brokers(node.bootstrap))

    def until(reached: Callable[[TeamProgress], bool]) -> TeamProgress:
        deadline = time.monotonic() + 30
        while not reached(one := reporter.look().teams[0]):
            assert time.monotonic() < deadline, one
            time.sleep(0.05)
        return one

    def done_to(position: int) -> None:
        chain = claim_chain(None, str(tmp_path / pipeline.name / "a"), results=1)
        client.commit(group_of(chain.id, 0), {(topic, 0): position})

    with Reporter(pipeline, node.bootstrap) as reporter, engine:
        reporter.leads(engine)
        watching.start()
        try:
            assert until(lambda one: one.lag == 10).state is TeamState.STARTING
            done_to(6)
            worked = until(lambda one: one.jobs_total == 6)
            assert (worked.state, worked.lag) == (TeamState.WORKING, 4)
            engine.all[0].error = "TeamFailed: team 'a', partition 0: an executor was lost"
            failed = until(lambda one: one.failures == 1)
            assert reporter.look().ui == "http://driver:4040"
            assert failed.state is TeamState.RETRYING
            assert "an executor was lost" in failed.last_error
            until(lambda _: len(engine.all) == 2)
            done_to(10)
            again = until(lambda one: one.lag == 0)
            assert (again.jobs_total, again.failures, again.last_error) == (10, 0, "")
        finally:
            over.set()
            watching.join()
    positions = client.committed(f"dovetail.{pipeline.name}.a")
    client.close()
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
