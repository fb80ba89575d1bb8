"""Inside a worker's process: jobs come in, outcomes go out, the user's code runs in between.

All of the user's code runs here: decoding into its types, the function, conditions, transforms. The
process may be killed at any moment; only the running jobs are lost. `worker_report` has the
messages to the parent.
"""

import asyncio
import ctypes
import gc
import mmap
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO, Protocol

import msgspec

from dovetail import tracing
from dovetail.background import keep_thread, start_task, start_thread
from dovetail.errors import InvalidInput
from dovetail.given_functions import is_async
from dovetail.logging import get_logger
from dovetail.teams.codecs import Undecodable
from dovetail.teams.context import JobContext, wants_context
from dovetail.teams.envelope import id_of
from dovetail.teams.graph import Stage
from dovetail.teams.team import WorkKind
from dovetail.teams.types import item_type, payload_type
from dovetail.teams.workers.worker_report import (
    CANCEL_SLOT,
    LENGTH,
    SPLIT,
    GivenJob,
    Outcomes,
    Report,
    SizedReply,
    failed,
    overdue,
)

_PR_SET_PDEATHSIG = 1
#: When Python's collector runs, before a task changes it (`lease`): functions have what is usual.
_GARBAGE = gc.get_threshold()

_log = get_logger("teams")

_Call = Callable[[GivenJob], Any]


def main(stage: Stage, jobs_fd: int, replies_fd: int, page: mmap.mmap, parent: int) -> None:
    """Serves chunks until the parent closes its end, or dies."""
    # A function that hangs must not outlive the process that could kill it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # What the parent left for its collector is not ours to end: a client's threads are not here.
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    # Ctrl-C reaches all processes of a terminal; the parent decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    jobs, replies = os.fdopen(jobs_fd, "rb"), os.fdopen(replies_fd, "wb", buffering=0)
    report = Report(replies, page)
    try:
        resource = None if stage.setup is None else stage.setup()
    except BaseException as error:  # noqa: BLE001 - sys.exit() of a set-up is its failure
        report.unready(error)
        return
    _performer(stage, report, resource).serve(_chunks(jobs, report))
    if stage.teardown is not None:
        try:
            stage.teardown(resource)
        except BaseException as error:  # noqa: BLE001 - its jobs have their outcomes
            _log.exception("a team's tear-down failed", error, team=stage.team)


def _chunks(jobs: BinaryIO, report: Report) -> Iterator[list[GivenJob]]:
    decoder = msgspec.msgpack.Decoder(list[GivenJob])
    report.leave_if_forked()
    while len(head := jobs.read(LENGTH.size)) == LENGTH.size:
        yield decoder.decode(jobs.read(*LENGTH.unpack(head)))


def _performer(stage: Stage, report: Report, resource: Any) -> "_Performer":
    if stage.kind is not WorkKind.ITEM:
        return _Batches(stage, report)
    call = _call_of(stage, report, resource)
    if is_async(stage.work):
        return _Coroutines(stage, report, call)
    if stage.policy.concurrency > 1:
        return _Threads(stage, report, call)
    return _OneByOne(stage, report, call)


class _Performer(Protocol):
    def serve(self, chunks: Iterator[list[GivenJob]]) -> None:
        """Runs what comes until there is no more."""


def _span(stage: Stage, job: GivenJob) -> AbstractContextManager[Any]:
    """The span of one job; functions of lists and tables have none of their own."""
    about = {"dovetail.pipeline": stage.pipeline, "dovetail.team": stage.team}
    return tracing.span(
        f"work {stage.team}",
        kind="consumer",
        parent=job.traceparent,
        attributes={**about, "dovetail.job.id": job.key.decode(errors="backslashreplace")},
    )


def _with_span(sized: SizedReply) -> SizedReply:
    """The reply with the span that is open now, under which the next team's spans belong."""
    reply, size = sized
    return (*reply, (tracing.traceparent() or "").encode()), size


def _call_of(stage: Stage, report: Report, resource: Any) -> "_Call":
    """Calls the function with the payload of a job, and with its context if it wants that."""
    work, decode = stage.work, stage.codec.decoder(payload_type(stage.work))
    if not wants_context(work):
        return lambda job: work(decode(job.payload))

    def call(job: GivenJob) -> Any:
        deadline_s = time.time() + stage.policy.timeout_ms / 1000
        context = JobContext(
            id_of(job.key),
            job.attempt,
            dict(job.headers),
            deadline_s,
            resource,
            _is_cancelled=lambda: report.cancelled(job),
            _say=lambda part, text: report.progress(job, part, text),
        )
        return work(decode(job.payload), context)

    return call


class _OneByOne:
    """Plain functions, one after the other; the parent watches the time."""

    def __init__(self, stage: Stage, report: Report, call: "_Call") -> None:
        self._stage, self._report, self._call = stage, report, call
        self._outcomes = Outcomes(stage)
        self._of = self._outcomes.of

    def serve(self, chunks: Iterator[list[GivenJob]]) -> None:
        one, report, clock = self.one, self._report, time.monotonic
        recalled, begin, end = report.recalled, report.begin, report.end
        start_thread(report.keep_flushing, name="teams/replies", of=self._stage.team)
        for chunk in chunks:
            now = clock()
            for job in chunk:
                if recalled(job):
                    continue
                begin(job, now)
                reply = one(job)
                now = clock()
                end(job, reply, now)
            report.flush()

    def one(self, job: GivenJob) -> SizedReply:
        """The reply about one job; raises nothing."""
        if job.stored:
            return self._outcomes.again(job)
        try:
            if job.traceparent is None or not tracing.is_on():
                return self._of(job, self._call(job))
            with _span(self._stage, job):
                return _with_span(self._of(job, self._call(job)))
        except BaseException as error:  # noqa: BLE001 - sys.exit() of a function is its failure
            return failed(job.number, error)


class _Threads:
    """Plain functions that wait, several at once; an overdue one is left behind.

    The parent gives no more jobs than there are threads for.
    """

    def __init__(self, stage: Stage, report: Report, call: "_Call") -> None:
        self._one = _OneByOne(stage, report, call).one
        self._report, self._policy, self._team = report, stage.policy, stage.team
        self._todo: queue.SimpleQueue[GivenJob] = queue.SimpleQueue()
        #: A job, a moment, and its reply, or None if it begins; no job: there are no more.
        self._events: queue.SimpleQueue[tuple[GivenJob | None, float, SizedReply | None]] = (
            queue.SimpleQueue()
        )
        self._threads = 0

    def serve(self, chunks: Iterator[list[GivenJob]]) -> None:
        start_thread(lambda: self._feed(chunks), name="teams/jobs", of=self._team)
        running: dict[int, tuple[GivenJob, float]] = {}
        while True:
            self._leave_overdue(running)
            try:
                job, at, reply = self._events.get(timeout=self._next_s(running))
            except queue.Empty:
                continue
            if job is None:
                return
            if reply is None:
                running[job.number] = (job, at)
            elif running.pop(job.number, None) is not None:
                self._report.end(job, reply, at)
                if self._events.empty():
                    self._report.flush()

    def _feed(self, chunks: Iterator[list[GivenJob]]) -> None:
        for chunk in chunks:
            # A thread cannot be ended; a job that was cancelled ends, looks, or runs out of time.
            wanted = [job for job in chunk if job.slot != CANCEL_SLOT]
            for job in wanted:
                self._todo.put(job)
            for _ in range(min(self._policy.concurrency - self._threads, len(wanted))):
                self._start()
        self._events.put((None, 0.0, None))

    def _start(self) -> None:
        self._threads += 1
        of, stopped = f"{self._team}-{self._threads}", threading.Event()
        keep_thread(self._loop, name="teams/work", of=of, stopped=stopped)

    def _loop(self) -> None:
        while True:
            job = self._todo.get()
            if self._report.recalled(job):
                continue
            began_s = time.monotonic()
            # Here, and not when the other thread hears of it: the function may end the process.
            self._report.begin(job, began_s)
            self._events.put((job, began_s, None))
            reply = self._one(job)
            self._report.leave_if_forked()
            self._events.put((job, time.monotonic(), reply))

    def _next_s(self, running: dict[int, tuple[GivenJob, float]]) -> float | None:
        if not running:
            return None
        oldest = min(since for _, since in running.values())
        return max(0.001, oldest + self._policy.timeout_ms / 1000 - time.monotonic())

    def _leave_overdue(self, running: dict[int, tuple[GivenJob, float]]) -> None:
        now = time.monotonic()
        for job, since in list(running.values()):
            if now - since >= self._policy.timeout_ms / 1000:
                del running[job.number]
                # A thread cannot be ended. Another takes its place until this process is replaced.
                self._report.retire()
                self._report.end(job, overdue(job.number, self._policy.timeout_ms), now)
                self._report.flush()
                self._start()


class _Coroutines:
    """Async functions, several at once on one loop, which lives as long as this process.

    The parent gives no more jobs than may run at once.
    """

    def __init__(self, stage: Stage, report: Report, call: "_Call") -> None:
        self._stage, self._report, self._call = stage, report, call
        self._outcomes = Outcomes(stage)
        self._running: dict[int, asyncio.Task[None]] = {}

    def serve(self, chunks: Iterator[list[GivenJob]]) -> None:
        asyncio.run(self._serve(chunks))

    async def _serve(self, chunks: Iterator[list[GivenJob]]) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def feed() -> None:
            for chunk in chunks:
                loop.call_soon_threadsafe(self._begin, chunk)
            loop.call_soon_threadsafe(over.set)

        start_thread(feed, name="teams/jobs", of=self._stage.team)
        await over.wait()

    def _begin(self, chunk: list[GivenJob]) -> None:
        for job in chunk:
            if job.slot != CANCEL_SLOT:
                of = f"{self._stage.team}-{job.number}"
                self._running[job.number] = start_task(self._run(job), name="teams/job", of=of)
            elif job.number in self._running:
                self._running[job.number].cancel()

    async def _run(self, job: GivenJob) -> None:
        try:
            if not self._report.recalled(job):
                await self._perform(job)
        finally:
            del self._running[job.number]

    async def _perform(self, job: GivenJob) -> None:
        self._report.begin(job, time.monotonic())
        reply = self._outcomes.again(job) if job.stored else await self._one(job)
        self._report.end(job, reply, time.monotonic())
        self._report.flush()

    async def _one(self, job: GivenJob) -> SizedReply:
        timeout_ms = self._stage.policy.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                if job.traceparent is None or not tracing.is_on():
                    return self._outcomes.of(job, await self._call(job))
                with _span(self._stage, job):
                    return _with_span(self._outcomes.of(job, await self._call(job)))
        except TimeoutError as error:
            if limit.expired():
                return overdue(job.number, timeout_ms)
            return failed(job.number, error)
        except BaseException as error:  # noqa: BLE001 - as above
            return failed(job.number, error)


class _Batches:
    """Functions of a list or a table; the jobs of a batch that fails are tried one by one."""

    def __init__(self, stage: Stage, report: Report) -> None:
        self._stage, self._report = stage, report
        of = Any if stage.kind is not WorkKind.BATCH else item_type(payload_type(stage.work))
        self._decode = stage.codec.decoder(Any if of is None else of)
        self._outcomes = Outcomes(stage)
        self._loop = asyncio.new_event_loop() if is_async(stage.work) else None
        if stage.kind is not WorkKind.BATCH:
            # The first job does not pay for what Arrow loads at its first use (pandas).
            _rows(stage.kind, _table(stage.kind, [{"any": 0}]))

    def serve(self, chunks: Iterator[list[GivenJob]]) -> None:
        for chunk in chunks:
            wanted = [job for job in chunk if not self._report.recalled(job)]
            for job in (job for job in wanted if job.stored):
                self._report.begin(job, time.monotonic())
                self._report.end(job, self._outcomes.again(job), time.monotonic())
            self._perform([job for job in wanted if not job.stored])
            self._report.flush()

    def _perform(self, chunk: list[GivenJob]) -> None:
        now = time.monotonic()
        readable, payloads = [], []
        for job in chunk:
            self._report.begin(job, now)
            try:
                payloads.append(self._decode(job.payload))
                readable.append(job)
            except Undecodable as error:
                self._report.end(job, failed(job.number, error), now)

        try:
            results = self._results(payloads)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(readable, error)
            return
        for job, result in zip(readable, results, strict=True):
            try:
                reply = self._outcomes.of(job, result)
            except BaseException as error:  # noqa: BLE001 - as above
                reply = failed(job.number, error)
            self._report.end(job, reply, time.monotonic())

    def _fail(self, jobs: list[GivenJob], error: BaseException) -> None:
        if len(jobs) == 1:
            self._report.end(jobs[0], failed(jobs[0].number, error), time.monotonic())
            return
        # Running them one by one shows which of them it was.
        for job in jobs:
            self._report.end(job, ((job.number, SPLIT), 0), time.monotonic())

    def _results(self, payloads: list[Any]) -> list[Any]:
        if not payloads:
            return []
        returned = self._stage.work(_table(self._stage.kind, payloads))
        if self._loop is not None:
            returned = self._loop.run_until_complete(returned)
        results = _rows(self._stage.kind, returned)
        if len(results) != len(payloads):
            raise InvalidInput(
                f"the function of team {self._stage.team!r} returned {len(results)} results for "
                f"{len(payloads)} jobs; it must return one for each, in order"
            )
        return results


def _table(kind: WorkKind, payloads: list[Any]) -> Any:
    if kind is WorkKind.BATCH:
        return payloads
    import pyarrow as pa

    table = pa.RecordBatch.from_pylist(payloads)
    return table if kind is WorkKind.ARROW else table.to_pandas()


def _rows(kind: WorkKind, returned: Any) -> list[Any]:
    if kind is WorkKind.BATCH:
        return list(returned)
    if kind is WorkKind.ARROW:
        return returned.to_pylist()  # type: ignore[no-any-return]
    return returned.to_dict(orient="records")  # type: ignore[no-any-return]
