"""The node and the replicas as processes, for `run` and for the benchmark."""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import AdminClient, NewTopic
from examples.bot.replica import SECRET_VARIABLE

#: Anything that takes longer hangs.
WAIT_S_MAX = 90.0
ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A program that says lines of JSON."""

    def __init__(self, command: list[str], log_path: Path, **environment: str) -> None:
        self._command = command
        self._log_path = log_path
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None

    def start(self, on_line: Callable[[dict[str, Any]], None]) -> None:
        """Starts it, if it does not run."""
        if self._process is not None:
            return
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._command],
                cwd=ROOT,
                env={**environment, **self._environment},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._thread = threading.Thread(
            target=self._read, args=(self._process, on_line), daemon=True
        )
        self._thread.start()

    def kill(self) -> float:
        """kill -9; the time at which it was sent."""
        process, self._process = self._process, None
        if process is None:
            return time.time()
        at = time.time()
        process.kill()
        process.wait()
        assert self._thread is not None
        self._thread.join()
        assert process.stdout is not None
        process.stdout.close()
        return at

    @property
    def runs(self) -> bool:
        return self._process is not None

    @staticmethod
    def _read(process: subprocess.Popen[str], on_line: Callable[[dict[str, Any]], None]) -> None:
        assert process.stdout is not None
        for text in process.stdout:
            on_line(json.loads(text))


class Bots:
    """A node with the topics, and replicas; a context manager that ends them all."""

    def __init__(
        self, folder: Path, *, count: int = 3, timeout_ms: int = 1_000, takeover: str = "resume"
    ) -> None:
        self.changed = threading.Condition()
        self.lines: list[tuple[int, dict[str, Any]]] = []
        self.bootstrap = ""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        node = ["-m", "dovetail", "up", "--json", "--no-http", "--port", "0"]
        self._node = Process([*node, "--data-dir", str(folder / "data")], folder / "node.log")
        self._count = count
        self._options = ["--timeout-ms", str(timeout_ms), "--takeover", takeover]
        self._secret = secrets.token_hex(32)
        self.replicas: dict[int, Process] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def start_replica(self, port: int) -> None:
        """Starts it and waits until it takes part."""
        seen = len(self.lines)
        self.replicas[port].start(lambda line: self._take(port, line))
        self.wait(lambda: self._seen(port, "ready", seen), f"replica {port} is ready")

    def wait(self, reached: Callable[[], object], what: str) -> None:
        """Waits for something to be said."""
        with self.changed:
            if not self.changed.wait_for(reached, WAIT_S_MAX):
                raise TimeoutError(f"not seen in {WAIT_S_MAX:g} s: {what}; see {self._folder}")

    def leader(self) -> int:
        """The port of the replica that leads, when there is one."""
        self.wait(lambda: self._leading() is not None, "a leader")
        leader = self._leading()
        assert leader is not None
        return leader

    def led_after(self, at: float, *, other_than: int) -> float:
        """When another replica became leader after `at`."""
        found: list[float] = []

        def look() -> bool:
            found[:] = [
                line["at"]
                for port, line in self.lines
                if port != other_than and line.get("role") == "leader" and line["at"] > at
            ]
            return bool(found)

        self.wait(look, "another leader")
        return found[0]

    def _start(self) -> None:
        def ready(line: dict[str, Any]) -> None:
            with self.changed:
                self.bootstrap = line["kafka"]
                self.changed.notify_all()

        self._node.start(ready)
        self.wait(lambda: self.bootstrap, "the node is ready")
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics(
            [NewTopic("questions", 1), NewTopic("answers", 1)]
        ).values():
            future.result(WAIT_S_MAX)
        for _ in range(self._count):
            port = free_port()
            command = ["-m", "examples.bot.replica", "--bootstrap", self.bootstrap]
            command += ["--port", str(port), "--folder", str(self._folder), *self._options]
            log_path = self._folder / f"bot-{port}.log"
            secret = {SECRET_VARIABLE: self._secret}
            self.replicas[port] = Process(command, log_path, **secret)
        for port, replica in self.replicas.items():
            replica.start(lambda line, port=port: self._take(port, line))  # type: ignore[misc]
        for port in self.replicas:
            self.wait(lambda port=port: self._seen(port, "ready", 0), f"replica {port} is ready")  # type: ignore[misc]

    def _end(self) -> None:
        for replica in self.replicas.values():
            replica.kill()
        self._node.kill()

    def _take(self, port: int, line: dict[str, Any]) -> None:
        with self.changed:
            self.lines.append((port, line))
            self.changed.notify_all()

    def _seen(self, port: int, word: str, since: int) -> bool:
        return any(who == port and word in line for who, line in self.lines[since:])

    def _leading(self) -> int | None:
        roles: dict[int, str] = {}
        for port, line in self.lines:
            if "role" in line:
                roles[port] = line["role"]
        leading = [p for p, role in roles.items() if role == "leader" and self.replicas[p].runs]
        return leading[0] if len(leading) == 1 else None
