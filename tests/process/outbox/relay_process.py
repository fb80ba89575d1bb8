"""Relays as processes that end or stand still by themselves at a chosen step.

    python -m tests.process.outbox.relay_process '[["<database>", "<kafka>", "KILL", "<step>", 2]]'

One process for each job: it drains the database, and sends itself the signal (KILL or STOP) the
second time that it comes to the step, such as "after submit". The first line of output holds the
process ids, the second how each of them ended. They are forked, so that the imports are paid once.
"""

import json
import os
import signal
import sys

from tests.outbox_kit import a_worker

from dovetail.outbox.worker import RelayOptions

#: The lock of one who stops is short, so that the test can wait it out.
LOCK_MS = 500


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
