"""A driver of teams in a process of its own: started, measured from outside, killed."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from bench.node import Node
from bench.peers.server import free_port

_TIMEOUT_MS = 2_000
#: Two Sparks start on two cores.
_STEP_S_MAX = 300.0


class Driver:
    """`dovetail pipeline run` in a process of its own, with its Java and its workers."""

    def __init__(
        self, node: Node, folder: Path, spec: str, *, standby: bool = False, cores: int = 1
    ) -> None:
        """`spec` is `module:pipeline`; with `standby` it takes part in an election by BULLY."""
        port = free_port()
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        environment |= {
            "DOVETAIL_STREAM_ALGORITHM": "BULLY",
            "DOVETAIL_STREAM_ENDPOINT_HOST_AND_PORT": f"127.0.0.1:{port}",
            "DOVETAIL_STREAM_SHARED_SECRET": "a secret that both of them know",
            "DOVETAIL_STREAM_TIMEOUT_MS": str(_TIMEOUT_MS),
        }
        command = ["pipeline", "run", spec, "--json", *(["--standby"] if standby else [])]
        command += ["--master", f"local[{cores}]", "--checkpoint", str(folder / "checkpoint")]
        self._log_path = folder / f"driver-{port}.log"
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dovetail", *command, "--bootstrap", node.bootstrap],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._told: queue.Queue[tuple[str, float]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            document: dict[str, Any] = json.loads(line)
            if "state" in document:
                self._told.put((document["state"], time.time()))

    def wait(self, *states: str, wait_s: float = _STEP_S_MAX) -> tuple[str, float]:
        """Which of these it told first, and when. Raises `TimeoutError`."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            try:
                told = self._told.get(timeout=0.5)
            except queue.Empty:
                if self._process.poll() is not None:
                    break
                continue
            if told[0] in states:
                return told
        raise TimeoutError(f"no {states}: {self._log_path.read_text()[-1500:]}")

    def cpu_s(self) -> float:
        """Processor seconds of all its processes, of those that have ended too."""
        total = 0.0
        for one in self._processes():
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                total += times.user + times.system
                if one.pid == self._process.pid:
                    total += times.children_user + times.children_system
        return total

    def python_mb(self) -> float:
        """Memory of its Python processes in megabytes; what several share counts once."""
        total = 0
        for one in self._processes():
            with suppress(psutil.NoSuchProcess):
                if "java" not in one.name():
                    total += one.memory_full_info().pss
        return total / 1e6

    def _processes(self) -> list[psutil.Process]:
        root = psutil.Process(self._process.pid)
        return [root, *root.children(recursive=True)]

    def kill(self) -> float:
        """kill -9 for the driver, its Java and its workers; returns when."""
        at = time.time()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return at
