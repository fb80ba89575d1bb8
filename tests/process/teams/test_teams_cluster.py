"""Teams on a Spark standalone cluster: how functions get there, and what is refused."""

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import NodeFactory, RunningNode

pytest.importorskip("pyspark")
from tests.process.teams.far_pipeline import far
from tests.process.teams.kill_graph import kills
from tests.process.teams.kills import Brokers, Faults, Masters, Outcomes, run_with_faults
from tests.spark_cluster import (
    WORKERS,
    SparkCluster,
    bare_python,
    driver_environment,
    running_spark_cluster,
    small,
    spark_submit,
)

from dovetail.teams import FrontEnd, create_topics
from dovetail.teams.travel.packing import package

ROOT = Path(__file__).parent.parent.parent.parent
STEP_S_MAX = 300
FAR = "tests.process.teams.far_pipeline:far"
PAGE = ROOT / "docs" / "howto" / "ship-to-a-cluster.md"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_spark_cluster(tmp_path_factory.mktemp("spark")) as found:
        yield found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For the executors: Arrow, and nothing else."""
    return bare_python(tmp_path_factory.mktemp("python"))


def run_once(
    words: list[str], python: Path, *, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=cwd,
        env=driver_environment(python),
        capture_output=True,
        text=True,
        check=False,
        timeout=STEP_S_MAX,
    )


def pipeline_run(master: str, node: RunningNode, folder: Path) -> list[str]:
    """The command that runs the pipeline to its end."""
    where = ["--bootstrap", node.bootstrap, "--checkpoint", str(folder / "checkpoint")]
    command = [sys.executable, "-m", "dovetail", "pipeline", "run", FAR, "--once", *where]
    return [*command, "--master", master, *small()]


def test_executors_that_have_nothing_get_all_they_need(
    cluster: SparkCluster, python: Path, node: RunningNode, tmp_path: Path
) -> None:
    """T3, F39, F7a: the pipeline's modules, Dovetail, its libraries and its compiled decoder."""
    create_topics(far, node.bootstrap)
    with FrontEnd(far, node.bootstrap) as front:
        ids = front.submit_many([{"n": n} for n in range(20)])
        done = run_once(pipeline_run(cluster.url, node, tmp_path), python)
        assert done.returncode == 0, done.stderr[-3000:] + cluster.logs()
        found = {one.id: one.result for one in front.results("even", follow=False)}
        odd = {one.id: one.result for one in front.results("odd", follow=False)}

    assert found.keys() | odd.keys() == set(ids)
    assert {one["n"] for one in found.values()} == set(range(0, 20, 2))
    for one in (*found.values(), *odd.values()):
        assert one["compiled"] is True
        assert "dovetail-package/dovetail" in one["where"], "not from this machine's environment"


def test_a_cluster_of_processes_on_this_machine_runs_a_pipeline(
    node: RunningNode, tmp_path: Path
) -> None:
    """T3: `local-cluster`, whose executors are processes of their own with this environment."""
    create_topics(far, node.bootstrap)
    with FrontEnd(far, node.bootstrap) as front:
        ids = front.submit_many([{"n": n} for n in range(20)])
        master = "local-cluster[2,2,1024]"
        done = run_once(pipeline_run(master, node, tmp_path), Path(sys.executable))
        assert done.returncode == 0, done.stderr[-3000:]
        found = {one.id for one in front.results("even", follow=False)}
        found |= {one.id for one in front.results("odd", follow=False)}
    # The topics of the test before it hold its results too.
    assert found >= set(ids)


def test_what_does_not_arrive_is_refused_at_the_start(
    cluster: SparkCluster, python: Path, node: RunningNode, tmp_path: Path
) -> None:
    """T3, F39: a module that is not in the archive is named at once, with what to do."""
    archive = tmp_path / "orders.tar.gz"
    package("examples.orders.shop", archive, folder=ROOT)
    create_topics(far, node.bootstrap)
    words = [*pipeline_run(cluster.url, node, tmp_path), "--archive", str(archive)]
    done = run_once(words, python)
    assert done.returncode == 2, done.stderr[-3000:]
    assert "has no module 'tests'" in done.stderr
    assert "ship it: dovetail pipeline package" in done.stderr
    assert "at org.apache.spark" not in done.stderr


def test_the_commands_of_the_page_work(
    cluster: SparkCluster, python: Path, node: RunningNode, tmp_path: Path
) -> None:
    """T3, T20, F74: as docs/howto/ship-to-a-cluster.md prints them, for the example of orders."""
    from examples.orders.shop import orders
    from examples.orders.submit import SAMPLE

    create_topics(orders, node.bootstrap)
    with FrontEnd(orders, node.bootstrap) as front:
        front.submit_many(SAMPLE.values(), SAMPLE)
        for command in commands():
            words = shlex.split(command.replace("spark://host:7077", cluster.url))
            words = [node.bootstrap if one == "broker:9092" else one for one in words]
            if words[0] == "spark-submit":
                words = [spark_submit(), *small(), *words[1:]]
            elif words[0] == "dovetail":
                words = [sys.executable, "-m", "dovetail", *words[1:]]
            done = run_once(words, python, cwd=prepared(tmp_path))
            assert done.returncode == 0, command + done.stderr[-3000:]
        shipped = {one.id: one.result for one in front.results("ship", follow=False)}
    assert shipped == {"order-1": "3 items to Ada for 28.99"}


def test_every_job_has_one_outcome_whatever_is_killed_on_a_cluster(
    cluster: SparkCluster, python: Path, node_factory: NodeFactory, tmp_path: Path
) -> None:
    """T2, T3, T5, T7, T12: brokers, drivers, workers, executors, Python workers, functions; one
    that slept goes on beside its successor, because its executors were awake."""
    node = node_factory()
    archive = tmp_path / "kills.tar.gz"
    package("tests.process.teams.kill_graph", archive, folder=ROOT)
    create_topics(kills, node.bootstrap)
    given = {"options": [*small(), "--archive", str(archive)], "spark": cluster.url}
    where, environment = "tests.process.teams.kill_graph:kills", driver_environment(python)
    masters = Masters(where, node.bootstrap, tmp_path, environment=environment, **given)
    outcomes = Outcomes(kills, node.bootstrap)
    try:

        def kill_node(_chance: random.Random) -> str:
            node.kill()
            node.start()
            return "the node"

        brokers = Brokers(node.bootstrap, kill_node)
        faults = Faults(brokers, masters, outcomes, below=cluster.below)

        def kill_spark_worker() -> str:
            number = faults.chance.randrange(WORKERS)
            cluster.kill_worker(number)
            cluster.start_worker(number)
            return f"killed worker {number} of Spark, and started another"

        kinds = [faults.pause_driver, faults.kill_broker, faults.kill_executor, kill_spark_worker]
        kinds += [faults.kill_worker, faults.kill_function]
        plan = [*faults.plan(kinds), lambda: faults.kill_driver(replace=False)]
        faults.tell(f"{masters.leader().name} leads; {len(plan)} faults to come")
        run_with_faults(kills, node.bootstrap, faults, plan, outcomes)
    finally:
        outcomes.close()
        masters.end()


def prepared(folder: Path) -> Path:
    """A folder with the project and the script of the page."""
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
        [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        (folder / "run.py").write_text(script)
    return folder


def commands() -> list[str]:
    """What the page tells to type, in its order."""
    blocks = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    joined = "".join(blocks).replace("\\\n", " ")
    found = [line for line in joined.splitlines() if line.startswith(("dovetail", "spark-submit"))]
    assert [line.split()[0] for line in found].count("spark-submit") == 1
    return found
