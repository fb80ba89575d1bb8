"""The crew of a partition: processes that run a team's function, each job for itself.

Promise: every job that is added ends or is postponed once, whatever the function does, and delays
no other. A function that raises, hangs, leaves the process, or fills the memory costs its own job
an attempt; its neighbours may be started again, but never lose an attempt.

How each is noticed: the child reports an exception. A plain function that hangs shows on the shared
page, where the child notes what it runs and since when; the child is killed and replaced. Functions
that run several at once are timed inside the child; if the child goes silent altogether, it is
killed as well. A child that dies closes its pipe. `plan` decides which jobs are given again, and
whose attempt counts.

A job that takes long occupies only its own process: the jobs behind it in its pipe are taken back,
and while all of a crew's `size` workers are busy with such jobs, the crew has more, up to
`WORKERS_MAX` if the machine has memory for them. A team's `running_max` is a hard limit. Idle
workers beyond its size end after a while.

The caller waits for `filenos` and calls `step`; nothing here blocks.
"""

import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Self

import msgspec

from dovetail.errors import Unavailable
from dovetail.given_functions import is_async
from dovetail.logging import get_logger
from dovetail.settings.tracing import TracingSettings
from dovetail.teams.context import wants_context
from dovetail.teams.envelope import Job
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import DeadLetter, Failure, FailureKind, Postponed
from dovetail.teams.team import WorkKind
from dovetail.teams.workers.allowance import Allowance
from dovetail.teams.workers.memory import memory_left
from dovetail.teams.workers.plan import Chunk, GivenUp, JobPlan
from dovetail.teams.workers.worker import Worker
from dovetail.teams.workers.worker_report import CANCEL_SLOT, PROGRESS, RETIRE, SPLIT, UNREADY

#: Jobs in one frame: at 10 µs each, a round trip to the child costs a few hundredths of them.
CHUNK_JOBS_MAX = 1024
CHUNK_BYTES_MAX = 1024 * 1024
#: A chunk takes about so long: what waits behind it waits no longer. One more waits in the pipe
#: of a child whose jobs are short, so that it never idles.
_CHUNK_S, _CHUNKS_AHEAD = 0.01, 2
#: A worker that is silent for longer is busy with a long job.
SLOW_S = 0.05
#: For each that is silent for so long the crew tries one more, so many of them at once: where jobs
#: are stuck, more of that kind may come together, and a short one behind them.
STUCK_S = 1.0
TRIED_MAX = 8
#: Processes of one crew, those with long jobs included.
WORKERS_MAX = 128
#: Beyond so many it gets more only while a tenth of the machine's memory is left.
WORKERS_ANYWAY, _MEMORY_LEFT = 16, 0.1
#: A worker beyond the size of the crew ends when it was idle for so long.
_SPARE_S = 10.0
#: Between two looks whether one that tears down has ended.
_LEAVING_S = 0.05
#: Children in a row that die before they begin any job: then something else is wrong.
_STILLBORN_MAX = 5
#: Time that a child has to send its last spans, and to tear down what it has set up.
_SPANS_S, _TEARDOWN_S = 1.0, 5.0
#: A function that looks whether its job was cancelled has so long to return.
CANCEL_S = 5.0
#: A set-up that fails is tried again after a pause, which grows.
_UNREADY_S_MIN, _UNREADY_S_MAX = 0.5, 30.0

_log = get_logger("teams")


class ForwardedJob(msgspec.Struct, frozen=True, gc=False):
    """A job for another team, its payload encoded."""

    target: str
    key: bytes
    payload: bytes
    after_ms: int = 0
    #: If the items are gathered: `number/count`.
    item: str = ""


class Done(msgspec.Struct, frozen=True, gc=False):
    """A job that ended in a result."""

    job: Job
    result: bytes
    forwards: tuple[ForwardedJob, ...]


Ended = Done | DeadLetter | Postponed


class Crew:
    """Runs jobs in child processes; outcomes come in the order in which they end."""

    def __init__(
        self,
        stage: Stage,
        *,
        size: int = 1,
        chance: Callable[[], float] = random.random,
        traced: TracingSettings | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """`traced` says how the children make spans; None: they make none. `allowance` is what the
        team may begin, if it has a limit; its partitions share it."""
        self._stage, self._size, self._traced = stage, size, traced
        self._watched = (
            stage.kind is not WorkKind.ITEM or stage.policy.concurrency == 1
        ) and not is_async(stage.work)
        self._slots = (
            stage.policy.concurrency
            if not self._watched
            else _CHUNKS_AHEAD
            * (CHUNK_JOBS_MAX if stage.kind is WorkKind.ITEM else stage.policy.batch_max)
        )

        self._allowance = allowance
        if allowance is not None:
            allowance.running.append(lambda: sum(len(one.given) for one in self._workers))
        self._plan = JobPlan(stage.policy, chance=chance)
        self._jobs: dict[int, tuple[Job, bool]] = {}
        self._workers: list[Worker] = []
        #: They end by themselves, or are killed at this time.
        self._leaving: list[tuple[float, Worker]] = []
        self._ended: list[tuple[int, Ended]] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._stillborn = 0

        #: How far jobs are that say so.
        self.progress: dict[int, tuple[float, str]] = {}
        #: Why no process is ready, if the team's set-up fails.
        self.trouble = ""
        #: Counts the changes of both.
        self.news = 0
        self._unready, self._hire_s = 0, 0.0
        self._cancel_s = CANCEL_S if wants_context(stage.work) else 0.0
        self._last_s = max(
            0.0 if traced is None else _SPANS_S, 0.0 if stage.teardown is None else _TEARDOWN_S
        )
        #: How long a job took lately; a guess until one has ended.
        self._job_s = _CHUNK_S / 8

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the children."""
        for worker in self._workers if self._last_s else ():
            worker.dismiss()
        deadline_s = time.monotonic() + self._last_s
        while self._workers:
            worker = self._workers.pop()
            if not worker.given:
                worker.dismiss(max(0.0, deadline_s - time.monotonic()))
            worker.kill()
        for until_s, worker in self._leaving:
            worker.dismiss(max(0.0, until_s - time.monotonic()))
            worker.kill()
        self._leaving.clear()

    @property
    def in_hand(self) -> int:
        """Jobs that have not ended."""
        return len(self._jobs)

    def filenos(self) -> Iterable[int]:
        """Where answers come."""
        return [worker.fileno() for worker in self._workers]

    def due_s(self, now_s: float) -> float | None:
        """When `step` must be called, answers or not, on the monotonic clock."""
        times = [one.due_s(now_s) for one in self._workers if one.given or one.is_behind]
        times += [now_s + _LEAVING_S for _ in self._leaving[:1]]
        if self._plan.rest_until_ms is not None:
            times.append(self._plan.rest_until_ms / 1000)
        if (
            self._plan.waiting
            or self._plan.suspects
            or any(len(worker.given) > 1 for worker in self._workers)
        ):
            times.append(now_s + SLOW_S)
            may_s = None if self._allowance is None else self._allowance.due_s(now_s)
            if may_s is not None and may_s > now_s:
                times.append(may_s)
        if len(self._workers) > self._size:
            times.append(now_s + _SPARE_S)
        times += [at_s for worker in self._workers for at_s in worker.cancelled.values()]
        if self.trouble:
            times.append(self._hire_s)
        return min(times, default=None)

    def add(self, number: int, job: Job, *, stored: bool = False) -> None:
        """One more job. `stored`: its payload is a result, and what follows from it is wanted."""
        self._jobs[number] = (job, stored)
        self._plan.add(number, attempts=0 if stored else job.attempts)

    def cancel(self, number: int, *, now_s: float) -> bool:
        """Nobody wants the outcome of a job; False if it has ended, or is none of these."""
        if self._jobs.pop(number, None) is None:
            return False
        self._plan.cancel(number)
        self._silence(number)
        for worker in self._workers:
            if number not in worker.given:
                continue
            runs = worker.cancel(number, kill_s=now_s + self._cancel_s)
            if runs and not self._watched:
                about = (number, CANCEL_SLOT, b"", b"", None, False, 0, ())
                worker.send(self._encode([about]))
        return True

    def step(self, now_s: float) -> list[tuple[int, Ended]]:
        """What has ended since the last call. Raises `Unavailable` if children do not start."""
        for worker in list(self._workers):
            frames = worker.receive()
            for replies in frames or ():
                self._take_replies(worker, replies)
            if frames is None or (worker.given and worker.left_s(now_s) <= 0):
                if frames is not None:
                    worker.end_overdue()
                self._judge(worker, now_s)
            elif worker.retires and not worker.given:
                self._remove(worker, now_s)
            elif worker.cancelled and self._watched:
                self._end_cancelled(worker, now_s)
        self._give(now_s)
        self._end_leaving(now_s)
        ended, self._ended = self._ended, []
        return ended

    def _end_cancelled(self, worker: Worker, now_s: float) -> None:
        """Kills a worker whose job was cancelled, unless others run with it."""
        begun = set(worker.begun())
        if begun and begun <= worker.cancelled.keys() and now_s >= min(worker.cancelled.values()):
            self._workers.remove(worker)
            worker.kill()
            self._plan.returned(worker.given.keys() & self._jobs.keys())

    # --- giving ----------------------------------------------------------------------------------

    def _give(self, now_s: float) -> None:
        self._plan.wake(now_ms=now_s * 1000)
        for worker in self._workers if self._watched else ():
            if len(worker.given) > 1 and now_s - worker.quiet_since_s >= SLOW_S:
                self._plan.returned(worker.recall())
        while self._plan.suspects and self._room(now_s):
            if (alone := self._idle_worker(now_s)) is None:
                break
            suspect = self._plan.take_suspect()
            assert suspect is not None, "there is one"
            self._give_to(alone, suspect, now_s)
        while self._plan.waiting and (room := self._room(now_s)):
            free = self._free_worker(now_s)
            if free is None:
                return
            chunk = self._plan.take(min(room, self._chunk_max(free, now_s)), now_ms=now_s * 1000)
            assert chunk is not None, "something waits"
            self._give_to(free, chunk, now_s)
        for worker in [one for one in self._workers if not one.given]:
            if len(self._workers) > self._size and now_s - worker.idle_since_s > _SPARE_S:
                self._remove(worker, now_s)

    def _room(self, now_s: float) -> int:
        """How many jobs may begin now."""
        return CHUNK_JOBS_MAX if self._allowance is None else self._allowance.room(now_s)

    def _idle_worker(self, now_s: float) -> Worker | None:
        """A worker without any job, for one that may end it."""
        for worker in self._workers:
            if not worker.given and worker.room:
                return worker
        return self._hire(now_s) if self._needs_more(now_s) else None

    def _free_worker(self, now_s: float) -> Worker | None:
        """A worker for the next jobs; one more if all are busy with long jobs."""
        tried = max(1, self._stuck(now_s))
        free = [
            one for one in self._workers if one.room and not self._is_held(one, alone=tried > 1)
        ]
        idle = [worker for worker in free if not worker.given]
        if idle:
            return idle[0]
        if len(self._workers) < self._size and (hired := self._hire(now_s)) is not None:
            return hired
        quick = [one for one in free if now_s - one.quiet_since_s < SLOW_S]
        if quick:
            return min(quick, key=lambda one: len(one.given))
        return self._hire(now_s) if self._needs_more(now_s) else None

    def _needs_more(self, now_s: float) -> bool:
        """Whether all of them are busy with long jobs, and there may be one more."""
        if len(self._workers) < self._size:
            return True
        fresh = sum(now_s - one.quiet_since_s < SLOW_S for one in self._workers)
        return fresh < max(1, self._stuck(now_s)) and self._may_grow()

    def _stuck(self, now_s: float) -> int:
        quiet = [one for one in self._workers if one.given and now_s - one.quiet_since_s >= STUCK_S]
        return min(len(quiet), TRIED_MAX)

    def _may_grow(self) -> bool:
        count = len(self._workers)
        return count < WORKERS_ANYWAY or (count < WORKERS_MAX and memory_left() > _MEMORY_LEFT)

    def _is_held(self, worker: Worker, *, alone: bool) -> bool:
        """Whether it must not get a further chunk now; with `alone`, beside any other."""
        if worker.given.keys() == {worker.alone}:
            return True
        if not worker.given or not self._watched:
            return False
        if self._counts_running or alone:
            return True
        # Behind jobs that are not short, nothing is put in line.
        return self._job_s > _CHUNK_S / 8 or len(worker.given) > self._chunk_size

    def _hire(self, now_s: float) -> Worker | None:
        if now_s < self._hire_s:
            return None
        stage, slots, traced = self._stage, self._slots, self._traced
        try:
            made = Worker(stage, slots=slots, watched=self._watched, traced=traced)
        except OSError as error:
            self._not_ready(f"no process for its functions: {error}", now_s)
            return None
        self._workers.append(made)
        return made

    def _remove(self, worker: Worker, now_s: float) -> None:
        self._workers.remove(worker)
        worker.dismiss()
        self._leaving.append((now_s + self._last_s, worker))

    def _end_leaving(self, now_s: float) -> None:
        """Kills those that have had their time to tear down."""
        for until_s, worker in list(self._leaving):
            if now_s >= until_s or not worker.alive():
                self._leaving.remove((until_s, worker))
                worker.kill()

    @property
    def _counts_running(self) -> bool:
        """Whether a job that only waits in a worker's pipe would count as running."""
        return self._allowance is not None and self._allowance.running_max is not None

    @property
    def _chunk_size(self) -> int:
        if not self._watched:
            return self._slots
        if self._stage.kind is not WorkKind.ITEM:
            return self._stage.policy.batch_max
        if self._counts_running:
            return 1
        return max(1, min(CHUNK_JOBS_MAX, int(_CHUNK_S / max(self._job_s, 1e-6))))

    def _chunk_max(self, worker: Worker, now_s: float) -> int:
        """So many at once: a fair part of what waits, and no more than it has room for."""
        workers = max(1, self._size, self._stuck(now_s))
        share = -(-self._plan.waiting // workers) if self._watched else self._plan.waiting
        return max(1, min(worker.room, self._chunk_size, max(share, 1)))

    def _give_to(self, worker: Worker, chunk: Chunk, now_s: float) -> None:
        frame, size, jobs, plan = [], 0, self._jobs, self._plan
        for number in chunk.numbers:
            job, stored = jobs[number]
            slot, attempt = worker.take(number), plan.attempt(number)
            about = (job.traceparent, stored, attempt, job.foreign)
            frame.append((number, slot, job.key, job.payload, *about))
            size += len(job.payload)
            if size > CHUNK_BYTES_MAX:
                break
        worker.alone = chunk.numbers[0] if chunk.alone else None
        plan.returned(chunk.numbers[len(frame) :])
        if self._allowance is not None:
            self._allowance.begin(len(frame), now_s)
        worker.chunk_begins(len(frame))
        # If it is gone, its pipe says so at the next look.
        worker.send(self._encode(frame))

    # --- taking ----------------------------------------------------------------------------------

    def _take_replies(self, worker: Worker, replies: list[list[Any]]) -> None:
        self._stillborn = 0
        done, split, jobs, ended = list[int](), list[int](), self._jobs, self._ended
        for reply in replies:
            number, outcome = reply[0], reply[1]
            if isinstance(outcome, bytes):
                if worker.ended(number) and (given := jobs.pop(number, None)) is not None:
                    done.append(number)
                    ended.append((number, _done(given[0], reply)))
            elif outcome in (RETIRE, UNREADY, PROGRESS):
                self._hear(worker, reply)
            elif not worker.ended(number) or number not in jobs:
                continue
            elif outcome == SPLIT:
                split.append(number)
            else:
                self._failed(number, Failure(FailureKind(outcome), reply[2], reply[3]))

        self._plan.done(done)
        for number in done if self.progress else ():
            self._silence(number)
        if done and self.trouble:
            self.trouble, self._unready, self.news = "", 0, self.news + 1
        self._plan.suspected(split)
        took_s = worker.chunk_ends()
        if took_s is not None:
            self._job_s = 0.7 * self._job_s + 0.3 * took_s

    def _hear(self, worker: Worker, reply: list[Any]) -> None:
        """What a child says that is not the end of a job."""
        number, what = reply[0], reply[1]
        if what == PROGRESS:
            if number in self._jobs:
                self.progress[number] = (reply[2], reply[3])
                self.news += 1
            return
        worker.retires = True
        if what == UNREADY:
            self._not_ready(f"set-up failed: {reply[2]}", time.monotonic())

    def _not_ready(self, trouble: str, now_s: float) -> None:
        """No process gets ready: the team's jobs wait, and it is tried again after a pause."""
        pause_s = min(_UNREADY_S_MAX, _UNREADY_S_MIN * 2**self._unready)
        self._unready = min(self._unready + 1, 10)
        self._hire_s = now_s + pause_s
        self.trouble, self.news = trouble, self.news + 1
        _log.warning("no process of a team is ready", team=self._stage.team, reason=trouble)

    def _silence(self, number: int) -> None:
        if self.progress.pop(number, None) is not None:
            self.news += 1

    def _failed(self, number: int, failure: Failure) -> None:
        self._silence(number)
        self._plan.failed(number, failure, now_ms=time.monotonic() * 1000)
        given_up = self._plan.given_up.pop(number, None)
        if given_up is not None:
            self._ended.append((number, _without_result(self._jobs.pop(number)[0], given_up)))

    def _judge(self, worker: Worker, now_s: float) -> None:
        """The child is lost: whose fault was it, and which jobs are given again?"""
        # It may still run, having closed its pipe only: what it does is read when it has ended.
        failure = worker.end()
        self._workers.remove(worker)
        suspects = worker.begun()
        begun = [number for number in suspects if number in self._jobs]
        # A function that has ended can have spoilt its process for all behind it, such as the pipe.
        unsent = [number for number in worker.unsent() if number in self._jobs]
        blamed = begun + unsent
        # One that was cancelled and still ran may have been it.
        one_only = len(blamed) == 1 and len(suspects) == len(begun)
        proven = one_only and (bool(begun) or blamed[0] == worker.alone)
        was_cancelled = bool(worker.cancelled)
        self._plan.returned(worker.given.keys() & self._jobs.keys() - set(blamed))
        if proven:
            self._failed(blamed[0], failure)
        else:
            self._plan.suspected(blamed)
        if worker.retires:
            return

        if blamed or was_cancelled:
            self._stillborn = 0
        elif worker.given:
            self._stillborn += 1
        if self._stillborn >= _STILLBORN_MAX:
            raise Unavailable(
                f"{self._stillborn} worker processes of team {self._stage.team!r} in a row ended "
                f"before they began a job; the last one: {failure.reason}"
            )


def _done(job: Job, reply: list[Any]) -> Done:
    if len(reply) == 3 and not reply[2]:
        return Done(job, reply[1], ())
    _, result, forwards, *trace = reply
    if trace:
        # It has a span of its own, and what follows belongs under that.
        job = msgspec.structs.replace(job, traceparent=trace[0])
    made = (
        ForwardedJob(target, key, payload, after_ms, item)
        for target, key, payload, after_ms, item in forwards
    )
    return Done(job, result, tuple(made))


def _without_result(job: Job, given_up: GivenUp) -> Ended:
    if given_up.rest_ms is None:
        return DeadLetter(job, given_up.failure, given_up.attempts)
    not_before_ms = time.time_ns() // 1_000_000 + given_up.rest_ms
    postponed = Postponed(job, given_up.failure.reason, given_up.attempts, not_before_ms)
    return postponed if postponed.fits else DeadLetter(job, given_up.failure, given_up.attempts)
