"""Jobs through three teams on Spark, whose drivers and workers die, hang and wake."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
from confluent_kafka import Producer
from tests.java import need_java
from tests.process.teams.kills import Masters, Outcomes
from tests.process.teams.master_processes import STEP_S_MAX, MasterProcess, kill
from tests.soak.part import Heal
from tests.soak.team_graph import EVERY, ITEMS, MALFORMED, is_packed, is_poison, soaked

from dovetail.errors import DovetailError
from dovetail.teams import FrontEnd, create_topics

BATCH = 10
PAUSE_S = 1.0


class TeamsPart:
    """A pipeline with two drivers, and somebody who submits."""

    name = "teams"

    def __init__(self, bootstrap: str, folder: Path, rng: random.Random) -> None:
        need_java()
        folder.mkdir()
        self._bootstrap, self._rng = bootstrap, rng
        _retried(lambda: len(create_topics(soaked, bootstrap)))
        self._outcomes = Outcomes(soaked, bootstrap)
        where = "tests.soak.team_graph:soaked"
        self._masters = Masters(where, bootstrap, folder, spark="local[2]")
        self._submitted = self._counted = self._killed = self._replaced = 0
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def faults(self) -> Sequence[Callable[[], Heal]]:
        return [self.kill_the_driver, self.pause_the_driver, self.kill_a_worker, self.kill_workers]

    def kill_the_driver(self) -> Heal:
        self._killed += 1
        self._leader().kill()
        return self._revive

    def pause_the_driver(self) -> Heal:
        leader = self._leader()
        leader.pause()
        return leader.resume

    def kill_a_worker(self) -> Heal:
        """Spark's daemon, one of its tasks, or a process that runs jobs."""
        return self._kill_workers(1)

    def kill_workers(self) -> Heal:
        return self._kill_workers(3)

    def _kill_workers(self, count: int) -> Heal:
        found = sorted(self._leader().below("pyspark.daemon"), key=lambda one: one.pid)
        for one in self._rng.sample(found, min(count, len(found))):
            kill(one)
        return lambda: None

    def _leader(self) -> MasterProcess:
        deadline = time.monotonic() + STEP_S_MAX
        while not (leading := [one for one in self._masters.all if one.leads]):
            assert time.monotonic() < deadline, "teams: no driver leads"
            self._revive()
            time.sleep(0.1)
        return max(leading, key=lambda one: one.term)

    def _revive(self) -> None:
        """Another driver for each that has ended, as a supervisor does."""
        for one in list(self._masters.all):
            if one.state == "ended":
                self._replaced += 1
                self._masters.lost(one, replace=True)

    def done(self) -> int:
        if self._error is not None:
            raise self._error
        self._revive()
        return self._counted

    def pids(self) -> Mapping[str, int]:
        found = {}
        for one in self._masters.all:
            if one.state != "ended":
                found[one.name] = one.pid
                found |= {f"task {task} of {one.name}": task for task in _tasks_of(one)}
        return found

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(STEP_S_MAX)
        assert not self._thread.is_alive(), "teams: the submitter hangs"
        wanted = sum(self._expected(team).total() for team in soaked.teams)
        deadline = time.monotonic() + STEP_S_MAX
        while (count := self._outcomes.count()) < wanted:
            self.done()
            assert time.monotonic() < deadline, f"teams: {count} outcomes of {wanted}"
            time.sleep(0.5)

    def judge(self) -> str:
        found = self._outcomes
        failed = {team: {*found.failed(team, self._expected(team))} for team in soaked.teams}
        poison = {f"w{n}" for n in range(self._submitted) if is_poison(n)}
        assert failed == {"sort": poison, "pack": set(), "send": set()}, failed
        return (
            f"{self._submitted} jobs, each with one outcome, {len(poison)} of them poison; "
            f"{self._replaced - self._killed} drivers gave up and were started again"
        )

    def _expected(self, team: str) -> Counter[str]:
        """The ids that end at a team, each once."""
        good = [n for n in range(self._submitted) if not is_poison(n)]
        match team:
            case "sort":
                return Counter(f"w{n}" for n in range(self._submitted))
            case "pack":
                return Counter(f"w{n}" for n in good if is_packed(n))
        items = [f"w{n}/{item}" for n in good if is_packed(n) for item in range(ITEMS)]
        return Counter(items + [f"w{n}" for n in good if not is_packed(n)])

    def end(self) -> None:
        self._stop.set()
        self._masters.end()

    def _run(self) -> None:
        try:
            malformed = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0})
            with FrontEnd(soaked, self._bootstrap) as front:
                while not self._stop.wait(PAUSE_S):
                    numbers = range(self._submitted, self._submitted + BATCH)
                    _retried(lambda numbers=numbers: self._submit(front, malformed, numbers))
                    self._submitted += BATCH
                    self._counted = _retried(self._outcomes.count)
        except BaseException as error:
            self._error = error

    def _submit(self, front: FrontEnd, malformed: Producer, numbers: range) -> int:
        """Under the same ids as before, if it is done again: then they are dropped as known."""
        sound = [n for n in numbers if n % EVERY != MALFORMED]
        front.submit_many(sound, [f"w{n}" for n in sound])
        for n in set(numbers) - set(sound):
            malformed.produce(soaked.topics("sort").input, b"\xff no JSON \x00", f"w{n}".encode())
        while malformed.flush(10):
            pass
        return len(sound)


def _tasks_of(driver: MasterProcess) -> list[int]:
    """The processes of Spark that serve partitions; what runs jobs is below them."""
    python = {one.pid: one for one in driver.below("pyspark.daemon")}
    found = []
    for pid, one in python.items():
        try:
            chain = [parent.pid for parent in one.parents()]
        except psutil.NoSuchProcess:
            continue
        if sum(above in python for above in chain) == 1:
            found.append(pid)
    return found


def _retried(call: Callable[[], int]) -> int:
    """For as long as it takes: something may be away for a minute."""
    while True:
        try:
            return call()
        except DovetailError as error:
            assert error.retriable, error
