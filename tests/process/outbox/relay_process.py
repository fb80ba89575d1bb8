"""Relays as processes that end or stand still by themselves at a chosen step.

    python -m tests.process.outbox.relay_process '[["<database>", "<kafka>", "KILL", "<step>", 2]]'

One process for each job: it drains the database, and sends itself the signal (KILL or STOP) the
second time that it comes to the step, such as "after submit". The first line of output holds the
process ids, the second how each of them ended. They are forked, so that the imports are paid once.
Tests start them with `relay_processes`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import warm_python
from tests.outbox_kit import SECONDS_MAX, a_worker

from dovetail.outbox.worker import RelayOptions

#: The lock of one who stops is short, so that the test can wait it out.
LOCK_MS = 500


Job = tuple[str, str, str, str, int]


@contextmanager
def relay_processes(jobs: list[Job]) -> Iterator[tuple[list[int], Callable[[], list[int]]]]:
    """The process ids, and a function that waits and tells how they ended."""
    root = Path(__file__).parents[3]
    process = warm_python.Popen(
        [sys.executable, "-m", "tests.process.outbox.relay_process", json.dumps(jobs)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(SECONDS_MAX, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        with process:
            assert process.stdout is not None
            pids = json.loads(process.stdout.readline())
            yield pids, lambda: list(json.loads(process.stdout.readline()))
    finally:
        timer.cancel()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _drain(database: str, kafka: str, signal_name: str, step: str, count: int) -> None:
    import psycopg  # noqa: F401 - before the clock of the lock runs

    number = getattr(signal, f"SIG{signal_name}")
    left = count

    def on_step(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    options = RelayOptions(lock_ms=LOCK_MS, batch_messages_max=10)
    with a_worker(database, kafka, options, on_step=on_step) as worker:
        while worker.work_once():
            pass


def main() -> None:
    pids = []
    for job in json.loads(sys.argv[1]):
        pid = os.fork()
        if pid == 0:
            try:
                _drain(*job)
            finally:
                sys.stderr.flush()
                os._exit(0 if sys.exc_info()[0] is None else 1)
        pids.append(pid)
    sys.stdout.write(json.dumps(pids) + "\n")
    sys.stdout.flush()
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.stdout.write(json.dumps(ends) + "\n")


if __name__ == "__main__":
    main()
