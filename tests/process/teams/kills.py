"""Jobs through a pipeline while everything that does them is killed, and the count of outcomes.

What is killed is chosen by a seed: brokers, drivers, executors, Python workers, processes of
functions; and a paused driver wakes up after its successor took over.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from tests.etcd_server import free_ports
from tests.process.teams.kill_graph import (
    expected,
    expected_cancelled,
    expected_failures,
    expected_marks,
)
from tests.process.teams.master_processes import STEP_S_MAX, MasterProcess, kill, wait_leader

from dovetail.errors import DovetailError
from dovetail.kafka.client import brokers as broker_addresses
from dovetail.kafka.client.client import LATEST, KafkaClient
from dovetail.spark.decoder import COLUMNS_WITH_HEADERS, to_arrow
from dovetail.spark.fetching import fetch
from dovetail.teams import FrontEnd, Pipeline

JOBS = int(os.environ.get("TEAM_JOBS", "600"))
#: Beyond one fault of each kind.
FAULTS = int(os.environ.get("TEAM_FAULTS", "0"))
SEED = int(os.environ.get("TEAM_SEED", "1"))
#: Without any outcome for so long, something hangs.
STILL_S_MAX = 400.0

Below = Callable[..., list[psutil.Process]]


class Brokers:
    """What holds the topics, and how one of it is killed."""

    def __init__(
        self, bootstrap: str, kill_one: Callable[[random.Random], str] | None = None
    ) -> None:
        self.bootstrap, self.kill_one = bootstrap, kill_one


class Masters:
    """Two masters; one that dies is replaced by a new one, if anything is still to come."""

    def __init__(
        self,
        where: str,
        bootstrap: str,
        folder: Path,
        *,
        spark: str,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._where, self._bootstrap, self._folder = where, bootstrap, folder
        self._spark, self._options, self._environment = spark, options, environment
        self._gone: list[MasterProcess] = []
        self.all = [self._made() for _ in range(2)]

    def _made(self) -> MasterProcess:
        [port] = free_ports(1)
        return MasterProcess(
            self._where,
            self._bootstrap,
            self._folder,
            port=port,
            spark=self._spark,
            options=self._options,
            environment=self._environment,
        )

    def leader(self, *, above: int = 0) -> MasterProcess:
        return wait_leader(self.all, above=above)

    def lost(self, one: MasterProcess, *, replace: bool) -> None:
        """One is dead."""
        self._gone.append(one)
        self.all.remove(one)
        if replace:
            self.all.append(self._made())

    def end(self) -> None:
        for one in (*self.all, *self._gone):
            one.end()


class Outcomes:
    """Counts what is on the results topics of a pipeline."""

    def __init__(self, pipeline: Pipeline, bootstrap: str) -> None:
        self._pipeline = pipeline
        self._client = KafkaClient(broker_addresses.Brokers(bootstrap), timeout_s=120)

    def close(self) -> None:
        self._client.close()

    @property
    def wanted(self) -> int:
        """Records on the results topics when all is done."""
        marks = expected_marks(JOBS, delays=self._pipeline.has_delays)
        return marks + sum(expected(team, JOBS).total() for team in self._pipeline.teams)

    def count(self) -> int:
        topics = [self._pipeline.topics(name).results for name in self._pipeline.teams]
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

    def check(self) -> None:
        """Each job, each item and each gathering has one outcome, each failure a dead letter."""
        for team in self._pipeline.teams:
            failed = self.failed(team, expected(team, JOBS))
            # A function that was killed too often fails too; nothing else does.
            assert expected_failures(team, JOBS) <= failed.keys(), team
            cancelled = {name for name, kind in failed.items() if kind == b"cancelled"}
            assert cancelled == (expected_cancelled(JOBS) if team == "wait" else set())

    def failed(self, team: str, wanted: Counter[str]) -> dict[str, bytes]:
        """How those of these ids failed that did; each has one outcome, each failure a dead letter.

        One that was cancelled has none.
        """
        topics = self._pipeline.topics(team)
        found, failed = self._ids(topics.results)
        assert found == wanted, (team, (found - wanted).most_common(9), wanted - found)
        letters, _ = self._ids(topics.dead)
        dead = Counter(name for name, kind in failed.items() if kind != b"cancelled")
        assert letters == dead, f"{team}: one dead letter for each failure"
        return failed

    def _ids(self, topic: str) -> tuple[Counter[str], dict[str, bytes]]:
        """How often each id is there, and how those failed that did; no marks of retries."""
        counted, failed = Counter[str](), dict[str, bytes]()
        for number in self._client.partitions([topic])[topic]:
            end = self._client.offsets({(topic, number): LATEST})[topic, number]
            for fetched in fetch(self._client, (topic, number), 0, end):
                rows = to_arrow(
                    fetched.batches,
                    (topic, number),
                    offset_end=end,
                    columns=COLUMNS_WITH_HEADERS,
                )
                for row in rows.select(["key", "headers"]).to_pylist():
                    headers = {one["key"]: one["value"] for one in row["headers"] or ()}
                    kind = headers.get("dovetail-kind")
                    if kind == b"postponed":
                        continue
                    counted[row["key"].decode()] += 1
                    if kind is not None:
                        failed[row["key"].decode()] = kind
        return counted, failed


class Faults:
    """What is done to the processes, and a line about each."""

    def __init__(
        self, brokers: Brokers, masters: Masters, outcomes: Outcomes, below: Below | None = None
    ) -> None:
        """`below` finds the processes of executors, if they are not the leader's own."""
        self._brokers, self._masters, self._outcomes = brokers, masters, outcomes
        self._below = below
        self.chance = random.Random(SEED)
        self._began = time.monotonic()

    def plan(self, kinds: Sequence[Callable[[], str]]) -> list[Callable[[], str]]:
        """One of each kind, and as many more as are wanted, in an order of the seed."""
        chosen = [*kinds, *self.chance.choices(kinds, k=FAULTS)]
        self.chance.shuffle(chosen)
        return chosen

    def tell(self, what: str) -> None:
        count = self._outcomes.count()
        print(f"{time.monotonic() - self._began:7.1f} s {count:8d} outcomes  {what}", flush=True)

    def kill_broker(self) -> str:
        assert self._brokers.kill_one is not None, "a broker that comes back"
        return f"killed and started {self._brokers.kill_one(self.chance)}"

    def kill_worker(self) -> str:
        return self._kill("a Python worker", lambda: self._pythons(1))

    def kill_function(self) -> str:
        return self._kill("a process of functions", lambda: self._pythons(2))

    def kill_executor(self) -> str:
        return self._kill("an executor", lambda: self._found("CoarseGrainedExecutorBackend"))

    def _found(self, word: str) -> list[psutil.Process]:
        below = self._below or self._masters.leader().below
        return [one for one in below(word) if one.is_running()]

    def _pythons(self, depth: int) -> list[psutil.Process]:
        """Spark's Python workers are below a daemon, and the processes of functions below them."""
        found = {one.pid: one for one in self._found("pyspark.daemon")}

        def depth_of(process: psutil.Process) -> int:
            try:
                parent = found.get(process.ppid())
            except psutil.NoSuchProcess:
                return -1
            return 0 if parent is None else 1 + depth_of(parent)

        return [one for one in found.values() if depth_of(one) == depth]

    def _kill(self, what: str, find: Callable[[], list[psutil.Process]]) -> str:
        deadline = time.monotonic() + STEP_S_MAX
        while not (found := find()):
            assert time.monotonic() < deadline, f"there is not {what}"
            time.sleep(0.1)
        chosen = self.chance.choice(sorted(found, key=lambda one: one.pid))
        kill(chosen)
        return f"killed {what}, process {chosen.pid}"

    def kill_driver(self, *, replace: bool = True) -> str:
        leader = self._masters.leader()
        term = leader.term
        leader.kill()
        self._masters.lost(leader, replace=replace)
        new = self._masters.leader(above=term)
        return f"killed driver {leader.name} of term {term}; {new.name} leads term {new.term}"

    def kill_java(self, *, replace: bool = True) -> str:
        """The driver cannot go on without it, and must not lead on."""
        leader = self._masters.leader()
        term = leader.term
        leader.kill_java()
        self._masters.lost(leader, replace=replace)
        new = self._masters.leader(above=term)
        return f"killed the Java of {leader.name}, which ended; {new.name} leads term {new.term}"

    def pause_driver(self) -> str:
        leader = self._masters.leader()
        term = leader.term
        leader.pause()
        self.tell(f"paused driver {leader.name} of term {term}")
        new = self._masters.leader(above=term)
        before = self._outcomes.count()
        if before < self._outcomes.wanted:
            self._outcomes.wait_for(before + 1)
        leader.resume()
        leader.wait_lost(term)
        return f"driver {leader.name} woke up after {new.name} of term {new.term} had results"


def submit(pipeline: Pipeline, bootstrap: str, go_on: list[threading.Event]) -> None:
    """Submits the jobs in portions; each waits for its event."""
    size = -(-JOBS // len(go_on))
    with FrontEnd(pipeline, bootstrap) as front:
        for at, event in enumerate(go_on):
            event.wait()
            numbers = range(at * size, min(JOBS, (at + 1) * size))
            while True:
                try:
                    front.submit_many(numbers, [f"w{n}" for n in numbers])
                    break
                except DovetailError as error:
                    assert error.retriable, error


def run_with_faults(
    pipeline: Pipeline,
    bootstrap: str,
    faults: Faults,
    plan: Sequence[Callable[[], str]],
    outcomes: Outcomes,
) -> None:
    """Submits a portion of the jobs before each fault, the last after all; then counts."""
    gates = [threading.Event() for _ in range(len(plan) + 1)]
    given = (pipeline, bootstrap, gates)
    submitting = threading.Thread(target=submit, args=given, daemon=True)
    submitting.start()
    for gate, fault in zip(gates, plan, strict=False):
        before = outcomes.count()
        gate.set()
        outcomes.wait_for(before + 1)
        faults.tell(fault())
    gates[-1].set()
    submitting.join()
    lingering = expected_cancelled(JOBS)
    outcomes.wait_for(outcomes.wanted - len(lingering))
    with FrontEnd(pipeline, bootstrap) as front:
        for job_id in lingering:
            front.cancel(job_id)
    faults.tell(f"cancelled {len(lingering)} jobs; {faults.kill_worker()}")
    outcomes.wait_for(outcomes.wanted)
    faults.tell("as many outcomes as there must be")
    outcomes.check()
    faults.tell("counted: each job and each item has one outcome")
