"""A team with a function of 10 µs against plain multiprocessing on the same data.

Both read the jobs from a topic, drop repeated ids, run the function in two processes and put the
results on a topic. What a team does beyond that (outcomes that survive any crash, dead letters,
timeouts) is the price that is measured. The plain program is what one would write without us:
each of two processes consumes one partition with confluent-kafka, keeps a set of ids, decodes,
calls, encodes, produces.

A team is timed from its first snapshot, when its tasks and workers have started, to its last; the
plain program from its start. The function is a loop whose
length was found before, so that it costs the same processor time in both and on a loaded machine.
"""

import multiprocessing
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.client import READING, THROUGHPUT, create_topic
from bench.node import Node
from bench.run import Run
from bench.table import Line
from dovetail.spark import session
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.engine import Engine
from dovetail.teams.progress import TeamProgress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CASE = "c teams"
_UNIT = "jobs/s"
_OF_PLAIN = 0.6
_PROCESSES = 2
#: One job in so many comes twice.
_REPEATED = 20
_FUNCTION_S = 10e-6
#: So long the plain program waits for a thousand messages.
_POLL_S = 0.1
#: A team that has not finished by then hangs.
_DONE_S_MAX = 300.0

Job = dict[str, Any]


def calibrated(function_s: float) -> int:
    """How many rounds of the loop below take so long on this machine, at its best moment."""
    rounds, best = 1_000, float("inf")
    work = function_of(rounds)
    for _ in range(50):
        started = time.perf_counter()
        work({"n": 0, "text": ""})
        best = min(best, time.perf_counter() - started)
    return max(1, round(rounds * function_s / best))


def function_of(rounds: int) -> Callable[[Job], Job]:
    """The work: computes for some time, and returns as much as it got."""

    def work(job: Job) -> Job:
        total = 0
        for number in range(rounds):
            total += number
        return {"n": job["n"], "total": total, "text": job["text"]}

    return work


def jobs_of(count: int) -> tuple[list[Job], list[str]]:
    """Jobs of about 100 bytes with ids, some of them twice."""
    jobs = [{"n": n, "text": "x" * 80} for n in range(count)]
    return jobs, [f"w{n - 1 if n % _REPEATED == 1 else n}" for n in range(count)]


def bench_session() -> "SparkSession":
    """Spark on two cores, whose Python workers import this package as this process does."""
    os.environ["PYTHONPATH"] = str(Path.cwd())
    return session("bench", master="local[2]")


def measure(run: Run) -> list[Line]:
    count = run.sized(600_000, quick=20_000)
    work = function_of(calibrated(_FUNCTION_S))
    with Node(run.folder / "teams") as node:
        run.step("writing jobs")
        filled = _pipeline(work)
        create_topics(filled, node.bootstrap)
        with FrontEnd(filled, node.bootstrap) as front:
            front.submit_many(*jobs_of(count))
        source = filled.topics().input
        spark = bench_session()
        try:
            team = _best(run, "team", lambda: _team(run, spark, node, work, source, count))
        finally:
            spark.stop()
        plain = _best(run, "plain", lambda: _plain(node, work, source, count))
    return [
        Line(
            _CASE,
            "team, function of 10 µs",
            team,
            _UNIT,
            "multiprocessing, 2 processes",
            plain,
            ratio_min=_OF_PLAIN,
        )
    ]


def _best(run: Run, name: str, work: Callable[[], float]) -> float:
    best = 0.0
    for number in range(min(2, run.rounds)):
        run.step(f"{name}, round {number + 1}")
        rate = work()
        run.note(f"  {name}: {rate:,.0f} {_UNIT}, load {os.getloadavg()[0]:.1f}")
        best = max(best, rate)
    return best


def _pipeline(work: Callable[[Job], Job], source: str | None = None) -> Pipeline:
    team = Team("work", work, workers=_PROCESSES, input_topic=source)
    return Pipeline(f"bench-{uuid.uuid4().hex[:8]}", team)


def _team(
    run: Run,
    spark: "SparkSession",
    node: Node,
    work: Callable[[Job], Job],
    source: str,
    count: int,
) -> float:
    pipeline = _pipeline(work, source)
    create_topics(pipeline, node.bootstrap)
    engine = Engine(
        pipeline,
        spark,
        bootstrap=node.bootstrap,
        checkpoint=str(run.folder.absolute() / uuid.uuid4().hex),
    )
    with engine, watched(engine):
        first = until(engine, lambda one: one.jobs_total > 0)
        started = time.perf_counter()
        last = until(engine, lambda one: one.lag == 0)
        took_s = time.perf_counter() - started
    return (last.jobs_total - first.jobs_total) / took_s


class watched:  # noqa: N801 - used as a statement
    """Restarts what fails, while the block runs."""

    def __init__(self, engine: Engine) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=engine.watch, kwargs={"until": self._over})

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def until(engine: Engine, reached: Callable[[TeamProgress], bool]) -> TeamProgress:
    """The progress of the first team once it is there. Raises `TimeoutError`."""
    deadline = time.monotonic() + _DONE_S_MAX
    while not reached(one := engine.progress()[0]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the team is not done: {one}")
        time.sleep(0.02)
    return one


def _plain(node: Node, work: Callable[[Job], Job], source: str, count: int) -> float:
    target = create_topic(node.bootstrap, "plain", partitions=_PROCESSES)
    context = multiprocessing.get_context("fork")
    started = time.perf_counter()
    processes = [
        context.Process(target=_consume, args=(node.bootstrap, source, target, number, work))
        for number in range(_PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    took_s = time.perf_counter() - started
    assert all(process.exitcode == 0 for process in processes)
    return count / took_s


def _consume(
    bootstrap: str, source: str, target: str, partition: int, work: Callable[[Job], Job]
) -> None:
    """One process of the plain program: its partition, to the end that it has now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            **READING,
        }
    )
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **THROUGHPUT})
    place = TopicPartition(source, partition, 0)
    consumer.assign([place])
    end = consumer.get_watermark_offsets(place, timeout=30)[1]
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    seen: set[bytes] = set()
    position = 0
    while position < end:
        for message in consumer.consume(1_000, _POLL_S):
            position = message.offset() + 1
            key = message.key()
            if key in seen:
                continue
            seen.add(key)
            producer.produce(target, encode(work(decode(message.value()))), key)
        producer.poll(0)
    assert producer.flush(60) == 0
    consumer.close()
