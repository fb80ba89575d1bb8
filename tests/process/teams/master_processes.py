"""Masters of a pipeline as real processes, with the processes that Spark starts for them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from tests import warm_python

ROOT = Path(__file__).parent.parent.parent.parent
#: Several Sparks start on two cores, with whatever runs beside them.
STEP_S_MAX = 400.0
#: How long a test that has failed waits for what processes say about themselves.
STACKS_S = 2.0


class MasterProcess:
    """`dovetail pipeline run --standby` in a process of its own."""

    def __init__(
        self,
        where: str,
        bootstrap: str,
        folder: Path,
        *,
        port: int,
        spark: str = "local[2]",
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = os.environ if environment is None else environment
        environment = {k: v for k, v in given.items() if not k.startswith("DOVETAIL_")}
        environment |= {
            "DOVETAIL_STREAM_ALGORITHM": "BULLY",
            "DOVETAIL_STREAM_ENDPOINT_HOST_AND_PORT": f"127.0.0.1:{port}",
            "DOVETAIL_STREAM_SHARED_SECRET": "a secret of more than sixteen bytes",
            "DOVETAIL_STREAM_TIMEOUT_MS": "3000",
            # These drivers live for minutes: what the second compiler would do does not pay.
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        command = ["-m", "dovetail", "pipeline", "run", where, "--standby", "--master", spark]
        checkpoint = str(folder / "checkpoint")
        options = ["--bootstrap", bootstrap, "--checkpoint", checkpoint, "--json", *options]
        self.name = f"master-{port}"
        self._log_path = folder / f"{self.name}.log"
        with self._log_path.open("w") as log:
            self._process = warm_python.Popen(
                [sys.executable, *command, *options],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.state, self.term = "starting", 0
        self._changed = threading.Condition()
        #: Lines on its standard output that are not its own.
        self._others: list[str] = []
        #: All processes that were ever seen below it: some outlive it for a while.
        self._seen: set[psutil.Process] = set()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    told = json.loads(line)
                except ValueError:
                    # Java warns on standard output.
                    self._others.append(line)
                    continue
                if "state" in told:
                    with self._changed:
                        self.state, self.term = told["state"], told["term"]
                        self._changed.notify_all()
        with self._changed:
            self.state = "ended"
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def leads(self) -> bool:
        """Whether it is the master, as far as it knows."""
        return self.state in ("master", "started")

    def wait_lost(self, term: int) -> None:
        """Returns when it knows that it is not the master of this term any more."""
        with self._changed:
            there = self._changed.wait_for(
                lambda: not (self.leads and self.term == term), STEP_S_MAX
            )
        assert there, f"{self.name} is {self.state} of term {term} still: {self._stacks()}"
        assert self.state != "ended", f"{self.name} has ended: {self.log()}"

    def log(self) -> str:
        """The end of what it wrote about itself."""
        return self._log_path.read_text()[-3000:]

    def _stacks(self) -> str:
        """What all threads of the driver and of its Java are doing."""
        for one in (psutil.Process(self._process.pid), *self.below("SparkSubmit")):
            _send(one, signal.SIGUSR1 if one.pid == self._process.pid else signal.SIGQUIT)
        time.sleep(STACKS_S)
        return self._log_path.read_text()[-20_000:] + "".join(self._others)[-20_000:]

    def below(self, *words: str) -> list[psutil.Process]:
        """The processes that it or Spark started and whose command has all the words."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen.update(psutil.Process(self._process.pid).children(recursive=True))
        return [one for one in self._seen if all(word in _command(one) for word in words)]

    def pause(self) -> None:
        """SIGSTOP for all of it: the driver, its Java, executors, Python workers."""
        for one in (psutil.Process(self._process.pid), *self.below()):
            _send(one, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT for all of it, the driver last."""
        for one in (*self._seen, psutil.Process(self._process.pid)):
            _send(one, signal.SIGCONT)

    def kill(self) -> None:
        """kill -9 for the driver and its Java. What Spark has below it is left to notice."""
        java = self.below("SparkSubmit")
        assert java, "Java is below it"
        self._process.kill()
        for one in java:
            _send(one, signal.SIGKILL)
        self._process.wait()

    def kill_java(self) -> None:
        """kill -9 for its Java alone. Returns when it has ended by itself."""
        for one in self.below("SparkSubmit"):
            _send(one, signal.SIGKILL)
        with self._changed:
            over = self._changed.wait_for(lambda: self.state == "ended", STEP_S_MAX)
        assert over, f"{self.name} is {self.state} without Java: {self._stacks()}"

    def end(self) -> None:
        """kill -9 for all that is left of it."""
        self.below()
        self._process.kill()
        for one in self._seen:
            _send(one, signal.SIGKILL)
        self._process.wait()


def wait_leader(masters: list[MasterProcess], *, above: int = 0) -> MasterProcess:
    """The master of the highest term, once there is one above a term.

    One that has lost its term may not know it yet.
    """
    deadline = time.monotonic() + STEP_S_MAX
    while time.monotonic() < deadline:
        for one in masters:
            assert one.state != "ended", f"{one.name} has ended: {one.log()}"
        found = [one for one in masters if one.leads and one.term > above]
        if found:
            return max(found, key=lambda one: one.term)
        time.sleep(0.05)
    told = [(one.name, one.state, one.term) for one in masters]
    raise AssertionError(f"nobody leads above term {above}: {told}")


def kill(process: psutil.Process) -> None:
    """kill -9, if it is still there."""
    _send(process, signal.SIGKILL)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
