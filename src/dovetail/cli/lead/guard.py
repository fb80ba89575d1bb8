"""Runs a command and ends it in time, whatever happens to the process that started this one.

    python guard.py FD UNTIL_MS KILL_MS COMMAND...

Lines come on file descriptor FD: `until MS` says how long the command may run, by the clock that
counts while the machine sleeps; `signal N` is sent on to it. SIGTERM at that time, SIGKILL KILL_MS
later. UNTIL_MS is that time until the first line arrives: its writer may be paused before that. The
end of FD (its writer died) counts as that time. The command has its own process group, and nothing
of that is left behind. The exit code is the command's: 128 + N if signal N ended it, 127 if it does
not exist, 126 if it cannot be run.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

#: Between two looks whether the command has ended.
LOOK_S = 0.05
_PR_SET_PDEATHSIG = 1


def now_ms() -> float:
    """Counts while the machine sleeps, where there is such a clock."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock) * 1000


def due_signal(now: float, until: float, kill_ms: float, *, asked: bool) -> int | None:
    """What to send: SIGTERM once its time has come, and SIGKILL some time later."""
    if now >= until + kill_ms:
        return signal.SIGKILL
    if now >= until and not asked:
        return signal.SIGTERM
    return None


def exit_code(status: int) -> int:
    """As a shell gives it."""
    return 128 - status if status < 0 else status


def _die_with_parent() -> None:
    """In the command: it does not outlive its guard (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(control: int, until: float, kill_ms: float, command: list[str]) -> int:
    """Runs the command to its end; its exit code. A time that is over begins nothing."""
    if now_ms() >= until:
        return exit_code(-signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        # There is one thread here.
        process = subprocess.Popen(command, process_group=0, preexec_fn=_prepare)  # noqa: PLW1509
    except FileNotFoundError:
        return 127
    except OSError:
        return 126

    asked, rest, is_open = False, b"", True
    while process.poll() is None:
        readable = select.select([control] if is_open else [], [], [], LOOK_S)[0]
        if readable:
            data = os.read(control, 65_536)
            is_open = bool(data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                word, _, value = line.partition(b" ")
                if word == b"until":
                    until = float(value)
                elif word == b"signal":
                    _send(process.pid, int(value))
            if not is_open:
                until = min(until, now_ms())
        due = due_signal(now_ms(), until, kill_ms, asked=asked)
        if due is not None:
            asked = True
            _send(process.pid, due)

    _send(process.pid, signal.SIGKILL)
    return exit_code(process.returncode)


def _prepare() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    _die_with_parent()


def _send(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
    except PermissionError:
        # It runs as another user, as under sudo. A guard that ended would say that it has ended.
        return


if __name__ == "__main__":
    sys.exit(run(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
