"""Two teams, one behind the other, and many jobs of no work: how many are done in a second.

The engine of micro-batches that this one has replaced is not there to be measured beside it; the
rule is half as much again as it had on two cores, where both were measured. Timed from the first
snapshot, when tasks and workers have started, to the last.
"""

import time
import uuid
from typing import TYPE_CHECKING

from bench.cases.spark_latency import same
from bench.cases.spark_teams import bench_session, until, watched
from bench.node import Node
from bench.run import Run
from bench.table import Line
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CASE = "h bulk"
_BEFORE_PER_S = 40_546
_DONE_S_MAX = 300.0


def measure(run: Run) -> list[Line]:
    with Node(run.folder / "bulk") as node:
        spark = bench_session()
        try:
            run.step("warming up")
            _passed(run, spark, node, 2_000)
            run.step("two teams")
            found = _passed(run, spark, node, run.sized(200_000, quick=10_000))
        finally:
            spark.stop()
    name = "two teams, jobs of no work"
    note = "on two cores; jobs of each team count"
    before = "micro-batches before"
    line = Line(_CASE, name, found, "jobs/s", before, _BEFORE_PER_S, ratio_min=1.5, note=note)
    return [line]


def _passed(run: Run, spark: "SparkSession", node: Node, count: int) -> float:
    first, second = Team("first", same, workers=2), Team("second", same, workers=2)
    first >> second
    pipeline = Pipeline(f"bulk-{uuid.uuid4().hex[:8]}", first, second)
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many([{"n": number} for number in range(count)])
    checkpoint = str(run.folder.absolute() / uuid.uuid4().hex)
    engine = Engine(pipeline, spark, bootstrap=node.bootstrap, checkpoint=checkpoint)
    with engine, watched(engine):
        until(engine, lambda one: one.jobs_total > 0)
        before = sum(one.jobs_total for one in engine.progress())
        started = time.perf_counter()
        engine.drain(timeout_s=_DONE_S_MAX)
        return (2 * count - before) / (time.perf_counter() - started)
