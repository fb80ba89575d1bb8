"""Jobs through a pipeline while everything that does them is killed, counted: Spark on one machine.

By default this is small: one node, and Spark in two drivers, of which one is paused and then one
killed. With `TEAM_JOBS` there may be more of everything, and `make soak` has it large:
`TEAM_BROKERS=3 TEAM_SPARK='local-cluster[2,1,1024]'` for a cluster, and executors of their own.
`test_teams_cluster` does the same on a Spark cluster, `test_teams_kafka` on Apache Kafka.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster_processes import running_cluster
from tests.conftest import NodeFactory
from tests.java import need_java
from tests.process.teams.kill_graph import kills
from tests.process.teams.kills import (
    JOBS,
    SEED,
    Brokers,
    Faults,
    Masters,
    Outcomes,
    run_with_faults,
)

from dovetail.teams import create_topics

BROKERS = int(os.environ.get("TEAM_BROKERS", "0"))
SPARK = os.environ.get("TEAM_SPARK", "local[2]")
PIPELINE = "tests.process.teams.kill_graph:kills"

pytestmark = pytest.mark.timeout(0 if "TEAM_JOBS" in os.environ else 900)


@pytest.fixture
def brokers(tmp_path: Path, node_factory: NodeFactory) -> Iterator[Brokers]:
    if BROKERS:
        with running_cluster(tmp_path / "cluster", brokers=BROKERS) as cluster:

            def kill_one(chance: random.Random) -> str:
                name = chance.choice(cluster.brokers)
                cluster.kill(name)
                cluster.restart(name)
                return name

            yield Brokers(cluster.bootstrap, kill_one)
        return
    node = node_factory()

    def kill_node(_chance: random.Random) -> str:
        node.kill()
        node.start()
        return "the node"

    yield Brokers(node.bootstrap, kill_node)


@pytest.fixture
def masters(brokers: Brokers, tmp_path: Path) -> Iterator[Masters]:
    need_java()
    create_topics(kills, brokers.bootstrap)
    made = Masters(PIPELINE, brokers.bootstrap, tmp_path, spark=SPARK)
    yield made
    made.end()


@pytest.fixture
def outcomes(brokers: Brokers) -> Iterator[Outcomes]:
    made = Outcomes(kills, brokers.bootstrap)
    yield made
    made.close()


def test_every_job_has_one_outcome_whatever_is_killed(
    brokers: Brokers, masters: Masters, outcomes: Outcomes
) -> None:
    """T2, T5, T7, T12: counted on the topics, sprayed items too, with a master that slept."""
    print(f"seed={SEED} jobs={JOBS} spark={SPARK} brokers={BROKERS or 1}")
    faults = Faults(brokers, masters, outcomes)
    kinds = [faults.pause_driver, faults.kill_broker, faults.kill_worker, faults.kill_function]
    if "TEAM_JOBS" in os.environ:
        # Starts a Spark for each one that is killed.
        kinds += [faults.kill_driver, faults.kill_java]
    if SPARK.startswith("local-cluster"):
        kinds.append(faults.kill_executor)
    plan = [*faults.plan(kinds), lambda: faults.kill_driver(replace=False)]
    faults.tell(f"{masters.leader().name} leads; {len(plan)} faults to come")
    run_with_faults(kills, brokers.bootstrap, faults, plan, outcomes)
