"""Kafka Connect on a node: two workers copy lines from a file to a topic and on to a file."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compat import jvm
from tests.compat.drivers.base import wait_for
from tests.compat.server import TopicMaker
from tests.compat.test_transactions import committed

WAIT_S = 90.0
_FILE = "org.apache.kafka.connect.file.FileStream"


class Workers:
    """Workers of one Connect cluster."""

    def __init__(self, bootstrap: str, classes: Path, folder: Path, name: str) -> None:
        self._classes = classes
        self._folder = folder
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "service_load",
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": "200",
            "scheduled.rebalance.max.delay.ms": "0",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            "offset.storage.partitions": "2",
            "status.storage.partitions": "1",
        }
        for kind in ("config", "offset", "status"):
            self._settings[f"{kind}.storage.topic"] = f"{name}-{kind}"
            self._settings[f"{kind}.storage.replication.factor"] = "1"
        self.running: dict[int, jvm.JavaProgram] = {}

    def start(self) -> None:
        port = jvm.free_port()
        settings = {**self._settings, "listeners": f"http://127.0.0.1:{port}"}
        file = self._folder / f"worker-{port}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log = self._folder / f"worker-{port}.log"
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self.running[port] = jvm.JavaProgram(self._classes, log, main, str(file))

    def ask(self, path: str, body: dict[str, str] | None = None) -> Any:
        """What any worker answers; None until one does."""
        data = None if body is None else json.dumps(body).encode()
        for port in self.running:
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}{path}",
                data=data,
                method="GET" if body is None else "PUT",
                headers={"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(asked, timeout=10) as answer:
                    return json.load(answer)
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                continue
        return None

    def worker_of(self, connector: str) -> int | None:
        """The port of the worker that runs the task of a connector."""
        found = self.ask(f"/connectors/{connector}/status")
        for task in (found or {}).get("tasks", ()):
            port = int(task["worker_id"].rpartition(":")[2])
            if task["state"] == "RUNNING" and port in self.running:
                return port
        return None

    def status(self) -> list[Any]:
        """Of all connectors."""
        names = self.ask("/connectors") or ()
        return [self.ask(f"/connectors/{name}/status") for name in names]

    def said(self) -> str:
        return "\n".join(worker.said() for worker in self.running.values())


@pytest.fixture
def workers(bootstrap: str, strangers: Path, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(bootstrap, strangers, tmp_path, f"connect-{time.time_ns()}")
    yield made
    for worker in made.running.values():
        worker.kill()


def append(file: Path, lines: list[str]) -> None:
    with file.open("a") as written:
        written.write("".join(f"{line}\n" for line in lines))


@pytest.mark.timeout(jvm.BUILD_SECONDS_MAX + 5 * WAIT_S)
def test_lines_go_through_though_a_worker_dies(
    bootstrap: str, workers: Workers, topic_maker: TopicMaker, tmp_path: Path
) -> None:
    """K8, K14, L17: the source's positions and lines end in one transaction, so each line is in the
    topic once; the sink misses none. Green on Apache Kafka 4.3 too."""
    topic = topic_maker(partitions=1)
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    lines = [f"line {number}" for number in range(600)]
    append(source, lines[:200])
    workers.start()
    workers.start()
    configs = {
        "source": {"connector.class": f"{_FILE}SourceConnector", "file": str(source)},
        "sink": {"connector.class": f"{_FILE}SinkConnector", "file": str(sink)},
    }
    configs["source"] |= {"topic": topic}
    configs["sink"] |= {"topics": topic}

    def through(count: int) -> bool:
        return sink.exists() and set(lines[:count]) <= set(sink.read_text().splitlines())

    try:
        for name, config in configs.items():
            path = f"/connectors/{name}/config"
            wait_for(name, lambda path=path, config=config: workers.ask(path, config), WAIT_S)  # type: ignore[misc]
        wait_for("the first lines", lambda: through(200), WAIT_S)
        victim = wait_for("a task", lambda: workers.worker_of("source"), WAIT_S)
        append(source, lines[200:400])
        workers.running.pop(victim).kill()
        append(source, lines[400:])
        wait_for("all lines", lambda: through(600), WAIT_S)
    except TimeoutError as error:
        raise AssertionError(f"{error}; {workers.status()} {workers.said()}") from error
    assert committed(bootstrap, topic, 1) == sorted(line.encode() for line in lines)
