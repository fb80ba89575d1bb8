"""From kill -9 of a master to the first result of its warm standby, in parts.

Two drivers as processes on one checkpoint, elected by BULLY. Jobs come all the time.

    detect    from the signal to the standby's candidacy: silence for the election's timeout
    elect     to its election
    start     to its queries running
    first     to the first result that was stored under its term

The rule: all but `detect` within 2 s. The driver is killed with its Java and its Python workers, as
a machine that is gone.
"""

import threading
import time
import uuid

from confluent_kafka import Consumer, TopicPartition

from bench.driver import Driver
from bench.node import Node
from bench.run import Run
from bench.table import Line
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics

_CASE = "f takeover"
_AFTER_DETECTION_S_MAX = 2.0
#: Two Sparks start on two cores.
_STEP_S_MAX = 300.0
_SUBMIT_EVERY_S = 0.1


def same(job: int) -> int:
    """The function that does nothing."""
    return job


#: What `dovetail pipeline run bench.cases.team_takeover:takeover` runs.
takeover = Pipeline("takeover", Team("only", same))


def measure(run: Run) -> list[Line]:
    folder = run.folder.absolute() / "takeover"
    folder.mkdir()
    with Node(run.folder / "takeover-node") as node:
        create_topics(takeover, node.bootstrap)
        run.step("two drivers start")
        spec = f"{__name__}:takeover"
        drivers = [Driver(node, folder, spec, standby=True) for _ in range(2)]
        try:
            return _measure(run, node, drivers)
        finally:
            for driver in drivers:
                driver.kill()


def _measure(run: Run, node: Node, drivers: list[Driver]) -> list[Line]:
    for driver in drivers:
        driver.wait("standby")
    leader = _leader(drivers)
    [standby] = [driver for driver in drivers if driver is not leader]
    over = threading.Event()
    submitting = threading.Thread(target=_submit, args=(node, over))
    submitting.start()
    try:
        run.step("the first results")
        _first_result_after(node, 0.0)
        run.step("the master is killed")
        killed = leader.kill()
        moments = {"killed": killed}
        state, at = standby.wait("candidate", "master")
        moments["candidate"] = at
        # Where there is nothing to ask for, the two are one.
        moments["master"] = at if state == "master" else standby.wait("master")[1]
        moments["started"] = standby.wait("started")[1]
        moments["first"] = _first_result_after(node, moments["master"])
    finally:
        over.set()
        submitting.join()
    names = list(moments)
    parts = {
        name: moments[after] - moments[before]
        for name, before, after in zip(
            ("detect", "elect", "start", "first result"), names, names[1:], strict=False
        )
    }
    run.note("  " + ", ".join(f"{name} {took:.2f} s" for name, took in parts.items()))
    return [
        Line(
            _CASE,
            "after detection, to the first result",
            moments["first"] - moments["candidate"],
            "s",
            "limit",
            _AFTER_DETECTION_S_MAX,
            ratio_max=1.0,
        ),
        *(Line(_CASE, f"  {name}", took, "s") for name, took in parts.items()),
    ]


def _leader(drivers: list[Driver]) -> Driver:
    deadline = time.monotonic() + _STEP_S_MAX
    while time.monotonic() < deadline:
        for driver in drivers:
            try:
                driver.wait("started", wait_s=0.5)
            except TimeoutError:
                continue
            return driver
    raise TimeoutError("nobody leads")


def _submit(node: Node, over: threading.Event) -> None:
    with FrontEnd(takeover, node.bootstrap) as front:
        number = 0
        while not over.wait(_SUBMIT_EVERY_S):
            front.submit(number)
            number += 1


def _first_result_after(node: Node, at: float) -> float:
    """When the first result came that was stored after a moment. Raises `TimeoutError`."""
    topic = takeover.topics().results
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        deadline = time.monotonic() + _STEP_S_MAX
        while time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                stored = message.timestamp()[1] / 1000
                if stored > at:
                    return stored
    finally:
        consumer.close()
    raise TimeoutError("no result")
