"""A worker: a child process that runs a team's function, as its parent sees it.

The child is forked: a copy of this process costs milliseconds, a new interpreter half a second. So
the process that has workers must have no threads that hold locks; a Python worker of Spark has
none.

The child leads a process group, and programs that its functions start are in that group, unless
they leave it. The group ends with the child, so a function that is cancelled or overdue leaves no
program behind.

A shared page shows what the child is doing, even when it is stuck or dead: which jobs are begun,
and since when the current one runs (`worker_report`).

Nothing here waits for the child, which may be stuck in a function: what its pipe does not take is
sent later. It is gone when its pipe is closed, when it is dead though a copy that it has forked
holds the pipe open, or when what comes through the pipe is not from it.

Not here: which jobs it gets and what its end means. `crew` decides both.
"""

import fcntl
import mmap
import os
import select
import signal
import time
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from dovetail import tracing
from dovetail.settings.tracing import TracingSettings
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import Failure, FailureKind
from dovetail.teams.workers import worker_child
from dovetail.teams.workers.worker_report import (
    BEGUN,
    CANCELLED,
    ENDED,
    LENGTH,
    RECALLED,
    RUNNING,
)

#: A child that times its jobs itself is silent for longer than a timeout only if it is stuck.
SILENCE_S = 1.0
START_S_MAX = 30.0
#: Between two looks whether a child has begun something.
_LOOK_S = 0.1
#: A time on the page is later; one that is being written begins with zeros.
_TORN_S = 1e-3
#: Linux allows so much to everybody.
_PIPE_BYTES = 1024 * 1024
#: A pipe that was full is tried again so soon.
_PUSH_S = 0.005
#: Of a job that has begun and not ended.
_RUNS = (BEGUN, CANCELLED)
#: No frame is so long; four letters of a text would be.
_FRAME_BYTES_MAX = 2**29
#: The ends of pipes to all workers of this process, of any crew. A new worker must not hold them: a
#: worker ends in peace when its pipe is closed, which it is when nobody has its other end.
_pipes: set[int] = set()


class Worker:
    """One child process, its two pipes and its page."""

    def __init__(
        self,
        stage: Stage,
        *,
        slots: int,
        watched: bool,
        traced: TracingSettings | None,
    ) -> None:
        """`slots` is how many jobs it can have; `watched`: the page tells what it runs.

        Raises `OSError` if the system gives no process, pipe or memory.
        """
        self._timeout_s = stage.policy.timeout_ms / 1000
        self._watched = watched
        self._page = mmap.mmap(-1, RUNNING.size + slots)
        self._slots = deque(range(slots))
        #: Of jobs that were taken back; free when the child has passed them.
        self._recalled: list[int] = []
        #: The slots of the jobs that it has, by number.
        self.given: dict[int, int] = {}
        #: The job that it got last, if that must be alone.
        self.alone: int | None = None
        #: When it last answered, or got something to do.
        self.quiet_since_s = self.idle_since_s = time.monotonic()
        self._chunk_jobs, self._chunk_since_s = 0, 0.0
        #: Jobs that were cancelled while it ran them, and when it is killed if it still does.
        self.cancelled: dict[int, float] = {}
        #: It takes no more jobs.
        self.retires = False
        self._unread, self._unwritten = bytearray(), bytearray()
        self._decode = msgspec.msgpack.Decoder(list[list[Any]]).decode
        self._overdue = self._garbled = False
        self._status: int | None = None
        self._fork(stage, traced)

    def _fork(self, stage: Stage, traced: TracingSettings | None) -> None:
        parent, ends = os.getpid(), list[int]()
        try:
            ends += os.pipe()
            ends += os.pipe()
            self.pid = os.fork()
        except OSError:
            self._close(*ends)
            raise
        jobs_read, jobs_write, replies_read, replies_write = ends
        if self.pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                self._close(jobs_write, replies_read, *list(_pipes))
                if traced is not None:
                    tracing.use(traced, service=f"dovetail-{stage.pipeline}")
                worker_child.main(stage, jobs_read, replies_write, self._page, parent)
                tracing.end()
                code = 0
            finally:
                os._exit(code)

        # Both do it, and whoever is second changes nothing: it may be killed before it ran at all.
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)
        for descriptor in (jobs_write, replies_write):
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(jobs_write, False)
        self._close(jobs_read, replies_write)
        self._jobs, self._replies = jobs_write, replies_read
        # Not `select`, which knows the first 1,024 files of a process only.
        self._said = select.poll()
        self._said.register(replies_read, select.POLLIN)
        _pipes.update((jobs_write, replies_read))

    @property
    def room(self) -> int:
        """How many more jobs it can take."""
        if self._recalled:
            passed = [one for one in self._recalled if self._page[RUNNING.size + one] == ENDED]
            self._recalled = [one for one in self._recalled if one not in passed]
            self._slots.extend(passed)
        return 0 if self.retires or self.is_behind else len(self._slots)

    def fileno(self) -> int:
        """Where its answers come."""
        return self._replies

    def chunk_begins(self, jobs: int) -> None:
        """It gets a chunk of so many jobs."""
        if self._chunk_jobs == 0:
            self._chunk_since_s = time.monotonic()
        self._chunk_jobs += jobs

    def chunk_ends(self) -> float | None:
        """How long one of its jobs took, if it has done all it had; else None."""
        if self.given or not self._chunk_jobs:
            return None
        took_s = (time.monotonic() - self._chunk_since_s) / self._chunk_jobs
        self._chunk_jobs = 0
        return took_s

    def take(self, number: int) -> int:
        """A slot for a job that it gets next."""
        slot = self._slots.popleft()
        self._page[RUNNING.size + slot] = 0
        if not self.given:
            self.quiet_since_s = time.monotonic()
            RUNNING.pack_into(self._page, 0, -1, self.quiet_since_s)
        self.given[number] = slot
        return slot

    def ended(self, number: int) -> bool:
        """Whether it had that job; it has it no more."""
        slot = self.given.pop(number, None)
        if self.cancelled:
            self.cancelled.pop(number, None)
        if slot is not None:
            self._slots.append(slot)
        if not self.given:
            self.idle_since_s = time.monotonic()
        return slot is not None

    @property
    def _runs(self) -> bool:
        """Whether it has begun something and not ended it. Quicker than `begun`."""
        return any(self._page.find(bytes([state]), RUNNING.size) >= 0 for state in _RUNS)

    def begun(self) -> list[int]:
        """The jobs that it has begun and not ended."""
        return [
            number
            for number, slot in self.given.items()
            if self._page[RUNNING.size + slot] in _RUNS
        ]

    def unsent(self) -> list[int]:
        """The jobs that it has ended, and whose outcomes have not come."""
        return [
            number
            for number, slot in self.given.items()
            if self._page[RUNNING.size + slot] == ENDED
        ]

    def recall(self) -> list[int]:
        """Takes back what it has not begun, which it will not begin then.

        It looks before it begins a job, not at the same moment: in a rare case it runs one that
        another one runs too, and the first answer counts.
        """
        return [number for number in list(self.given) if self._take_back(number)]

    def cancel(self, number: int, *, kill_s: float) -> bool:
        """Nobody wants the outcome of a job; False if it has not begun, and will not."""
        if self._take_back(number):
            return False
        at = RUNNING.size + self.given[number]
        if self._page[at] == BEGUN:
            self._page[at] = CANCELLED
        self.cancelled[number] = kill_s
        return True

    def _take_back(self, number: int) -> bool:
        slot = self.given[number]
        if self._page[RUNNING.size + slot] != 0:
            return False
        self._page[RUNNING.size + slot] = RECALLED
        self._recalled.append(slot)
        del self.given[number]
        return True

    def send(self, frame: bytes) -> None:
        """Sends a frame. If the child is gone, `receive` says so."""
        self._unwritten += LENGTH.pack(len(frame)) + frame
        self._push()

    @property
    def is_behind(self) -> bool:
        """Whether its pipe was full, and there is more to be sent."""
        return bool(self._unwritten)

    def _push(self) -> None:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._jobs, self._unwritten)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unwritten.clear()

    def receive(self) -> list[list[list[Any]]] | None:
        """The frames of replies that have come; None if the child is gone, and all that it said
        was read."""
        self._push()
        # Before it is read: whatever a dead child has said is in the pipe.
        alive, frames = self.alive(), list[list[list[Any]]]()
        while self._said.poll(0):
            data = os.read(self._replies, _PIPE_BYTES)
            if not data:
                return frames or None
            self._unread += data
            while len(self._unread) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(self._unread)[0]
                if len(self._unread) < end <= _FRAME_BYTES_MAX:
                    break
                try:
                    frames.append(self._decode(self._unread[LENGTH.size : end]))
                except msgspec.MsgspecError:
                    self._garbled = True
                    return None
                del self._unread[:end]
        if frames:
            self.quiet_since_s = time.monotonic()
        return frames if alive or frames else None

    def left_s(self, now_s: float) -> float:
        """How long it may still take; 0 or less: it must be killed."""
        if not self._watched:
            return self.quiet_since_s + self._timeout_s + SILENCE_S - now_s
        seen = RUNNING.unpack_from(self._page)
        if seen[1] < _TORN_S:
            # It stopped in the middle of writing that, and has not gone on yet.
            return self.quiet_since_s + self._timeout_s + START_S_MAX - now_s
        if not self._runs:
            # It starts, or sends outcomes, which takes time on a loaded machine.
            return float(seen[1]) + self._timeout_s + START_S_MAX - now_s
        left = float(seen[1]) + self._timeout_s - now_s
        if left <= 0:
            # Number and time are written one after the other; look again before judging.
            time.sleep(0.001)
            if RUNNING.unpack_from(self._page) != seen:
                return 0.001
        return left

    def due_s(self, now_s: float) -> float:
        """When to look at it again, if it says nothing."""
        if self.is_behind:
            return now_s + _PUSH_S
        left_s = max(0.001, self.left_s(now_s))
        # It does not say what it begins, so look again soon.
        return now_s + (left_s if not self._watched or self._runs else min(left_s, _LOOK_S))

    def end_overdue(self) -> None:
        """It is silent for too long."""
        self._overdue = True

    def alive(self) -> bool:
        """Whether it still runs."""
        if self._status is None:
            try:
                over = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                # Something else here has waited for it, and its number may be another's by now.
                self._status = 0
            else:
                if over is not None:
                    self._reap()
        return self._status is None

    def dismiss(self, seconds: float = 0.0) -> None:
        """Sends it no more jobs, and gives it time to end by itself."""
        self._close(self._jobs)
        self._jobs = -1
        self._unwritten.clear()
        self.retires = True
        self._wait(seconds)

    def kill(self) -> None:
        """Ends it, whatever it does."""
        if self.alive():
            self._reap()
        self._close(self._jobs, self._replies)
        self._jobs = self._replies = -1

    def _reap(self) -> None:
        """Kills what is left of it and of all that its functions started."""
        # Its number is not given to another process before it is waited for. It may have left its
        # group.
        for end in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                end(self.pid, signal.SIGKILL)
        try:
            self._status = os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            self._status = 0

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            # It may be closed already.
            with suppress(OSError):
                os.close(descriptor)
            _pipes.discard(descriptor)

    def end(self) -> Failure:
        """Ends it, and says why it was lost."""
        if self._overdue:
            self.kill()
            about = f"not done within {self._timeout_s * 1000:.0f} ms; its worker was replaced"
            return Failure(FailureKind.TIMEOUT, about)
        if self._garbled:
            self.kill()
            return Failure(FailureKind.CRASH, "what came through its pipe is no outcome")
        # Its pipe is closed: it is ending, or has closed what it should not have touched.
        self._wait(SILENCE_S)
        self.kill()

        assert self._status is not None
        if os.WIFSIGNALED(self._status):
            number = os.WTERMSIG(self._status)
            name = signal.Signals(number).name
            hint = "; out of memory?" if number == signal.SIGKILL else ""
            return Failure(FailureKind.CRASH, f"its process was killed by {name}{hint}")
        code = os.WEXITSTATUS(self._status)
        return Failure(FailureKind.CRASH, f"its process ended with exit code {code}")
