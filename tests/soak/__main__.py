"""The run: see the package."""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# A load that leaves the processors to what recovers; read when the checker is imported.
os.environ.setdefault("LOAD_PAUSE_S", "0.5")

from tests import etcd_server
from tests.cluster_processes import ClusterProcesses, running_cluster
from tests.conftest import RunningNode, pytest_configure
from tests.database_servers import (
    DatabaseServer,
    debian_postgres,
    running_maria,
    running_postgres,
)
from tests.soak.held import Book
from tests.soak.log import LogPart
from tests.soak.outbox import OutboxPart
from tests.soak.part import Heal, Part
from tests.soak.stream import StreamPart
from tests.soak.teams import TeamsPart
from tests.soak.timelines import TimelinePart

#: A fault lasts so long; some of them wait for others to take over first.
FAULT_S = (0.5, 8.0)
#: Between two faults every part does at least one thing more within this.
STUCK_S_MAX = 300.0
#: How long processes get to write down what they are doing.
STACKS_S = 3.0
#: With so many processes on few cores, silence for a moment is no death: etcd's times.
HEARTBEAT_MS, ELECTION_TIMEOUT_MS = 300, 3_000


class Run:
    """Parts under load, and a clock."""

    def __init__(self, parts: Sequence[Part], rng: random.Random) -> None:
        self._parts = parts
        self._rng = rng
        self._book = Book()
        self._began = time.monotonic()
        self._faults = 0

    def tell(self, what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:7.0f} s  {what}\n")
        sys.stdout.flush()

    def go(self, minutes: float) -> None:
        """Faults for so long, once everything moves."""
        self._wait_moved()
        self._book.look(self._pids())
        deadline = time.monotonic() + minutes * 60
        while time.monotonic() < deadline:
            heals = [self._harm(part) for part in self._chosen()]
            time.sleep(self._rng.uniform(*FAULT_S))
            for heal in heals:
                heal()
            self._wait_moved()
            self._book.look(self._pids())

    def judge(self) -> None:
        """Ends the load and counts."""
        for part in self._parts:
            part.finish()
            self.tell(f"{part.name} is finished")
        broken = []
        for part in self._parts:
            try:
                self.tell(f"{part.name}: {part.judge()}")
            except Exception as error:
                self.tell(f"{part.name}: NOT KEPT: {error}")
                broken.append(error)
        for line in self._book.judge(self._pids()):
            self.tell(line)
        if broken:
            raise ExceptionGroup(f"{self._faults} faults, and promises were not kept", broken)
        self.tell(f"{self._faults} faults, and every promise was kept")

    def _chosen(self) -> list[Part]:
        """One part, in a third of the cases two."""
        return self._rng.sample(list(self._parts), 2 if self._rng.random() < 1 / 3 else 1)

    def _harm(self, part: Part) -> Heal:
        fault: Callable[[], Heal] = self._rng.choice(part.faults())
        done = ", ".join(f"{part.name} {part.done()}" for part in self._parts)
        self.tell(f"{part.name}: {fault.__name__:32} done: {done}")
        self._faults += 1
        return fault()

    def _wait_moved(self) -> None:
        """Every part goes on."""
        before = {part.name: part.done() for part in self._parts}
        deadline = time.monotonic() + STUCK_S_MAX
        for part in self._parts:
            while part.done() <= before[part.name]:
                if time.monotonic() > deadline:
                    _ask_for_stacks(part)
                    raise AssertionError(f"{part.name} is stuck at {part.done()}")
                time.sleep(0.1)

    def _pids(self) -> dict[str, int]:
        return {name: pid for part in self._parts for name, pid in part.pids().items()}


def _ask_for_stacks(part: Part) -> None:
    """Its processes write what their threads are doing into their logs."""
    for pid in part.pids().values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(STACKS_S)


@contextlib.contextmanager
def kept_if_it_fails() -> Iterator[Path]:
    """A folder for everything; the logs of a run that failed are needed."""
    folder = Path(tempfile.mkdtemp(prefix="dovetail-soak-"))
    try:
        yield folder
    except BaseException:
        print(f"logs and data are in {folder}", flush=True)
        raise
    shutil.rmtree(folder)


@contextlib.contextmanager
def house(folder: Path, rng: random.Random) -> Iterator[list[Part]]:
    """All parts, started."""
    etcd_server.HEARTBEAT_MS = HEARTBEAT_MS
    etcd_server.ELECTION_TIMEOUT_MS = ELECTION_TIMEOUT_MS
    with contextlib.ExitStack() as stack:
        old = debian_postgres()
        new_database = stack.enter_context(running_postgres())
        old_database = stack.enter_context(running_postgres(programs=old[0] if old else None))
        outbox_database = stack.enter_context(running_postgres(programs=old[0] if old else None))
        maria = stack.enter_context(running_maria())
        cluster: ClusterProcesses = stack.enter_context(
            running_cluster(
                folder / "cluster",
                etcd_members=3,
                network="proxies",
                timeline_store="postgres",
                timeline_dsn=new_database.create_database().dsn,
                coordination_lease_ms="8s",
            )
        )
        settings = {
            "timeline_store": "postgres",
            "timeline_dsn": old_database.create_database().dsn,
        }
        node = RunningNode(folder / "node", settings)
        node.start()
        stack.callback(node.kill)

        def of_node() -> dict[str, int]:
            return {"node": node.pid} if node.running else {}

        bootstrap = cluster.bootstrap
        outboxes: list[tuple[str, str, DatabaseServer | None]] = [
            ("outbox on postgresql", outbox_database.create_database().url, outbox_database),
            ("outbox on mariadb", maria.create_database().url, maria),
            ("outbox on sqlite", f"sqlite:///{folder / 'outbox.db'}", None),
        ]
        makers: list[Callable[[], Part]] = [
            lambda: LogPart(cluster, rng),
            lambda: TimelinePart("timeline", bootstrap, new_database, folder / "t18", rng, dict),
            lambda: TimelinePart(
                "timeline 15", node.bootstrap, old_database, folder / "t15", rng, of_node
            ),
            lambda: StreamPart(node, folder / "stream", rng),
        ]
        for given in outboxes:
            makers.append(lambda given=given: OutboxPart(*given, bootstrap, folder, rng))
        # Spark takes all processors while it starts, so it comes last.
        makers.append(lambda: TeamsPart(bootstrap, folder / "teams", rng))
        parts: list[Part] = []
        for make in makers:
            parts.append(make())
            stack.callback(parts[-1].end)
        yield parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    print(f"seed={given.seed} minutes={given.minutes:g}", flush=True)
    pytest_configure()
    rng = random.Random(given.seed)
    with kept_if_it_fails() as folder, house(folder, rng) as parts:
        run = Run(parts, rng)
        run.go(given.minutes)
        run.judge()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # Threads of a load whose counterpart is gone would keep the process for ever.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
