"""A program whose standard files are closed, as by an old supervisor."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

START_S_MAX = 60.0


def _start(closed: tuple[int, ...], *command: str, **more: Any) -> "subprocess.Popen[str]":
    def close() -> None:
        for number in closed:
            os.close(number)

    program = [sys.executable, "-m", "dovetail", *command]
    # Nothing of the test runs in other threads here.
    return subprocess.Popen(program, preexec_fn=close, text=True, **more)  # noqa: PLW1509


@pytest.mark.parametrize("closed", [(0,), (0, 2)])
def test_a_node_runs_and_stops(closed: tuple[int, ...], tmp_path: Path) -> None:
    """R5: a socket got number 0, and the end of that ended the process by SIGABRT; number 2 was a
    file of the node, into which a library could write its complaints."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DOVETAIL_")},
        "DOVETAIL_NODE_DATA_DIR": str(tmp_path / "data"),
        "DOVETAIL_KAFKA_PORT": "0",
        "DOVETAIL_HTTP_PORT": "0",
    }
    with _start(closed, "up", "--json", env=environment, stdout=subprocess.PIPE) as node:
        try:
            assert node.stdout is not None
            assert json.loads(node.stdout.readline())["kafka"]
            for number in closed:
                assert os.readlink(f"/proc/{node.pid}/fd/{number}") == os.devnull
            node.send_signal(signal.SIGTERM)
            assert node.wait(START_S_MAX) == 0
        finally:
            node.kill()


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_a_command_ends_as_it_should(closed: tuple[int, ...]) -> None:
    """R5: `AttributeError: 'NoneType' object has no attribute 'isatty'`."""
    assert _start(closed, "config", "show").wait(START_S_MAX) == 0
