"""One run of the shop: its programs, what happens to them, and when it is over."""

import bisect
import json
import random
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from examples.shop import chaos, database
from examples.shop.notifier import SECRET_VARIABLE
from examples.shop.programs import Program, stop_all, sweep
from examples.shop.results import DONE
from examples.shop.shop import PAYMENTS
from examples.shop.sight import Watcher
from examples.shop.teams import shop as pipeline
from examples.shop.view import View

from dovetail.errors import Unavailable
from dovetail.teams import create_topics

REPLICAS = 3
TICK_S = 0.1
#: A node reads what its last life left, in seconds; a minute would mean that it hangs.
READY_S_MAX = 60.0
#: After the shop has closed. Spark may have been killed a moment before, and starts in half a
#: minute on a small machine that does other things too.
REST_S_MAX = 600.0
#: The demo closes the shop; this is for a demo that can no longer do so.
OPEN_S_MAX = 2 * 86_400
#: A program that broke down so often will do so again.
SURPRISES_MAX = 3
#: A fault that finds nobody to hit is tried again after this.
LATER_S = 0.5
#: Counts are at rest when they have been so for this long.
REST_S = 1.5


@dataclass(frozen=True, slots=True)
class Wishes:
    """What was asked for."""

    seconds: float
    rate: float
    seed: int
    remind_after_s: float
    faults: tuple[chaos.Fault, ...]


class Run:
    """The programs of one run, in its folder."""

    def __init__(self, folder: Path, wishes: Wishes, view: View) -> None:
        self._folder, self._wishes, self._view = folder, wishes, view
        self._name = secrets.token_hex(8)
        self.database = folder / "shop.db"
        self.bootstrap = self.web = ""
        self._dice = random.Random(wishes.seed)
        self._faults = list(wishes.faults)
        self._leader = "nobody"
        #: How often the notifier that led was killed or paused.
        self.leaders_hit = 0
        self._node = self._program(
            "node",
            *("dovetail", "up", "--json", "--port", "0", "--http-port", "0"),
            DOVETAIL_OUTBOX_DATABASE=f"sqlite:///{self.database}",  # For its page in the console.
        )
        self._node.arguments += ["--data-dir", str(folder / "node")]
        self.programs = [self._node]

    def start(self) -> None:
        """The database, the node and its topics; then everything else."""
        database.create(self.database)
        self._node.start()
        self._wait_ready()
        create_topics(pipeline, self.bootstrap)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        made = admin.create_topics([NewTopic(PAYMENTS, 1), NewTopic(DONE, 1)])
        for future in made.values():
            future.result(READY_S_MAX)
        self.programs += self._others()
        for program in self.programs[1:]:
            program.start()

    def stop(self) -> None:
        """Ends every process, the node last."""
        stop_all(self.programs[1:])
        stop_all([self._node])
        sweep(self._name)

    def run(self, watcher: Watcher) -> bool:
        """Until the shop has closed and all is at rest; whether it came to rest.

        The time of the run begins with the first result: until then Spark starts.
        """
        opened = time.monotonic()
        while not watcher.last.settled:
            self._tick("orders come in and wait, Spark starts", watcher)
            if time.monotonic() > opened + REST_S_MAX:
                raise Unavailable(f"no result after {REST_S_MAX:g} s; see {self._folder}")
        self._view.tell(f"the first result is home, after {time.monotonic() - opened:.0f} s")
        began = time.monotonic()
        while time.monotonic() < began + self._wishes.seconds:
            self._tick("the shop is open", watcher, time.monotonic() - began)
        customers, closed = self.programs[-1], time.monotonic()
        customers.ask_to_stop()
        resting_since = closed
        while time.monotonic() < closed + REST_S_MAX:
            self._tick("the shop has closed, the rest comes in", watcher)
            if customers.runs or not watcher.last.at_rest:
                resting_since = time.monotonic()
            elif time.monotonic() >= resting_since + REST_S:
                return True
        return False

    def show_on(self, view: View) -> None:
        """From now on it is shown there."""
        self._view = view

    @property
    def surprises(self) -> list[str]:
        """Programs that ended although nobody had asked them to."""
        return [f"{one.name} ({one.surprises} times)" for one in self.programs if one.surprises]

    def _tick(self, phase: str, watcher: Watcher, elapsed_s: float = 0.0) -> None:
        for program in self.programs:
            happened = program.look()
            if program.surprises >= SURPRISES_MAX:
                raise Unavailable(
                    f"{program.name} broke down {program.surprises} times; its log ends with:\n"
                    + "\n".join(program.log_path.read_text(errors="replace").splitlines()[-15:])
                )
            if happened:
                self._view.tell(happened, "green" if "wakes" in happened else "")
            for line in program.new_lines():
                self._hear(program, line)
        while self._faults and self._faults[0].at_s <= elapsed_s:
            self._perform(self._faults.pop(0), writer=watcher.last.leader)
        self._view.update(phase, self.programs, watcher)
        time.sleep(TICK_S)

    def _hear(self, program: Program, line: str) -> None:
        if program.name.startswith("notifier") and line.startswith("{"):
            event = json.loads(line)
            if event.get("role") == "leader":
                self._leader = program.name
                self._view.tell(f"{program.name} leads, term {event['term']}", "bold cyan")

    def _perform(self, fault: chaos.Fault, *, writer: str) -> None:
        """Does it; `writer` is the replica of the last mail."""
        if fault.target == "worker":
            self._kill_worker()
            return
        name = fault.target
        if name == "notifier":
            if self._leader != writer:
                # Between two leads there is nobody to hit.
                later = replace(fault, at_s=fault.at_s + LATER_S)
                bisect.insort(self._faults, later, key=lambda one: one.at_s)
                return
            name = writer
        [program] = [one for one in self.programs if one.name == name]
        if not program.runs or program.resume_at is not None:
            return
        self.leaders_hit += fault.target == "notifier"
        if fault.how == "kill":
            program.kill(again_s=fault.away_s)
            self._view.tell(f"kill -9 {name}", "bold red")
        else:
            program.pause(seconds=fault.away_s)
            self._view.tell(f"SIGSTOP {name}, for {fault.away_s:g} s", "yellow")

    def _kill_worker(self) -> None:
        [driver] = [one for one in self.programs if one.name == "driver"]
        workers = [child for child in driver.children() if "python" in child.name()]
        if workers:
            worker = self._dice.choice(workers)
            worker.kill()
            self._view.tell(f"kill -9 of a Python worker of Spark, pid {worker.pid}", "bold red")

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline and self._node.runs:
            for line in self._node.new_lines():
                ready = json.loads(line)
                self.bootstrap, self.web = ready["kafka"], ready["http"]
                # Killed and started again, it is to be found where it was.
                ports = [ready[name].rpartition(":")[2] for name in ("kafka", "http")]
                self._node.arguments = _with_ports(self._node.arguments, *ports)
                return
            time.sleep(TICK_S)
        raise Unavailable(f"the node did not start; it said:\n{self._node.log_path.read_text()}")

    def _others(self) -> list[Program]:
        wishes, common = self._wishes, ["--database", str(self.database)]
        reached = [*common, "--bootstrap", self.bootstrap]
        pause = ["--remind-after", str(wishes.remind_after_s)]
        driver = ["dovetail", "pipeline", "run", "examples.shop.teams:shop", "--json"]
        driver += ["--bootstrap", self.bootstrap, "--master", "local[2]"]
        driver += ["--checkpoint", str(self._folder / "checkpoint")]
        relay = ["dovetail", "relay", "--database", f"sqlite:///{self.database}"]
        secret = {SECRET_VARIABLE: secrets.token_hex(32)}
        replicas = []
        for number in range(1, REPLICAS + 1):
            place = ["--port", str(_free_port()), "--folder", str(self._folder)]
            name = f"notifier-{number}"
            command = ["examples.shop.notifier", *reached, *place, "--name", name]
            replicas.append(self._program(name, *command, **secret))
        customers = ["--rate", str(wishes.rate), "--seconds", str(OPEN_S_MAX), *pause]
        return [
            self._program(
                "relay",
                *relay,
                "--kafka",
                self.bootstrap,
                # A relay that was killed is replaced after this.
                DOVETAIL_OUTBOX_LOCK_MS="3000",
                DOVETAIL_OUTBOX_RETRY_MS_MAX="2000",
            ),
            self._program("driver", *driver),
            self._program("results", "examples.shop.results", *reached),
            self._program("reminders", "examples.shop.reminders", *reached, *pause),
            *replicas,
            self._program(
                "shop", "examples.shop.shop", *common, *customers, "--seed", str(wishes.seed)
            ),
        ]

    def _program(self, name: str, *arguments: str, **environment: str) -> Program:
        return Program(name, list(arguments), self._folder, self._name, environment)


def _with_ports(arguments: Sequence[str], kafka: str, http: str) -> list[str]:
    given = list(arguments)
    given[given.index("--port") + 1] = kafka
    given[given.index("--http-port") + 1] = http
    return given


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
