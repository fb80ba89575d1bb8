"""What a driver tells of itself, seen from another terminal and by a scraper; without Spark."""

import json
import subprocess
import sys
import time
import urllib.request
import uuid

from tests.conftest import RunningNode

from dovetail.exposition import serve_metrics
from dovetail.pipeline import Pipeline, Team
from dovetail.pipeline.reporter import Reporter


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
        assert f"{pipeline.name}: waiting for election" in shown.stderr
    assert _states(node, pipeline) == ["stopped"]


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
