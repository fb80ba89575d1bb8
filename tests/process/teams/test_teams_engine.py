"""Teams on Spark: one session, one node, all that a pipeline promises."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from examples.kepler import sky
from examples.orders import shop as order_shop
from examples.orders.submit import SAMPLE, ask_all
from tests.conftest import RunningNode
from tests.process.access.certificates import Authority
from tests.process.access.guarded import admin_settings, guarded_node

pytest.importorskip("pyspark")
from pyspark.errors import AnalysisException
from tests.java import need_java

from dovetail.admin.kafka import Kafka
from dovetail.admin.pipelines import PipelineReports
from dovetail.errors import InvalidInput, NotFound
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import client_of
from dovetail.spark import session
from dovetail.spark.archive import topic_frame
from dovetail.teams import FrontEnd, JobContext, JobFailed, cancel, create_topics
from dovetail.teams import engine as engine_module
from dovetail.teams.engine import Engine
from dovetail.teams.graph import Pipeline
from dovetail.teams.outcome import FailureKind
from dovetail.teams.progress import TeamState
from dovetail.teams.reporter import Reporter
from dovetail.teams.team import Team

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent.parent
#: The first tasks of a session start everything, on two cores and beside other tests.
STEP_S_MAX = 280

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    """The one session. Without Java the tests skip, in CI they fail."""
    need_java()
    with pytest.MonkeyPatch.context() as patch:
        # Python workers import the examples as this process does.
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        spark = session("teams", master="local[2]")
        yield spark
        spark.stop()


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


def test_jobs_go_through_spray_and_route_to_one_outcome(
    spark: "SparkSession", node: RunningNode, tmp_path: Path
) -> None:
    """T1, T3, T5, T7: every job and every sprayed item has one outcome, poison a dead letter."""
    pipeline = shop()
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many([{"items": 6} for _ in range(50)])
        front.submit({"items": "poison"}, "bad")
        # T4: the same again, within the time to live.
        front.submit_many([{"items": 6} for _ in range(50)], ids)
        with (
            Reporter(pipeline, node.bootstrap) as reporter,
            Engine(
                pipeline,
                spark,
                bootstrap=node.bootstrap,
                checkpoint=str(tmp_path),
                metrics=reporter.metrics,
            ) as engine,
        ):
            reporter.leads(engine, term=3)
            engine.drain(timeout_s=STEP_S_MAX)
            check_report(reporter)
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


def check_report(reporter: Reporter) -> None:
    """What is told of the pipeline above, after its jobs are done."""
    teams = {one.team: one for one in reporter.look().teams}
    assert {one.lag for one in teams.values()} == {0}
    assert {one.state for one in teams.values()} <= {TeamState.IDLE, TeamState.WORKING}
    done = {name: (one.jobs_total, one.dead_letters) for name, one in teams.items()}
    # Repetitions are dropped by the team, and count as jobs that are behind it.
    assert done == {"parse": (101, 1), "price": (300, 0), "ship": (200, 0), "refund": (100, 0)}
    of_parse = {"pipeline": "shop", "team": "parse"}
    registry = reporter.metrics.registry
    assert registry.get_sample_value("dovetail_team_jobs_total", of_parse) == 101
    assert registry.get_sample_value("dovetail_team_dead_letters_total", of_parse) == 1
    assert registry.get_sample_value("dovetail_pipeline_leading", {"pipeline": "shop"}) == 1


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_the_last_report_is_there_for_the_console_and_for_other_terminals(
    node: RunningNode,
) -> None:
    """T11: the driver of the test above has left its last word on the topic of reports."""
    kafka = Kafka(node.bootstrap, 20.0, client_id="test")
    report = PipelineReports(now_ms).one(kafka, "shop")
    assert (report.pipeline, report.state, report.term) == ("shop", "stopped", 3)
    assert {(edge.source, edge.target) for edge in report.edges} == {
        ("parse", "price"),
        ("price", "ship"),
        ("price", "refund"),
    }
    assert {one.team: one.jobs_total for one in report.teams}["price"] == 300
    with pytest.raises(NotFound):
        PipelineReports(now_ms).one(kafka, "another")


def test_positions_are_committed_for_lag_tools(node: RunningNode) -> None:
    """T11: the group of a team stands at the end of its input topic."""
    positions = client_of(Brokers(node.bootstrap)).committed("dovetail.shop.parse")
    assert sum(position for position, _ in positions.values()) == 101


@contextmanager
def watched(
    pipeline: Pipeline,
    spark: "SparkSession",
    node: RunningNode,
    checkpoint: Path,
    config: dict[str, str] | None = None,
) -> Iterator[Engine]:
    """Runs a pipeline; tasks that a busy machine could not start in time are started again."""
    over = threading.Event()
    where = {"bootstrap": node.bootstrap, "checkpoint": str(checkpoint)}
    with (
        Engine(pipeline, spark, **where, config=config) as engine,
        ThreadPoolExecutor(1) as watching,
        ExitStack() as cleanup,
    ):
        watching_it = watching.submit(engine.watch, until=over)
        cleanup.callback(over.set)
        yield engine
        over.set()
        watching_it.result(STEP_S_MAX)


def test_the_example_of_orders(spark: "SparkSession", node: RunningNode, tmp_path: Path) -> None:
    """T1, T7, T8: the pipeline of the README; a question is answered where its id ends."""
    pipeline = order_shop.orders
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front, watched(pipeline, spark, node, tmp_path):
        assert ask_all(front, timeout_s=STEP_S_MAX) == {
            "order-1": "3 items to Ada for 28.99",
            "order-2": "nothing to ship to Grace",
            "order-3": "given up: 'A-7 times 2' is no line of an order; write it like 'A-7 x 3'",
            "order-4": "given up: KeyError: 'Z-1'",
        }
        known = SAMPLE["order-1"]
        priced = front.ask(known, "order-1", result_of="price", timeout_s=STEP_S_MAX)
        assert priced["total"] == 2899, "done before: looked up, not done again"
        with pytest.raises(JobFailed, match="after 2 attempts: exception: KeyError"):
            front.ask(SAMPLE["order-4"], "order-4", timeout_s=STEP_S_MAX)


def test_items_are_gathered_and_jobs_cancelled(
    spark: "SparkSession", node: RunningNode, tmp_path: Path
) -> None:
    """T16, T17, T18: what is sprayed comes together under its own id; a job that runs is cancelled,
    and says how far it is before."""

    def part(item: int, context: JobContext) -> int:
        if item == 5:
            context.progress(0.25, "waits")
            time.sleep(3000)
        return item + 1

    split = Team("split", lambda job: list(range(job)))
    each = Team("each", part, workers=2, timeout="1h")
    total = Team("total", lambda items: [one.get("result", one.get("kind")) for one in items])
    split.spray_to(each)
    each.gather_to(total)
    pipeline = Pipeline("parts", split, each, total)
    create_topics(pipeline, node.bootstrap)
    with (
        FrontEnd(pipeline, node.bootstrap) as front,
        watched(pipeline, spark, node, tmp_path) as engine,
    ):
        assert front.ask(4, "four", timeout_s=STEP_S_MAX) == [1, 2, 3, 4]
        assert front.ask(0, "none", timeout_s=STEP_S_MAX) == []
        front.submit(6, "six")
        deadline = time.monotonic() + STEP_S_MAX
        while not any(one.jobs for one in engine.progress()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        [told] = [job for one in engine.progress() for job in one.jobs]
        assert (told.id, told.part, told.text) == ("six/5", 0.25, "waits")
        cancel("parts", "six/5", node.bootstrap)
        assert front.ask(6, "six", timeout_s=STEP_S_MAX) == [1, 2, 3, 4, 5, "cancelled"]
        engine.drain(timeout_s=STEP_S_MAX)


def test_slots_that_others_use_leave_no_partition_unserved(
    spark: "SparkSession", node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T15: Spark says that it runs five tasks at once, and runs two; all partitions are served."""
    monkeypatch.setattr(Engine, "_slots", lambda _: 5)
    monkeypatch.setattr(engine_module, "_STEADY_S", 1.0)
    pipeline = Pipeline("slots", Team("only", lambda job: job, workers=5))
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        ids = front.submit_many(range(100))
        with Engine(pipeline, spark, bootstrap=node.bootstrap, checkpoint=str(tmp_path)) as engine:
            engine.drain(timeout_s=STEP_S_MAX)
        found = Counter(one.id for one in front.results(idle_s=1))
    assert found == Counter(ids)


def test_engines_of_one_session_run_a_team_each(
    spark: "SparkSession", node: RunningNode, tmp_path: Path
) -> None:
    """T19, F71: two engines in two slots; another master takes one team, and the other team goes
    on; there is no slot for a third."""
    first, second = Team("first", lambda job: job + 1, workers=2), Team("second", lambda job: -job)
    first >> second
    pipeline = Pipeline("own", first, second, masters="team")
    create_topics(pipeline, node.bootstrap)
    where = {"bootstrap": node.bootstrap, "checkpoint": str(tmp_path)}
    with (
        FrontEnd(pipeline, node.bootstrap) as front,
        Engine(pipeline, spark, **where, team="first", term=9) as one,
        Engine(pipeline, spark, **where, team="second", term=2) as other,
    ):
        assert front.ask(6, "six", timeout_s=STEP_S_MAX) == -7
        assert [p.team for p in (*one.progress(), *other.progress())] == ["first", "second"]
        with pytest.raises(InvalidInput, match="local\\[3\\]"):
            Engine(pipeline, spark, **where, team="first").start()
        other.stop()
        front.submit(7, "seven")
        one.drain(timeout_s=STEP_S_MAX)
        with Engine(pipeline, spark, **where, team="second", term=3) as next_one:
            assert front.ask(7, "seven", timeout_s=STEP_S_MAX) == -8
            next_one.drain(timeout_s=STEP_S_MAX)
        found = Counter(one.id for one in front.results("second", idle_s=1))
    assert found == Counter(["six", "seven"])


def test_a_delay_between_teams_goes_through_a_timeline(
    spark: "SparkSession", node: RunningNode, tmp_path: Path
) -> None:
    """T12: jobs reach the next team when their time has come, not before, and each once."""
    book, remind = Team("book", lambda _: time.time()), Team("remind", lambda _: time.time())
    book.pipe_to(remind, after="2s")
    pipeline = Pipeline("bookings", book, remind)
    create_topics(pipeline, node.bootstrap)
    with FrontEnd(pipeline, node.bootstrap) as front:
        with watched(pipeline, spark, node, tmp_path):
            ids = front.submit_many([{"guest": n} for n in range(5)])
            for number, one in enumerate(ids):
                asked = ({"guest": number}, one)
                reminded = front.ask(*asked, result_of="remind", timeout_s=STEP_S_MAX)
                booked = front.ask(*asked, result_of="book", timeout_s=STEP_S_MAX)
                assert reminded - booked >= 2.0
        reminders = Counter(one.id for one in front.results("remind", idle_s=1))
    assert reminders == Counter(ids)


def test_teams_come_in_at_a_guarded_door(spark: "SparkSession", tmp_path: Path) -> None:
    """R4, T1, T12: by TLS and a login; the driver, Spark's workers and the timeline of delays."""
    authority = Authority(tmp_path)
    node = guarded_node(tmp_path, authority)
    config = admin_settings(authority)
    book, remind = Team("book", lambda job: job["guest"]), Team("remind", lambda guest: -guest)
    book.pipe_to(remind, after="1s")
    pipeline = Pipeline("guarded", book, remind)
    with ExitStack() as cleanup:
        cleanup.callback(node.kill)
        node.start()
        create_topics(pipeline, node.bootstrap, config=config)
        front = cleanup.enter_context(FrontEnd(pipeline, node.bootstrap, config={**config}))
        reporter = cleanup.enter_context(Reporter(pipeline, node.bootstrap, config=config))
        with watched(pipeline, spark, node, tmp_path / "kept", config=config) as engine:
            reporter.leads(engine, 1)
            assert front.ask({"guest": 7}, result_of="remind", timeout_s=STEP_S_MAX) == -7
        kafka = Kafka(node.bootstrap, 10.0, client_id="test", security=config)
        assert PipelineReports(now_ms).one(kafka, "guarded").term == 1
        topic = pipeline.stages()[0].topics.input
        assert topic_frame(spark, Brokers.at(node.bootstrap, config), topic).count() == 1
        stranger = Brokers.at(node.bootstrap, {**config, "sasl.password": "wrong"})
        with pytest.raises(AnalysisException, match="Forbidden"):
            topic_frame(spark, stranger, topic).count()


def test_the_example_of_orbits(spark: "SparkSession", node: RunningNode, tmp_path: Path) -> None:
    """T3, T6, T7: real data, sprayed into rows, worked on as Arrow batches, routed."""
    create_topics(sky.sky, node.bootstrap)
    with FrontEnd(sky.sky, node.bootstrap) as front:
        front.submit(sky.TABLE.read_text(), "orbits")
        with Engine(sky.sky, spark, bootstrap=node.bootstrap, checkpoint=str(tmp_path)) as engine:
            engine.drain(timeout_s=STEP_S_MAX)
        suns = [one.result for one in front.results("suns", idle_s=1)]
        others = [one.result for one in front.results("others", idle_s=1)]
    assert len(suns) == 9
    assert "Pluto orbits the Sun" in suns
    masses = {one.split()[0]: float(one.split()[2]) for one in others}
    # What the moons orbit: Jupiter and the Earth, in masses of the Sun.
    assert masses.pop("Moon") == pytest.approx(3.03e-6)
    assert masses == dict.fromkeys(["Io", "Europa", "Ganymede", "Callisto"], pytest.approx(9.55e-4))
