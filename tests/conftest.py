"""Fixtures that all tests share: real nodes as real processes.

A node gets free ports from the system and a data folder of its own. `node` is one for a module of
tests that leave it as they found it; `node_factory` makes as many as a test wants, with settings
by keyword: `node_factory(log_topic_auto_create="false")` sets `DOVETAIL_LOG_TOPIC_AUTO_CREATE`.
`postgres_server` and `maria_server` are databases for the whole run (tests/database_servers.py).
"""

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from tests import java, warm_python
from tests.database_servers import maria_server, postgres_server  # noqa: F401 - fixtures
from tests.stopping import pause_process

# How long an example takes is no property of the product, and other work runs beside it.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.load_profile("house")

os.environ.setdefault("JAVA_TOOL_OPTIONS", java.options())

# Tables are rendered for a terminal of this width, whatever the tests run in.
os.environ["COLUMNS"] = "140"

#: A start reads what the last life left; minutes would mean that it hangs.
START_SECONDS_MAX = 60


def pytest_configure() -> None:
    """Takes as many file handles as the system allows: users often begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16_384)), hard))


def pytest_collection_finish() -> None:
    """Ten thousand tests and what they import stay to the end; no collection looks at them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """What a test logs may hold half a character, which no worker can send to the main process."""
    return _readable((yield))


def _readable(said: Any) -> Any:
    if isinstance(said, str):
        return said.encode(errors="backslashreplace").decode()
    if isinstance(said, dict):
        return {_readable(name): _readable(value) for name, value in said.items()}
    if isinstance(said, list):
        return [_readable(each) for each in said]
    if isinstance(said, tuple):
        return tuple(_readable(each) for each in said)
    return said


class RunningNode:
    """`dovetail up` in a process of its own, which can be killed and started again."""

    def __init__(self, data_dir: Path, settings: dict[str, str]) -> None:
        self.data_dir = data_dir
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._port = self._http_port = 0
        self._log_path = data_dir.with_name(data_dir.name + ".log")
        self.bootstrap = ""
        self.http_url = ""

    def start(self) -> None:
        """Starts, on the same ports as before if there was a before; returns when it is ready."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Starts, and does not wait."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        environment |= {
            "DOVETAIL_NODE_DATA_DIR": str(self.data_dir),
            "DOVETAIL_KAFKA_PORT": str(self._port),
            "DOVETAIL_HTTP_PORT": str(self._http_port),
        }
        environment |= {f"DOVETAIL_{name.upper()}": v for name, v in self._settings.items()}
        with self._log_path.open("a") as log:
            self._process = warm_python.Popen(
                [sys.executable, "-m", "dovetail", "up", "--json"],
                env=environment,
                cwd=self.data_dir.parent,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_ready(self) -> None:
        """Returns when the node serves."""
        line = self._first_line()
        if not line:
            self.kill()
            raise AssertionError(f"the node did not start:\n{self.log()}")
        ready = json.loads(line)
        self.bootstrap = ready["kafka"]
        self.http_url = ready["http"] or ""
        self._port = int(self.bootstrap.rpartition(":")[2])
        if self.http_url:
            self._http_port = int(self.http_url.rpartition(":")[2])

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        timer = threading.Timer(START_SECONDS_MAX, self._process.kill)
        timer.start()
        try:
            return self._process.stdout.readline()
        finally:
            timer.cancel()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Started, and neither killed nor stopped since."""
        return self._process is not None

    def log(self) -> str:
        """What the node has written about itself."""
        return self._log_path.read_text()

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it stands still, and does not know it."""
        pause_process(self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        """Asks it to stop, and waits until it has; returns its exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        """Waits until it ends by itself; returns its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout=START_SECONDS_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
        code = self._process.wait(timeout=START_SECONDS_MAX)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        return code


@contextlib.contextmanager
def running_node(folder: Path, settings: dict[str, str] | None = None) -> Iterator[RunningNode]:
    """A node for the time of the block; it is killed in the end."""
    node = RunningNode(folder, settings or {})
    try:
        node.start()
        yield node
    finally:
        node.kill()


NodeFactory = Callable[..., RunningNode]


def _factory(folder: Path) -> Iterator[NodeFactory]:
    nodes: list[RunningNode] = []

    def make(**settings: str) -> RunningNode:
        node = RunningNode(folder / f"node-{len(nodes)}", settings)
        nodes.append(node)
        node.start()
        return node

    yield make
    for node in nodes:
        node.kill()


@pytest.fixture
def node_factory(tmp_path: Path) -> Iterator[NodeFactory]:
    """Makes nodes; they end with the test."""
    yield from _factory(tmp_path)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for the tests of one module."""
    for make in _factory(tmp_path_factory.mktemp("node")):
        yield make()
