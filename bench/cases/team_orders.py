"""The order pipeline (parse, price, ship or refund) on teams and on Celery with Redis.

The same functions on the same orders, put in before the clock starts. Teams: from the start of the
queries on a warm session to the last outcome of the last team, every outcome synced to disk, ids
deduplicated. Celery: from its first task to its last, Redis without sync.
"""

import time
import uuid
from typing import TYPE_CHECKING

from examples.orders.shop import Order, parse_order, price_order, refund_order, ship_order

from bench.cases.spark_teams import bench_session
from bench.node import Node
from bench.peers.redis import queue_server
from bench.peers.server import PeerMissing
from bench.run import Run
from bench.table import Line
from dovetail.teams import FrontEnd, Pipeline, Team, create_topics
from dovetail.teams.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CASE = "e orders"
_TIMES = 60.0
_DONE_S_MAX = 300.0
_NOTE = "every order through three teams; Celery: prefork with 2 processes, Redis without sync"


def orders_of(count: int) -> list[Order]:
    """One in ten has nothing to ship."""
    return [
        {"customer": f"c{n}", "lines": [] if n % 10 == 0 else ["A-7 x 2", "B-2 x 1"]}
        for n in range(count)
    ]


def measure(run: Run) -> list[Line]:
    with Node(run.folder / "orders") as node:
        spark = bench_session()
        try:
            run.step("teams, warming up")
            _teams(run, spark, node, 1_000)
            run.step("teams")
            ours = _teams(run, spark, node, run.sized(100_000, quick=2_000))
        finally:
            spark.stop()
    run.note(f"  teams: {ours:,.0f} orders/s")
    theirs, note = None, _NOTE
    try:
        with queue_server(run.folder / "redis") as url:
            from bench.peers import celery_orders

            run.step("Celery")
            theirs = celery_orders.measure(url, orders_of(run.sized(5_000, quick=300)))
            run.note(f"  Celery: {theirs:,.0f} orders/s")
    except (PeerMissing, ImportError) as error:
        note = str(error)
    return [
        Line(
            _CASE,
            "parse, price, route",
            ours,
            "orders/s",
            "Celery with Redis",
            theirs,
            ratio_min=_TIMES,
            note=note,
        )
    ]


def _teams(run: Run, spark: "SparkSession", node: Node, count: int) -> float:
    parse = Team("parse", parse_order, workers=2)
    price = Team("price", price_order, workers=2)
    ship, refund = Team("ship", ship_order, workers=2), Team("refund", refund_order)
    parse >> price
    price.route_to(lambda result: result["total"] > 0, ship, refund)
    pipeline = Pipeline(f"orders-{uuid.uuid4().hex[:8]}", parse, price, ship, refund)
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        front.submit_many(orders_of(count))
    checkpoint = str(run.folder.absolute() / uuid.uuid4().hex)
    started = time.perf_counter()
    with Engine(pipeline, spark, bootstrap=node.bootstrap, checkpoint=checkpoint) as engine:
        engine.drain(timeout_s=_DONE_S_MAX)
        took_s = time.perf_counter() - started
        ends = {one.team: one.jobs_total for one in engine.progress()}
    assert ends["ship"] + ends["refund"] == count, ends
    return count / took_s
