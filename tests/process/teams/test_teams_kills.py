"""Jobs through three teams while everything that does them is killed, counted.

What is killed is chosen by a seed: brokers, drivers, executors, Python workers; and a paused driver
wakes up after its successor took over. Then the topics are read and counted.

By default this is small: one node, Spark in its drivers, of which one is paused and none killed.
With `TEAM_JOBS` drivers are killed too, and `make soak` has it large:
`TEAM_BROKERS=3 TEAM_SPARK='local-cluster[2,1,1024]'` for a cluster, and executors of their own.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster_processes import running_cluster
from tests.conftest import NodeFactory
from tests.etcd_server import free_ports
from tests.java import need_java
from tests.process.teams.kill_graph import ITEMS, is_bad, is_packed, kills
from tests.process.teams.master_processes import STEP_S_MAX, MasterProcess, kill, wait_leader

from dovetail.errors import DovetailError
from dovetail.kafka.client import brokers as broker_addresses
from dovetail.kafka.client.client import LATEST, KafkaClient
from dovetail.spark.decoder import to_arrow
from dovetail.spark.fetching import fetch
from dovetail.teams import FrontEnd, create_topics

JOBS = int(os.environ.get("TEAM_JOBS", "600"))
#: Beyond one fault of each kind.
FAULTS = int(os.environ.get("TEAM_FAULTS", "0"))
SEED = int(os.environ.get("TEAM_SEED", "1"))
BROKERS = int(os.environ.get("TEAM_BROKERS", "0"))
SPARK = os.environ.get("TEAM_SPARK", "local[2]")
PIPELINE = "tests.process.teams.kill_graph:kills"
#: Without any outcome for so long, something hangs.
STILL_S_MAX = 400.0

pytestmark = pytest.mark.timeout(0 if "TEAM_JOBS" in os.environ else 900)


class Brokers:
    """What holds the topics: one node, or a cluster of which one broker is killed at a time."""

    def __init__(self, bootstrap: str, again: Callable[[random.Random], str]) -> None:
        self.bootstrap, self.kill_one = bootstrap, again


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


class Masters:
    """Two masters; one that dies is replaced by a new one."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap, self._folder = bootstrap, folder
        self._gone: list[MasterProcess] = []
        self.all = [self._made() for _ in range(2)]

    def _made(self) -> MasterProcess:
        [port] = free_ports(1)
        return MasterProcess(PIPELINE, self._bootstrap, self._folder, port=port, spark=SPARK)

    def leader(self, *, above: int = 0) -> MasterProcess:
        return wait_leader(self.all, above=above)

    def replace(self, one: MasterProcess) -> None:
        """Another one for one that is dead."""
        self._gone.append(one)
        self.all[self.all.index(one)] = self._made()

    def end(self) -> None:
        for one in (*self.all, *self._gone):
            one.end()


@pytest.fixture
def masters(brokers: Brokers, tmp_path: Path) -> Iterator[Masters]:
    need_java()
    create_topics(kills, brokers.bootstrap)
    made = Masters(brokers.bootstrap, tmp_path)
    yield made
    made.end()


class Outcomes:
    """Counts what is on the results topics."""

    def __init__(self, bootstrap: str) -> None:
        self._client = KafkaClient(broker_addresses.Brokers(bootstrap), timeout_s=120)

    def close(self) -> None:
        self._client.close()

    def count(self) -> int:
        topics = [kills.topics(name).results for name in kills.teams]
        there = self._client.partitions(topics)
        places = [(topic, number) for topic, numbers in there.items() for number in numbers]
        return sum(self._client.offsets(dict.fromkeys(places, LATEST)).values())

    def wait_for(self, count: int) -> None:
        """Waits until there are so many, as long as they become more."""
        last, moved = self.count(), time.monotonic()
        while last < count:
            time.sleep(0.05)
            now = self.count()
            if now != last:
                last, moved = now, time.monotonic()
            assert time.monotonic() - moved < STILL_S_MAX, f"still at {last} of {count}"

    def ids(self, topic: str) -> tuple[Counter[str], set[str]]:
        """How often each id is there, and which of them without a value."""
        counted, empty = Counter[str](), set[str]()
        for number in self._client.partitions([topic])[topic]:
            end = self._client.offsets({(topic, number): LATEST})[topic, number]
            for fetched in fetch(self._client, (topic, number), 0, end):
                rows = to_arrow(fetched.batches, (topic, number), offset_end=end)
                keys = [key.decode() for key in rows.column("key").to_pylist()]
                counted.update(keys)
                values = rows.column("value").to_pylist()
                empty.update(k for k, v in zip(keys, values, strict=True) if v is None)
        return counted, empty


class Faults:
    """What is done to the processes, and a line about each."""

    def __init__(self, brokers: Brokers, masters: Masters, outcomes: Outcomes) -> None:
        self._brokers, self._masters, self._outcomes = brokers, masters, outcomes
        self._chance = random.Random(SEED)
        self._began = time.monotonic()

    def plan(self) -> list[Callable[[], str]]:
        """One of each kind, and as many more as are wanted, in an order of the seed."""
        kinds = [self.pause_driver, self.kill_broker, self.kill_worker]
        if "TEAM_JOBS" in os.environ:
            # Starts a Spark for each one that is killed.
            kinds.append(self.kill_driver)
        if SPARK.startswith("local-cluster"):
            kinds.append(self.kill_executor)
        chosen = [*kinds, *self._chance.choices(kinds, k=FAULTS)]
        self._chance.shuffle(chosen)
        return chosen

    def tell(self, what: str) -> None:
        count = self._outcomes.count()
        print(f"{time.monotonic() - self._began:7.1f} s {count:8d} outcomes  {what}", flush=True)

    def kill_broker(self) -> str:
        return f"killed and started {self._brokers.kill_one(self._chance)}"

    def kill_worker(self) -> str:
        return self._kill_below("a Python worker", "pyspark.daemon")

    def kill_executor(self) -> str:
        return self._kill_below("an executor", "CoarseGrainedExecutorBackend")

    def _kill_below(self, what: str, word: str) -> str:
        leader = self._masters.leader()
        deadline = time.monotonic() + STEP_S_MAX
        while not (found := leader.below(word)) and time.monotonic() < deadline:
            time.sleep(0.1)
        chosen = self._chance.choice(sorted(found, key=lambda one: one.pid))
        kill(chosen)
        return f"killed {what}, process {chosen.pid} of {leader.name}"

    def kill_driver(self) -> str:
        leader = self._masters.leader()
        term = leader.term
        leader.kill()
        self._masters.replace(leader)
        new = self._masters.leader(above=term)
        return f"killed driver {leader.name} of term {term}; {new.name} leads term {new.term}"

    def pause_driver(self) -> str:
        leader = self._masters.leader()
        term = leader.term
        leader.pause()
        self.tell(f"paused driver {leader.name} of term {term}")
        new = self._masters.leader(above=term)
        before = self._outcomes.count()
        if before < expected_count():
            self._outcomes.wait_for(before + 1)
        leader.resume()
        leader.wait_lost(term)
        return f"driver {leader.name} woke up after {new.name} of term {new.term} had results"


def expected_count() -> int:
    """Outcomes in all."""
    return sum(expected(team).total() for team in kills.teams)


def expected(team: str) -> Counter[str]:
    """The ids that end at a team, each once."""
    good = [n for n in range(JOBS) if not is_bad(n)]
    match team:
        case "sort":
            return Counter(f"w{n}" for n in range(JOBS))
        case "pack":
            return Counter(f"w{n}" for n in good if is_packed(n))
    items = [f"w{n}/{item}" for n in good if is_packed(n) for item in range(ITEMS)]
    return Counter(items + [f"w{n}" for n in good if not is_packed(n)])


def submit(bootstrap: str, go_on: list[threading.Event]) -> None:
    """Submits the jobs in portions; each waits for its event."""
    size = -(-JOBS // len(go_on))
    with FrontEnd(kills, bootstrap) as front:
        for at, event in enumerate(go_on):
            event.wait()
            numbers = range(at * size, min(JOBS, (at + 1) * size))
            while True:
                try:
                    front.submit_many(numbers, [f"w{n}" for n in numbers])
                    break
                except DovetailError as error:
                    assert error.retriable, error


@pytest.fixture
def outcomes(brokers: Brokers) -> Iterator[Outcomes]:
    made = Outcomes(brokers.bootstrap)
    yield made
    made.close()


def test_every_job_has_one_outcome_whatever_is_killed(
    brokers: Brokers, masters: Masters, outcomes: Outcomes
) -> None:
    """T2, T5, T7: counted on the topics, sprayed items too, with a master that slept."""
    print(f"seed={SEED} jobs={JOBS} spark={SPARK} brokers={BROKERS or 1}")
    faults = Faults(brokers, masters, outcomes)
    plan = faults.plan()
    gates = [threading.Event() for _ in range(len(plan) + 1)]
    submitting = threading.Thread(target=submit, args=(brokers.bootstrap, gates), daemon=True)
    submitting.start()
    faults.tell(f"{masters.leader().name} leads; {len(plan)} faults to come")
    for gate, fault in zip(gates, plan, strict=False):
        before = outcomes.count()
        gate.set()
        outcomes.wait_for(before + 1)
        faults.tell(fault())
    gates[-1].set()
    submitting.join()
    outcomes.wait_for(expected_count())
    faults.tell("as many outcomes as there must be")
    for team in kills.teams:
        topics = kills.topics(team)
        found, failed = outcomes.ids(topics.results)
        wanted = expected(team)
        assert found == wanted, (team, (found - wanted).most_common(9), wanted - found)
        letters, _ = outcomes.ids(topics.dead)
        assert letters == Counter(failed), f"{team}: a dead letter for each failure, and no other"
        if team == "sort":
            assert {f"w{n}" for n in range(JOBS) if is_bad(n)} <= failed
    faults.tell("counted: each job and each item has one outcome")
