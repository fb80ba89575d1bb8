"""`dovetail top` in a real terminal, against a real node that is killed and comes back."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from tests import warm_python

from dovetail.cli.outcome import ExitCode

WAIT_S_MAX = 60.0
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\(B|[=>])")


class Terminal:
    """A program in a terminal of its own: what it shows, and keys for it."""

    def __init__(self, *arguments: str, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
        self.process = warm_python.Popen(
            [sys.executable, "-m", "dovetail", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env=environment | {"TERM": "xterm"},
            close_fds=True,
        )
        os.close(theirs)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, pattern: str) -> str:
        """Reads until the pattern is shown; only what comes from now on counts."""
        shown, deadline_s = "", time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline_s:
            ready, _, _ = select.select([self._ours], [], [], 0.2)
            if not ready:
                continue
            try:
                shown += os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                break
            plain = _ESCAPES.sub("", shown)
            if re.search(pattern, plain):
                return plain
        raise AssertionError(f"never shown: {pattern}\n{_ESCAPES.sub('', shown)[-3000:]}")

    def end(self) -> int:
        """Waits for the end, reading on so that nothing blocks."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while self.process.poll() is None and time.monotonic() < deadline_s:
            ready, _, _ = select.select([self._ours], [], [], 0.05)
            with contextlib.suppress(OSError):
                if ready:
                    os.read(self._ours, 65536)
        return self.process.wait(timeout=1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        os.close(self._ours)


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode())
    assert producer.flush(WAIT_S_MAX) == 0


def report_of_a_pipeline(bootstrap: str) -> None:
    """What the driver of a pipeline tells of itself, in the topic where it tells it."""
    team = {"team": "parse", "state": "working", "workers": 4, "input": "i", "results": "r"}
    team |= {"dead": "d", "lag": 12, "works": 9, "jobs_per_s": 3.5, "batch": 1, "batch_ms": 320}
    team |= {"failures": 0, "dead_letters": 2, "last_error": ""}
    report = {"format": 1, "pipeline": "orders", "state": "running", "driver": "h:1", "term": 3}
    report |= {"started_ms": 1, "at_ms": time.time_ns() // 1_000_000, "edges": [], "teams": [team]}
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("dovetail.pipelines", json.dumps(report).encode(), key=b"orders")
    assert producer.flush(WAIT_S_MAX) == 0


@pytest.fixture
def environment(node) -> Iterator[dict[str, str]]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    inherited.pop("COLUMNS", None)
    yield inherited | {
        "DOVETAIL_KAFKA_PORT": node.bootstrap.rpartition(":")[2],
        "DOVETAIL_HTTP_PORT": node.http_url.rpartition(":")[2],
    }


def top(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, "-m", "dovetail", "top", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )


def test_one_picture(node, environment: dict[str, str]) -> None:
    """U4: `--once` for people and for programs; a pipe gets one picture by itself."""
    produce(node.bootstrap, "seen", 50)
    report_of_a_pipeline(node.bootstrap)
    found = json.loads(top(environment, "--once", "--json", "--interval", "200ms").stdout)
    assert [row["node"] for row in found["nodes"]] == ["dovetail-1"]
    (row,) = [row for row in found["topics"] if row["topic"] == "seen"]
    assert (row["records"], row["records_per_s"], row["no_leader"]) == (50, 0.0, 0)
    (pipeline,) = found["pipelines"]
    assert (pipeline["pipeline"], pipeline["teams"], pipeline["lag"]) == ("orders", 1, 12)
    assert found["troubles"] == {}
    piped = top(environment, "--interval", "200ms")
    assert piped.returncode == ExitCode.OK
    assert "seen" in piped.stdout
    assert "records/s" in piped.stdout


def test_nobody_at_the_address(environment: dict[str, str]) -> None:
    """U4, U7: a wrong address is told at once, not waited for; a silly interval is refused."""
    done = top(environment, "--bootstrap", "127.0.0.1:1")
    assert done.returncode == ExitCode.UNREACHABLE
    assert "cannot connect" in done.stderr
    assert top(environment, "--interval", "1ms").returncode == ExitCode.USAGE


def test_the_live_view_survives_the_restart_of_the_node(node, environment: dict[str, str]) -> None:
    """U4: keys sort, pause and quit; a killed node is told, waited for, and seen again."""
    produce(node.bootstrap, "lively", 10)
    terminal = Terminal("top", "--interval", "200ms", "--timeout", "2s", environment=environment)
    try:
        assert "dovetail-1" in terminal.wait_for(r"lively +1 +10 ")
        terminal.press("s")
        terminal.wait_for(r"by size")
        terminal.press("h")
        terminal.wait_for(r"reverse the order")
        terminal.press("h")
        node.kill()
        terminal.wait_for(r"topics as of \d+ s ago: cannot connect")
        node.start()
        produce(node.bootstrap, "lively", 5)
        terminal.wait_for(r"lively +1 +15 ")
        terminal.press("p")
        terminal.wait_for(r"paused")
        terminal.press("q")
        assert terminal.end() == ExitCode.OK
    finally:
        terminal.close()
