"""What a driver costs and how soon it serves: start, memory, idle, and at 100 jobs a second.

The driver is a process of its own, `dovetail pipeline run`; its Java and its Python workers are
counted with it, the node and the clients are not. Five teams with two workers each, one behind the
other, are started, timed to the first result of the last team, weighed and left idle; then three
teams get 100 jobs a second.
"""

import itertools
import time
import uuid
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from bench.driver import Driver
from bench.node import Node
from bench.run import Run
from bench.table import Line
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics

_CASE = "g driver"
_PER_S = 100
_FIRST_S_MAX, _IDLE_CORES_MAX, _BUSY_CORES_MAX, _MEMORY_MB_MAX = 6.0, 0.05, 0.5, 1_000.0
#: Caches fill and collectors come to rest before anything is counted.
_REST_S = 10.0
_STALL_S_MAX = 300.0


def same(job: int) -> int:
    """The function that does nothing."""
    return job


def _row(name: str, count: int, workers: int) -> Pipeline:
    teams = [Team(f"team{number}", same, workers=workers) for number in range(count)]
    for one, other in itertools.pairwise(teams):
        one >> other
    return Pipeline(name, *teams)


#: What `dovetail pipeline run bench.cases.team_driver:five` runs.
five, three = _row("five", 5, 2), _row("three", 3, 1)


def measure(run: Run) -> list[Line]:
    folder = run.folder.absolute() / "driver"
    folder.mkdir()
    with Node(run.folder / "driver-node") as node:
        for pipeline in (five, three):
            create_topics(pipeline, node.bootstrap)
        run.step("a driver starts, so that files are warm")
        _first(node, folder / "warm", "three")[0].kill()
        return [*_five(run, node, folder), *_three(run, node, folder)]


def _first(node: Node, folder: Path, name: str) -> tuple[Driver, float]:
    """A driver, and the seconds to the first result of its last team. Raises `TimeoutError`."""
    pipeline = {"five": five, "three": three}[name]
    folder.mkdir()
    topic = pipeline.topics(list(pipeline.teams)[-1]).results
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": uuid.uuid4().hex})
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    ends = [TopicPartition(topic, number) for number in partitions]
    ends = [
        TopicPartition(topic, one.partition, consumer.get_watermark_offsets(one, timeout=30)[1])
        for one in ends
    ]
    consumer.assign(ends)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit(0)
    started = time.perf_counter()
    driver = Driver(node, folder, f"{__name__}:{name}", cores=2)
    deadline = time.monotonic() + _STALL_S_MAX
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                return driver, time.perf_counter() - started
    finally:
        consumer.close()
    driver.kill()
    raise TimeoutError("no result")


def _five(run: Run, node: Node, folder: Path) -> list[Line]:
    run.step("five teams start")
    driver, first_s = _first(node, folder / "five", "five")
    try:
        rest_s, count_s = (2.0, 5.0) if run.quick else (_REST_S, 30.0)
        run.step("five teams are idle")
        time.sleep(rest_s)
        cores = _cores(driver, count_s)
        memory_mb = driver.python_mb()
    finally:
        driver.kill()
    return [
        _limited("five teams: start to the first result of the last", first_s, "s", _FIRST_S_MAX),
        _limited("five idle teams, all processes", cores, "cores", _IDLE_CORES_MAX),
        _limited("five teams, two workers each, Python", memory_mb, "MB", _MEMORY_MB_MAX),
    ]


def _three(run: Run, node: Node, folder: Path) -> list[Line]:
    driver, _ = _first(node, folder / "three", "three")
    seconds = run.sized(20, quick=4)
    try:
        run.step(f"three teams, {_PER_S} jobs a second for {seconds} s")
        with FrontEnd(three, node.bootstrap) as front:
            _submit(front, 2)
            before, began = driver.cpu_s(), time.perf_counter()
            _submit(front, seconds)
            cores = (driver.cpu_s() - before) / (time.perf_counter() - began)
    finally:
        driver.kill()
    name = f"three teams at {_PER_S} jobs/s, driver and workers"
    return [_limited(name, cores, "cores", _BUSY_CORES_MAX)]


def _submit(front: FrontEnd, seconds: int) -> None:
    began = time.perf_counter()
    for number in range(seconds * _PER_S):
        time.sleep(max(0.0, began + number / _PER_S - time.perf_counter()))
        front.submit(number)


def _cores(driver: Driver, seconds: float) -> float:
    before, began = driver.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return (driver.cpu_s() - before) / (time.perf_counter() - began)


def _limited(name: str, value: float, unit: str, limit: float) -> Line:
    return Line(_CASE, name, value, unit, "limit", limit, ratio_max=1.0)
