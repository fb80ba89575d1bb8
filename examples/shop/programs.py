"""Programs as processes: started, killed, paused, and started again when they end.

A program that ends although nobody stopped it is restarted after a moment, as a service manager
would do, and `surprises` counts it. Its output goes to files; `new_lines` returns what is new since
the last call. Every process has the name of its run in its environment, so that the last sweep
finds whatever is left, such as orphans of Spark.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).parent.parent.parent
RUN_VARIABLE = "SHOP_DEMO_RUN"
#: How long a program that was asked to end may take.
STOP_S_MAX = 10.0
#: Before a program that ended by itself is started again.
AGAIN_S = 1.0


@dataclass(slots=True, eq=False)
class Program:
    """One program, of which one process runs at a time."""

    name: str
    arguments: list[str]
    folder: Path
    run: str
    environment: Mapping[str, str] = field(default_factory=dict)
    starts: int = 0
    #: What it is doing, for the view.
    state: str = "not started"
    surprises: int = 0
    #: When it is to be started, or to go on after a pause, by the monotonic clock.
    start_at: float | None = None
    resume_at: float | None = None
    _process: subprocess.Popen[bytes] | None = None
    _read_to: int = 0
    _asked_to_stop: bool = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def out_path(self) -> Path:
        return self.folder / f"{self.name}.out"

    @property
    def log_path(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Starts a process of it."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        with self.out_path.open("ab") as out, self.log_path.open("ab") as log:
            self._process = self._popen(
                {**kept, **self.environment, RUN_VARIABLE: self.run}, out, log
            )
        self.starts += 1
        self.state, self.start_at, self._asked_to_stop = "runs", None, False

    def _popen(
        self, environment: dict[str, str], out: IO[bytes], log: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*_guard(), sys.executable, "-m", *self.arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            # Ctrl-C is for the demo, which ends the others in its own order.
            start_new_session=True,
        )

    def children(self) -> list[psutil.Process]:
        """What its process has started, and what these have."""
        if self.pid is None:
            return []
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self, *, again_s: float) -> None:
        """kill -9 of the process and, for a Spark driver, of its Java; it starts again later."""
        engines = [child for child in self.children() if _name(child) == "java"]
        self._asked_to_stop = True
        self.resume_at = None
        for number in [self.pid, *(child.pid for child in engines)]:
            if number is not None:
                _send(number, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        self.state, self.start_at = "killed", time.monotonic() + again_s

    def pause(self, *, seconds: float) -> None:
        """SIGSTOP to the process and all that it has started, until `seconds` are over."""
        for number in self._family():
            _send(number, signal.SIGSTOP)
        self.state, self.resume_at = "paused", time.monotonic() + seconds

    def resume(self) -> None:
        """SIGCONT."""
        for number in self._family():
            _send(number, signal.SIGCONT)
        self.resume_at = None
        if self.runs:
            self.state = "runs"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended_well(self) -> bool:
        return self._process is not None and self._process.poll() == 0

    def look(self) -> str | None:
        """Starts or resumes it if it is time; a sentence if something happened by itself."""
        now = time.monotonic()
        if self.resume_at is not None and now >= self.resume_at:
            self.resume()
            return f"{self.name} wakes up"
        if self.start_at is not None:
            if now >= self.start_at:
                self.start()
                return f"{self.name} is started again"
            return None
        if self._process is None or self.runs or self._asked_to_stop:
            return None
        code = self._process.returncode
        self._asked_to_stop = True
        if code == 0:
            self.state = "done"
            return None
        self.surprises += 1
        self.state, self.start_at = "ended", now + AGAIN_S
        return f"{self.name} ended by itself, with code {code}; see {self.log_path}"

    def ask_to_stop(self) -> None:
        """SIGTERM, once; returns at once."""
        self.start_at = None
        self._asked_to_stop = True
        if self.resume_at is not None:
            self.resume()
        if self.runs and self.pid is not None:
            _send(self.pid, signal.SIGTERM)

    def wait_stopped(self, seconds: float) -> None:
        """Waits for the end, which kill -9 brings if it does not come."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(again_s=0.0)
            self.start_at = None
        self.state = "stopped"

    def new_lines(self) -> Iterator[str]:
        """The whole lines that it has printed since the last look."""
        if not self.out_path.exists():
            return
        with self.out_path.open("rb") as out:
            out.seek(self._read_to)
            for line in out:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                yield line.decode(errors="replace").rstrip("\n")

    def _family(self) -> list[int]:
        return [number for number in [self.pid, *(c.pid for c in self.children())] if number]


def stop_all(programs: list[Program]) -> None:
    """Asks all to stop, and waits; kill -9 for those that take too long."""
    deadline = time.monotonic() + STOP_S_MAX
    for program in programs:
        program.ask_to_stop()
    for program in programs:
        program.wait_stopped(max(0.1, deadline - time.monotonic()))


def sweep(run: str) -> int:
    """Ends every process that is left of a run; how many there were."""
    left = list(_left(run))
    for process in left:
        _send(process.pid, signal.SIGKILL)
    psutil.wait_procs(left, timeout=STOP_S_MAX)
    return len(left)


def _left(run: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(RUN_VARIABLE) == run:
                yield process
        except psutil.Error:
            continue


def _guard() -> list[str]:
    """Has the kernel end a process when the demo is gone, even by kill -9; where there is a way."""
    program = shutil.which("setpriv")
    return [] if program is None else [program, "--pdeathsig", "KILL"]


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _send(number: int, what: signal.Signals) -> None:
    try:
        os.kill(number, what)
    except ProcessLookupError:
        pass
