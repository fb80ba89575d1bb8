"""Teams on Spark: one session, one node, all that a pipeline promises."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conftest import RunningNode

from dovetail.pipeline import spark_session
from dovetail.pipeline.client import client_of
from dovetail.pipeline.engine import Engine
from dovetail.pipeline.frontend import FrontEnd, WorkFailed, create_topics
from dovetail.pipeline.graph import Pipeline
from dovetail.pipeline.outcome import FailureKind
from dovetail.pipeline.team import Team

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    session = spark_session("teams", master="local[2]")
    yield session
    session.stop()


def shop() -> Pipeline:
    def parse(job: dict[str, Any]) -> list[dict[str, Any]]:
        if job["items"] == "poison":
            os._exit(9)
        return [{"n": n, "total": n % 3} for n in range(job["items"])]

    def price(job: dict[str, Any]) -> dict[str, Any]:
        return {**job, "priced": True}

    first = Team("parse", parse, workers=2, attempts=2, backoff="1ms")
    second = Team("price", price, workers=2)
    ship, refund = Team("ship", lambda job: job), Team("refund", lambda job: job)
    first.spray_to(second)
    second.route_to(lambda result: result["total"] > 0, ship, refund)
    return Pipeline("shop", first, second, ship, refund)


def test_works_go_through_spray_and_route_to_one_outcome(
    spark: "SparkSession", node: RunningNode, tmp_path: Path
) -> None:
    """T1, T3, T5, T7: every work and every sprayed item has one outcome, poison a dead letter."""
    pipeline = shop()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many([{"items": 6} for _ in range(50)])
        front.submit({"items": "poison"}, "bad")
        # T4: the same again, within the time to live.
        front.submit_many([{"items": 6} for _ in range(50)], ids)
        with Engine(pipeline, spark, bootstrap=node.bootstrap, checkpoint=str(tmp_path)) as engine:
            engine.drain(timeout_s=120)
            progress = {one.team: one for one in engine.progress()}
        parsed = list(front.results("parse", idle_s=1))
        priced = list(front.results("price", idle_s=1))
        ends = [*front.results("ship", idle_s=1), *front.results("refund", idle_s=1)]
    assert Counter(one.id for one in parsed) == Counter([*ids, "bad"])
    [bad] = [one for one in parsed if not one.ok]
    assert bad.failure is not None
    assert (bad.id, bad.failure.kind, bad.attempts) == ("bad", FailureKind.CRASH, 2)
    items = Counter(f"{one}/{n}" for one in ids for n in range(6))
    assert Counter(one.id for one in priced) == items
    assert {one.parent for one in priced} == set(ids)
    assert Counter(one.id for one in ends) == items
    assert Counter(one.team for one in ends) == {"ship": 200, "refund": 100}
    assert progress["parse"].lag == 0
    assert progress["parse"].batch >= 0


def test_positions_are_committed_for_lag_tools(node: RunningNode) -> None:
    """T11: the group of a team stands at the end of its input topic."""
    positions = client_of(node.bootstrap).committed("dovetail.shop.parse")
    assert sum(position for position, _ in positions.values()) == 101


def test_ask_waits_for_the_result_and_tells_failures(
    spark: "SparkSession", node: RunningNode, tmp_path: Path
) -> None:
    """T8: a question is answered by the team at which its id ends; a dead letter is an error."""

    def half(job: int) -> float:
        return 10 / job

    a, b = Team("half", half, attempts=1), Team("text", str)
    a >> b
    pipeline = Pipeline("asking", a, b)
    create_topics(pipeline, node.bootstrap)
    with (
        FrontEnd(pipeline, node.bootstrap) as front,
        Engine(pipeline, spark, bootstrap=node.bootstrap, checkpoint=str(tmp_path)),
    ):
        assert front.ask(4, "q") == "2.5"
        assert front.ask(5, result_of="half") == 2.0
        with pytest.raises(WorkFailed, match="ZeroDivisionError"):
            front.ask(0)
        begin = time.monotonic()
        assert front.ask(4, "q") == "2.5", "done before: looked up, not done again"
        assert time.monotonic() - begin < 30
