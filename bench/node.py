"""Our node in a process of its own: started, measured from outside, killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil  # type: ignore[import-untyped]

#: A node that is not ready by then hangs; the limit that is measured is 5 s.
START_S_MAX = 120.0
STOP_S_MAX = 120.0


class Node:
    """`dovetail up` on free ports; a context manager that kills it at the end."""

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        *,
        options: Sequence[str] = (),
    ) -> None:
        """`settings` by the names of their environment variables; `options` of `dovetail up`."""
        self._options = options
        self._folder = folder
        self._settings = settings or {}
        self._process: subprocess.Popen[str] | None = None
        self._measured: psutil.Process | None = None
        self.bootstrap = self.http = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def start(self) -> float:
        """Starts it; returns the seconds from the start of the process to its ready line."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        environment |= self._settings
        self._folder.mkdir(parents=True, exist_ok=True)
        log_path = self._folder.with_name(self._folder.name + ".log")
        command = [sys.executable, "-m", "dovetail", "up", "--json"]
        command += [
            "--data-dir",
            str(self._folder),
            "--port",
            "0",
            "--http-port",
            "0",
            *self._options,
        ]
        started = time.perf_counter()
        with log_path.open("a") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        ready_s = time.perf_counter() - started
        if not line or ready_s > START_S_MAX:
            raise RuntimeError(f"the node is not ready after {ready_s:.0f} s: {_end_of(log_path)}")
        ready = json.loads(line)
        self.bootstrap, self.http = ready["kafka"], ready["http"]
        self._measured = psutil.Process(self._process.pid)
        return ready_s

    @property
    def pid(self) -> int:
        """The process, which must be running."""
        assert self._measured is not None
        return int(self._measured.pid)

    def cpu_s(self) -> float:
        """Processor seconds that the node has used, user and system."""
        assert self._measured is not None
        times = self._measured.cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        """Resident memory in megabytes of 10^6 bytes."""
        assert self._measured is not None
        return float(self._measured.memory_info().rss) / 1e6

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> float:
        """A clean stop; returns the seconds that it took."""
        started = time.perf_counter()
        self._end(signal.SIGTERM)
        return time.perf_counter() - started

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait(timeout=STOP_S_MAX)
        if process.stdout is not None:
            process.stdout.close()


def _end_of(log_path: Path) -> str:
    return log_path.read_text()[-2000:]
