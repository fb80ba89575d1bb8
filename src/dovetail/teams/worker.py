"""A worker: a child process that runs a team's function, and is replaced when it is lost.

Promise: `run` returns the outcome of every job, in order, whatever the function does. A function
that raises, hangs, leaves the process, or fills the memory costs its own job an attempt; its
neighbours may be started again, but never lose an attempt.

How each is noticed: the child reports an exception. A plain function that hangs shows on the shared
page, where the child notes what it runs and since when; the child is killed and replaced. Functions
that run several at once are timed inside the child; if the child goes silent altogether, it is
killed as well. A child that dies closes its pipe. `plan` decides which jobs are given again, and
whose attempt counts.

The child is forked: a copy of this process costs milliseconds, where a new interpreter costs half a
second. So `run` must be called before this process has threads of its own that hold locks; a Python
worker of Spark has none.
"""

import fcntl
import mmap
import os
import random
import select
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from dovetail import tracing
from dovetail.errors import Unavailable
from dovetail.settings.tracing import TracingSettings
from dovetail.teams import worker_child
from dovetail.teams.envelope import Job, JobId, id_of
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import DeadLetter, Failure, FailureKind, Postponed
from dovetail.teams.plan import Chunk, GivenUp, JobPlan
from dovetail.teams.team import WorkKind
from dovetail.teams.worker_child import BEGUN, LENGTH, RUNNING, SPLIT

#: Jobs in one frame: at 10 µs each, a round trip to the child costs a few hundredths of them.
CHUNK_JOBS_MAX = 256
CHUNK_BYTES_MAX = 1024 * 1024
#: A chunk for functions that wait is several rounds long, so that the end of one costs little.
_ROUNDS = 8
#: A child that times its jobs itself is silent for longer than a timeout only if it is stuck.
SILENCE_S = 1.0
_START_S_MAX = 30.0
#: Between two looks whether a child has begun something.
_LOOK_S = 0.1
_BEGUN = bytes([BEGUN])
#: Linux allows so much to everybody.
_PIPE_BYTES = 1024 * 1024
#: Children in a row that die before they begin any job: then something else is wrong.
_STILLBORN_MAX = 5
#: Time that a child has to send its last spans when it is not needed any more.
_SPANS_S = 1.0


@dataclass(frozen=True, slots=True)
class ForwardedJob:
    """A job for another team, its payload encoded."""

    target: str
    id: JobId
    payload: bytes
    after_ms: int = 0


class Done(msgspec.Struct, frozen=True, gc=False):
    """A job that ended in a result."""

    job: Job
    result: bytes
    forwards: tuple[ForwardedJob, ...]


Ended = Done | DeadLetter | Postponed


class Worker:
    """Runs batches of jobs in a child process."""

    def __init__(
        self,
        stage: Stage,
        *,
        chance: Callable[[], float] = random.random,
        traced: TracingSettings | None = None,
    ) -> None:
        """`traced` says how the child makes spans; None: it makes none."""
        self._stage, self._chance, self._traced = stage, chance, traced
        self._watched = (
            stage.kind is not WorkKind.ITEM or stage.policy.concurrency == 1
        ) and not worker_child.is_async(stage.work)
        self._chunk_max = (
            max(CHUNK_JOBS_MAX, stage.policy.concurrency * _ROUNDS)
            if stage.kind is WorkKind.ITEM
            else stage.policy.batch_max
        )
        self._page = mmap.mmap(-1, RUNNING.size + self._chunk_max)
        self._child: _Child | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[list[Any]]).decode
        self._stillborn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            if self._traced is not None:
                self._child.dismiss(_SPANS_S)
            self._child.kill()
            self._child = None

    def run(self, jobs: Sequence[Job]) -> list[Ended]:
        """The outcome of each job, in order. Raises `Unavailable` if children do not start."""
        plan = JobPlan([job.attempts for job in jobs], self._stage.policy, chance=self._chance)
        results: dict[int, Done] = {}
        while not plan.finished:
            now_ms = time.monotonic() * 1000
            chunk = plan.take(self._chunk_max, now_ms=now_ms)
            if chunk is not None:
                self._give(plan, chunk, jobs, results)
                continue
            rest_until = plan.rest_until_ms
            assert rest_until is not None, "an open job is waiting or resting"
            time.sleep(max(0.0, rest_until - now_ms) / 1000)

        return [
            results[number] if number in results else _without_result(job, plan.given_up[number])
            for number, job in enumerate(jobs)
        ]

    def _give(
        self, plan: JobPlan, chunk: Chunk, jobs: Sequence[Job], results: dict[int, Done]
    ) -> None:
        numbers = self._that_fit(chunk, jobs)
        plan.returned(set(chunk.numbers) - set(numbers))
        RUNNING.pack_into(self._page, 0, -1, time.monotonic())
        self._page[RUNNING.size :] = bytes(len(self._page) - RUNNING.size)

        child = self._ready_child()
        open_numbers = dict.fromkeys(numbers)
        frame = self._encode(
            [(n, jobs[n].key, jobs[n].payload, jobs[n].traceparent) for n in numbers]
        )
        if child.send(frame):
            self._collect(plan, child, open_numbers, jobs, results)
        if open_numbers:
            self._judge(plan, child, numbers, open_numbers)
            self._child = None

    def _that_fit(self, chunk: Chunk, jobs: Sequence[Job]) -> list[int]:
        fitting: list[int] = []
        size = 0
        for number in chunk.numbers:
            size += len(jobs[number].payload)
            if fitting and size > CHUNK_BYTES_MAX:
                break
            fitting.append(number)
        return fitting

    def _ready_child(self) -> "_Child":
        if self._child is None or not self._child.alive():
            self.close()
            self._child = _Child(self._stage, self._page, self._traced)
        return self._child

    def _collect(
        self,
        plan: JobPlan,
        child: "_Child",
        open_numbers: dict[int, None],
        jobs: Sequence[Job],
        results: dict[int, Done],
    ) -> None:
        """Takes replies until all jobs are answered, or the child is lost."""
        while open_numbers:
            frame = child.receive(self._wait_s)
            if frame is None:
                return
            self._stillborn = 0

            done, split = [], []
            for reply in self._decode(frame):
                number, outcome = reply[0], reply[1]
                if number not in open_numbers:
                    continue
                del open_numbers[number]
                if isinstance(outcome, bytes):
                    done.append(number)
                    results[number] = _done(jobs[number], reply)
                elif outcome == SPLIT:
                    split.append(number)
                else:
                    failure = Failure(FailureKind(outcome), reply[2], reply[3])
                    plan.failed(number, failure, now_ms=time.monotonic() * 1000)
            plan.done(done)
            if split:
                plan.suspected(split)

    def _wait_s(self, silent_since: float) -> float:
        """How long the child may still be silent; 0 or less: it must be killed."""
        timeout_s = self._stage.policy.timeout_ms / 1000
        if not self._watched:
            return silent_since + timeout_s + SILENCE_S - time.monotonic()

        seen = RUNNING.unpack_from(self._page)
        if self._page.find(_BEGUN, RUNNING.size) < 0:
            # It starts, or sends outcomes, which takes time on a loaded machine. It does not say
            # what it begins meanwhile, so look again soon.
            left = float(seen[1]) + timeout_s + _START_S_MAX - time.monotonic()
            return min(left, _LOOK_S)

        left = float(seen[1]) + timeout_s - time.monotonic()
        if left <= 0:
            # Number and time are written one after the other; look again before judging.
            time.sleep(0.001)
            if RUNNING.unpack_from(self._page) != seen:
                return 0.001
        return left

    def _judge(
        self,
        plan: JobPlan,
        child: "_Child",
        numbers: Sequence[int],
        open_numbers: dict[int, None],
    ) -> None:
        """The child is lost: whose fault was it, and which jobs are given again?"""
        failure = child.end()
        begun = [
            number
            for at, number in enumerate(numbers)
            if number in open_numbers and self._page[RUNNING.size + at] == BEGUN
        ]
        plan.returned(set(open_numbers) - set(begun))
        if len(begun) == 1:
            plan.failed(begun[0], self._timed(failure), now_ms=time.monotonic() * 1000)
        else:
            plan.suspected(begun)

        self._stillborn = 0 if begun else self._stillborn + 1
        if self._stillborn >= _STILLBORN_MAX:
            raise Unavailable(
                f"{self._stillborn} worker processes of team {self._stage.team!r} in a row ended "
                f"before they began a job; the last one: {failure.reason}"
            )

    def _timed(self, failure: Failure) -> Failure:
        if failure.kind is not FailureKind.TIMEOUT:
            return failure
        timeout_ms = self._stage.policy.timeout_ms
        return Failure(failure.kind, f"not done within {timeout_ms} ms; its worker was replaced")


def _done(job: Job, reply: list[Any]) -> Done:
    _, result, forwards, *trace = reply
    if trace:
        # It has a span of its own, and what follows belongs under that.
        job = msgspec.structs.replace(job, traceparent=trace[0])
    made = (
        ForwardedJob(target, id_of(key), payload, after_ms)
        for target, key, payload, after_ms in forwards
    )
    return Done(job, result, tuple(made))


def _without_result(job: Job, given_up: GivenUp) -> Ended:
    if given_up.rest_ms is None:
        return DeadLetter(job, given_up.failure, given_up.attempts)
    not_before_ms = time.time_ns() // 1_000_000 + given_up.rest_ms
    return Postponed(job, given_up.failure.reason, given_up.attempts, not_before_ms)


class _Child:
    """One child process and its two pipes."""

    def __init__(self, stage: Stage, page: mmap.mmap, traced: TracingSettings | None) -> None:
        jobs_read, jobs_write = os.pipe()
        replies_read, replies_write = os.pipe()
        for descriptor in (jobs_write, replies_write):
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(jobs_write)
                os.close(replies_read)
                if traced is not None:
                    tracing.use(traced, service=f"dovetail-{stage.pipeline}")
                worker_child.main(stage, jobs_read, replies_write, page, parent)
                tracing.end()
                code = 0
            finally:
                os._exit(code)

        os.close(jobs_read)
        os.close(replies_write)
        self._jobs, self._replies = jobs_write, replies_read
        self._overdue = False
        self._status: int | None = None

    def send(self, frame: bytes) -> bool:
        """Sends a chunk; False if the child is gone."""
        data = memoryview(LENGTH.pack(len(frame)) + frame)
        try:
            while data:
                data = data[os.write(self._jobs, data) :]
        except BrokenPipeError:
            return False
        return True

    def receive(self, wait_s: Callable[[float], float]) -> bytes | None:
        """The next frame; None if the child is dead, or silent for too long."""
        silent_since = time.monotonic()
        head = self._read(LENGTH.size, wait_s, silent_since)
        if head is None:
            return None
        return self._read(LENGTH.unpack(head)[0], wait_s, silent_since)

    def _read(
        self, size: int, wait_s: Callable[[float], float], silent_since: float
    ) -> bytes | None:
        parts = bytearray()
        while len(parts) < size:
            left = wait_s(silent_since)
            if left <= 0:
                self._overdue = True
                return None
            if not select.select([self._replies], [], [], left)[0]:
                continue
            data = os.read(self._replies, min(size - len(parts), _PIPE_BYTES))
            if not data:
                return None
            parts += data
        return bytes(parts)

    def alive(self) -> bool:
        """Whether it still runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
        return self._status is None

    def dismiss(self, seconds: float) -> None:
        """Sends it no more jobs, and gives it time to end by itself."""
        self._close(self._jobs)
        self._jobs = -1
        self._wait(seconds)

    def kill(self) -> None:
        """Ends it, whatever it does."""
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitpid(self.pid, 0)[1]
        self._close(self._jobs, self._replies)
        self._jobs = self._replies = -1

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            # It may be closed already.
            with suppress(OSError):
                os.close(descriptor)

    def end(self) -> Failure:
        """Ends it, and says why it was lost."""
        if self._overdue:
            self.kill()
            return Failure(FailureKind.TIMEOUT, "silent for too long")
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
