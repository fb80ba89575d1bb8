"""What a stage adds to the time of a job at 100 jobs a second, and beside jobs that take long.

Three teams, one behind the other. A job carries its number; its results are read by a plain
consumer in the same process, so that one clock tells all. The first stage is from the submission
to the result of the first team, each other one from there to the result of the next.

Then one team whose jobs take 1 ms, but some 10 s, in the same partition: how long the short ones
take from submission to result.
"""

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import Consumer, TopicPartition

from bench.cases.spark_teams import bench_session, watched
from bench.node import Node
from bench.run import Run, percentile
from bench.table import Line
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CASE = "d latency"
_PER_S = 100
_STAGE_MS = {50: 8.0, 99: 60.0}
_BESIDE_MS = 100.0
#: Nothing is silent for so long unless it is broken.
_STALL_S_MAX = 120.0


def same(job: dict[str, Any]) -> dict[str, Any]:
    """The function that does nothing."""
    return job


def long_or_short(job: dict[str, Any]) -> dict[str, Any]:
    """One in fifty takes 10 s, the others 1 ms."""
    time.sleep(10.0 if job["n"] % 50 == 49 else 0.001)
    return job


def measure(run: Run) -> list[Line]:
    with Node(run.folder / "latency") as node:
        spark = bench_session()
        try:
            return [*_stages(run, spark, node), *_beside_long(run, spark, node)]
        finally:
            spark.stop()


def _engine(run: Run, spark: "SparkSession", node: Node, pipeline: Pipeline) -> Engine:
    create_topics(pipeline, node.bootstrap)
    checkpoint = str(run.folder.absolute() / uuid.uuid4().hex)
    return Engine(pipeline, spark, bootstrap=node.bootstrap, checkpoint=checkpoint)


class Arrivals:
    """When the result of each job was read, by topic."""

    def __init__(self, node: Node, topics: list[str]) -> None:
        self.seen: dict[str, dict[int, float]] = {topic: {} for topic in topics}
        self.sent: dict[int, float] = {}
        self._consumer = Consumer(
            {"bootstrap.servers": node.bootstrap, "group.id": uuid.uuid4().hex}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])

    def poll(self, wait_s: float) -> None:
        message = self._consumer.poll(wait_s)
        if message is not None and message.error() is None:
            job = msgspec.json.decode(message.value())
            self.seen[message.topic()].setdefault(job["n"], time.perf_counter())

    def until(self, reached: Callable[[], bool]) -> None:
        """Raises `TimeoutError`."""
        deadline = time.monotonic() + _STALL_S_MAX
        while not reached():
            if time.monotonic() > deadline:
                raise TimeoutError("results do not come")
            self.poll(0.1)

    def close(self) -> None:
        self._consumer.close()


def _stages(run: Run, spark: "SparkSession", node: Node) -> list[Line]:
    teams = [Team(name, same) for name in ("first", "second", "third")]
    teams[0] >> teams[1] >> teams[2]
    pipeline = Pipeline(f"stages-{uuid.uuid4().hex[:8]}", *teams)
    seconds = run.sized(20, quick=3)
    engine = _engine(run, spark, node, pipeline)
    topics = [pipeline.topics(team.name).results for team in teams]
    arrivals = Arrivals(node, topics)

    with engine, watched(engine), FrontEnd(pipeline, node.bootstrap) as front:
        run.step("the first work: workers and plans are cold")
        front.submit({"n": -1})
        arrivals.until(lambda: -1 in arrivals.seen[topics[-1]])
        run.step(f"{_PER_S} jobs a second for {seconds} s")
        started, count = time.perf_counter(), seconds * _PER_S
        for number in range(count):
            while (left := started + number / _PER_S - time.perf_counter()) > 0:
                arrivals.poll(left)
            arrivals.sent[number] = time.perf_counter()
            front.submit({"n": number})
        arrivals.until(lambda: len(arrivals.seen[topics[-1]]) > count)
    arrivals.close()

    moments = [arrivals.sent, *(arrivals.seen[topic] for topic in topics)]
    # The first second still meets what is cold.
    kept = range(min(_PER_S, count // 2), count)
    names = ("first stage, from submission", "second stage, added", "third stage, added")
    return [
        _limited(f"{name}, p{percent}", [end[n] - begin[n] for n in kept], percent)
        for name, begin, end in zip(names, moments[:-1], moments[1:], strict=True)
        for percent in (50, 99)
    ]


def _limited(name: str, took_s: list[float], percent: int, limit_ms: float | None = None) -> Line:
    value_ms = 1000 * percentile(took_s, percent)
    limit_ms = limit_ms or _STAGE_MS[percent]
    return Line(_CASE, name, value_ms, "ms", "limit", limit_ms, ratio_max=1.0)


def _beside_long(run: Run, spark: "SparkSession", node: Node) -> list[Line]:
    pipeline = Pipeline(f"beside-{uuid.uuid4().hex[:8]}", Team("only", long_or_short))
    engine = _engine(run, spark, node, pipeline)
    topic = pipeline.topics().results
    arrivals = Arrivals(node, [topic])
    count = run.sized(400, quick=100)
    short = [number for number in range(count) if number % 50 != 49]
    with engine, watched(engine), FrontEnd(pipeline, node.bootstrap) as front:
        front.submit({"n": -2})
        arrivals.until(lambda: -2 in arrivals.seen[topic])
        run.step(f"{count} jobs, one in fifty takes 10 s")
        started = time.perf_counter()
        for number in range(count):
            while (left := started + number / _PER_S - time.perf_counter()) > 0:
                arrivals.poll(left)
            arrivals.sent[number] = time.perf_counter()
            front.submit({"n": number})
        arrivals.until(lambda: all(number in arrivals.seen[topic] for number in short))
    arrivals.close()
    took = [arrivals.seen[topic][number] - arrivals.sent[number] for number in short]
    return [_limited("1 ms beside jobs of 10 s, to result, p99", took, 99, _BESIDE_MS)]
