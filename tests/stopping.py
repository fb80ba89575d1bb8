"""SIGSTOP that has taken effect.

The signal is only sent when `kill` returns; threads on other cores run on for a moment, and can
still answer. A test that counts on silence waits until every thread stands.
"""

import os
import signal
import time
from pathlib import Path

STOP_SECONDS_MAX = 60.0


def pause_process(pid: int) -> None:
    """Stops all threads of a process; returns when they stand."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while not _stands(pid):
        assert time.monotonic() < deadline, f"process {pid} does not stop"
        os.sched_yield()


def _stands(pid: int) -> bool:
    states = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # The state is behind the name, which may have spaces and brackets in it.
        states.append((task / "stat").read_text().rpartition(")")[2].split()[0])
    assert "Z" not in states, f"process {pid} has ended by itself"
    return all(state == "T" for state in states)
