"""The inside of a worker's process: jobs come in, outcomes go out, the user's code runs between.

    frames in    [[number, id, payload, traceparent], ...]                    one chunk of jobs
    frames out   [[number, result, [[target, id, payload, ms], ...]], ...]    results, followed by
                                                          the traceparent of a span of their own
                 [[number, kind, reason, traceback], ...]                     failures
    shared page  which jobs of the chunk are begun and which ended, and since when the present
                 one runs: what is left to read when this process is dead or stuck

A frame is its length (4 bytes) and MessagePack. Outcomes are sent when two milliseconds are over or
a quarter of a megabyte is full, so that a function of ten microseconds does not pay for a system
call, and a slow one is told of at once.

Everything of the user's runs here: decoding into its types, the function, conditions, transforms.
The process may be killed at any moment, and nothing but the jobs under way is lost.
"""

import asyncio
import contextlib
import ctypes
import inspect
import mmap
import os
import queue
import signal
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

import msgspec

from dovetail import tracing
from dovetail.errors import InvalidInput
from dovetail.teams.codecs import Undecodable, Unencodable
from dovetail.teams.envelope import JobId
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import Failure, FailureKind, Reject
from dovetail.teams.team import WorkKind
from dovetail.teams.types import item_type, payload_type

LENGTH = struct.Struct("<I")
#: Of the page: the number of the running job, and since when it runs.
RUNNING = struct.Struct("<qd")
NOT_BEGUN, BEGUN, ENDED = 0, 1, 2

FLUSH_S = 0.002
FLUSH_BYTES = 256 * 1024
#: Text and bytes so many times larger than the limit are not even encoded.
_HOPELESS = 4
_PR_SET_PDEATHSIG = 1

GivenJob = tuple[int, str, bytes, bytes | None]
Reply = tuple[Any, ...]


def main(stage: Stage, jobs_fd: int, replies_fd: int, page: mmap.mmap, parent: int) -> None:
    """Serves chunks until the parent closes its end, or dies."""
    # A function that hangs must not outlive the process that could kill it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # Ctrl-C reaches all processes of a terminal; what follows from it is for the parent to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs, replies = os.fdopen(jobs_fd, "rb"), os.fdopen(replies_fd, "wb", buffering=0)
    report = _Report(replies, page)
    perform = _performer(stage, report)
    decoder = msgspec.msgpack.Decoder(list[GivenJob])
    while True:
        head = jobs.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return
        chunk = decoder.decode(jobs.read(*LENGTH.unpack(head)))
        report.positions = {job[0]: at for at, job in enumerate(chunk)}
        perform(chunk)
        report.flush()
        if report.retire:
            return


class _Report:
    """What is told about a chunk: through the pipe, and on the shared page."""

    def __init__(self, replies: BinaryIO, page: mmap.mmap) -> None:
        self._replies, self._page = replies, page
        self._buffer: list[Reply] = []
        self._bytes = 0
        self._flushed = time.monotonic()
        self._encode = msgspec.msgpack.Encoder().encode
        self.positions: dict[int, int] = {}
        #: Set when this process must not take another chunk.
        self.retire = False

    def begin(self, number: int, now: float) -> None:
        # The time first: whoever sees that it has begun must not take an older one for its own.
        RUNNING.pack_into(self._page, 0, number, now)
        self._page[RUNNING.size + self.positions[number]] = BEGUN

    def end(self, reply: Reply, size: int, now: float) -> None:
        self._page[RUNNING.size + self.positions[reply[0]]] = ENDED
        self._buffer.append(reply)
        self._bytes += size
        if now - self._flushed > FLUSH_S or self._bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            frame = self._encode(self._buffer)
            data = memoryview(LENGTH.pack(len(frame)) + frame)
            while data:
                data = data[self._replies.write(data) :]
            self._buffer, self._bytes = [], 0
        self._flushed = time.monotonic()


class _Outcomes:
    """From a result to the reply about it: encoded, forwarded, measured."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._encode = stage.codec.encoder()
        self._size_max = stage.policy.result_bytes_max
        self._encoders = {
            name: target.codec.encoder() for name, target in sorted(stage.targets.items())
        }

    def of(self, number: int, job_id: str, result: Any) -> tuple[Reply, int]:
        """The reply about a result. Raises what the user's code does, and `InvalidInput`."""
        payload = self._written(self._encode, result)
        size = len(payload)
        forwards = []
        for connector in self._stage.connectors:
            for forward in connector.forward(JobId(job_id), result):
                encoded = self._written(self._encoders[forward.target], forward.payload)
                forwards.append((forward.target, forward.id, encoded, forward.after_ms))
                size += len(encoded)
        return (number, payload, forwards), size

    def _written(self, encode: Callable[[Any], bytes], value: Any) -> bytes:
        if isinstance(value, str | bytes) and len(value) > _HOPELESS * self._size_max:
            raise _TooLarge(len(value), self._size_max)
        data = encode(value)
        if len(data) > self._size_max:
            raise _TooLarge(len(data), self._size_max)
        return data


class _TooLarge(InvalidInput):
    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(
            f"a result of {size} bytes; the limit of this team is {size_max} (result_bytes_max). "
            "Store it elsewhere and return where it lies"
        )


def failure_of(error: BaseException) -> Failure:
    """What is told about an exception."""
    kind = FailureKind.EXCEPTION
    if isinstance(error, Reject):
        kind = FailureKind.REJECTED
    elif isinstance(error, Undecodable):
        kind = FailureKind.JOB_UNREADABLE
    elif isinstance(error, Unencodable):
        kind = FailureKind.RESULT_UNWRITABLE
    elif isinstance(error, _TooLarge):
        kind = FailureKind.RESULT_TOO_LARGE
    elif isinstance(error, TimeoutError) and error.args == (_OVERDUE,):
        kind = FailureKind.TIMEOUT
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - the user's __str__ may do anything
        text = f"(its text cannot be had: {type(broken).__name__})"
    reason = text if isinstance(error, Reject | InvalidInput) else f"{type(error).__name__}: {text}"
    lines = traceback.format_exception(error) if kind is FailureKind.EXCEPTION else []
    return Failure(kind, reason, "".join(lines)).bounded()


_OVERDUE = "overdue"


def failed(number: int, error: BaseException) -> tuple[Reply, int]:
    """The reply about an exception."""
    failure = failure_of(error)
    size = len(failure.reason) + len(failure.traceback)
    return (number, failure.kind.value, failure.reason, failure.traceback), size


def _performer(stage: Stage, report: _Report) -> Callable[[list[GivenJob]], None]:
    if stage.kind is not WorkKind.ITEM:
        return _Batches(stage, report).perform
    if is_async(stage.work):
        return _Tasks(stage, report).perform
    if stage.policy.concurrency > 1:
        return _Threads(stage, report).perform
    return _OneByOne(stage, report).perform


def _span(stage: Stage, job_id: str, context: bytes) -> AbstractContextManager[Any]:
    """The span of one job; functions of lists and tables have none of their own."""
    about = {"dovetail.pipeline": stage.pipeline, "dovetail.team": stage.team}
    return tracing.span(
        f"work {stage.team}",
        kind="consumer",
        parent=context,
        attributes={**about, "dovetail.job.id": job_id},
    )


def _context() -> bytes:
    return (tracing.traceparent() or "").encode()


class _OneByOne:
    """Plain functions, one after the other; the parent watches the time."""

    def __init__(self, stage: Stage, report: _Report) -> None:
        self._stage, self._work, self._report = stage, stage.work, report
        self._decode = stage.codec.decoder(payload_type(stage.work))
        self._outcomes = _Outcomes(stage)

    def perform(self, chunk: list[GivenJob]) -> None:
        one, begin, end, clock = self.one, self._report.begin, self._report.end, time.monotonic
        now = clock()
        for job in chunk:
            begin(job[0], now)
            reply, size = one(job)
            now = clock()
            end(reply, size, now)

    def one(self, job: GivenJob) -> tuple[Reply, int]:
        """The reply about one job; raises nothing."""
        number, job_id, payload, context = job
        try:
            if context is None or not tracing.is_on():
                return self._outcomes.of(number, job_id, self._work(self._decode(payload)))
            with _span(self._stage, job_id, context):
                reply, size = self._outcomes.of(number, job_id, self._work(self._decode(payload)))
                return (*reply, _context()), size
        except BaseException as error:  # noqa: BLE001 - sys.exit() of a function is its failure
            return failed(number, error)


class _Threads:
    """Plain functions that wait, several at once; one that is overdue is left behind."""

    def __init__(self, stage: Stage, report: _Report) -> None:
        self._one = _OneByOne(stage, report).one
        self._report, self._policy = report, stage.policy
        self._todo: queue.SimpleQueue[GivenJob] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[tuple[GivenJob, float, tuple[Reply, int] | None]] = (
            queue.SimpleQueue()
        )
        self._threads = 0

    def perform(self, chunk: list[GivenJob]) -> None:
        open_jobs = {job[0] for job in chunk}
        running: dict[int, float] = {}
        for job in chunk:
            self._todo.put(job)
        for _ in range(min(self._policy.concurrency, len(chunk)) - self._threads):
            self._start()
        while open_jobs:
            self._leave_overdue(running, open_jobs)
            try:
                job, at, told = self._told.get(timeout=self._next_s(running))
            except queue.Empty:
                continue
            if job[0] not in open_jobs:
                continue
            if told is None:
                running[job[0]] = at
                self._report.begin(job[0], at)
                continue
            running.pop(job[0], None)
            open_jobs.discard(job[0])
            self._report.end(*told, at)
            if self._told.empty():
                self._report.flush()

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self) -> None:
        while True:
            job = self._todo.get()
            self._told.put((job, time.monotonic(), None))
            told = self._one(job)
            self._told.put((job, time.monotonic(), told))

    def _next_s(self, running: dict[int, float]) -> float:
        oldest = min(running.values(), default=time.monotonic())
        return max(0.001, oldest + self._policy.timeout_ms / 1000 - time.monotonic())

    def _leave_overdue(self, running: dict[int, float], open_jobs: set[int]) -> None:
        now = time.monotonic()
        for number, since in list(running.items()):
            if now - since >= self._policy.timeout_ms / 1000:
                del running[number]
                open_jobs.discard(number)
                self._report.end(*_overdue(number, self._policy.timeout_ms), now)
                self._report.flush()
                # Its thread cannot be ended; another takes its place, and this process its leave.
                self._report.retire = True
                self._start()


class _Tasks:
    """Async functions, several at once on one loop, which lives as long as this process."""

    def __init__(self, stage: Stage, report: _Report) -> None:
        self._stage, self._report = stage, report
        self._decode = stage.codec.decoder(payload_type(stage.work))
        self._outcomes = _Outcomes(stage)
        self._loop = asyncio.new_event_loop()

    def perform(self, chunk: list[GivenJob]) -> None:
        self._loop.run_until_complete(self._all(iter(chunk)))

    async def _all(self, jobs: Iterator[GivenJob]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._stage.policy.concurrency):
                group.create_task(self._some(jobs))

    async def _some(self, jobs: Iterator[GivenJob]) -> None:
        for job in jobs:
            self._report.begin(job[0], time.monotonic())
            reply, size = await self._one(job)
            self._report.end(reply, size, time.monotonic())
            self._report.flush()

    async def _one(self, job: GivenJob) -> tuple[Reply, int]:
        number, job_id, payload, context = job
        timeout_ms = self._stage.policy.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                if context is None or not tracing.is_on():
                    result = await self._stage.work(self._decode(payload))
                    return self._outcomes.of(number, job_id, result)
                with _span(self._stage, job_id, context):
                    result = await self._stage.work(self._decode(payload))
                    reply, size = self._outcomes.of(number, job_id, result)
                    return (*reply, _context()), size
        except TimeoutError as error:
            if limit.expired():
                return _overdue(number, timeout_ms)
            return failed(number, error)
        except BaseException as error:  # noqa: BLE001 - as above
            return failed(number, error)


class _Batches:
    """Functions of a list or a table; what fails as a batch is tried by the one."""

    def __init__(self, stage: Stage, report: _Report) -> None:
        self._stage, self._report = stage, report
        of = Any if stage.kind is not WorkKind.BATCH else item_type(payload_type(stage.work))
        self._decode = stage.codec.decoder(Any if of is None else of)
        self._outcomes = _Outcomes(stage)
        self._loop = asyncio.new_event_loop() if is_async(stage.work) else None
        if stage.kind is not WorkKind.BATCH:
            # What Arrow loads at its first use (pandas) is not charged to the first job.
            _rows(stage.kind, _table(stage.kind, [{"any": 0}]))

    def perform(self, chunk: list[GivenJob]) -> None:
        now = time.monotonic()
        readable, payloads = [], []
        for job in chunk:
            self._report.begin(job[0], now)
            try:
                payloads.append(self._decode(job[2]))
                readable.append(job)
            except Undecodable as error:
                self._report.end(*failed(job[0], error), now)
        try:
            results = self._results(payloads)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(readable, error)
            return
        for job, result in zip(readable, results, strict=True):
            try:
                told = self._outcomes.of(job[0], job[1], result)
            except BaseException as error:  # noqa: BLE001 - as above
                told = failed(job[0], error)
            self._report.end(*told, time.monotonic())

    def _fail(self, jobs: list[GivenJob], error: BaseException) -> None:
        if len(jobs) == 1:
            self._report.end(*failed(jobs[0][0], error), time.monotonic())
            return
        # Which of them it was is found out by giving them one by one.
        for job in jobs:
            self._report.end((job[0], SPLIT), 0, time.monotonic())

    def _results(self, payloads: list[Any]) -> list[Any]:
        if not payloads:
            return []
        given = self._stage.work(_table(self._stage.kind, payloads))
        if self._loop is not None:
            given = self._loop.run_until_complete(given)
        results = _rows(self._stage.kind, given)
        if len(results) != len(payloads):
            raise InvalidInput(
                f"the function of team {self._stage.team!r} gave {len(results)} results for "
                f"{len(payloads)} jobs; a batch needs one for each, in order"
            )
        return results


#: In place of a failure: the batch failed, and this job may or may not be the reason.
SPLIT = "split"


def _overdue(number: int, timeout_ms: int) -> tuple[Reply, int]:
    reason = f"not done within {timeout_ms} ms; abandoned"
    return (number, FailureKind.TIMEOUT.value, reason, ""), len(reason)


def is_async(work: Callable[..., Any]) -> bool:
    """Whether a call of it must be awaited."""
    return inspect.iscoroutinefunction(work)


def _table(kind: WorkKind, payloads: list[Any]) -> Any:
    if kind is WorkKind.BATCH:
        return payloads
    import pyarrow as pa

    table = pa.RecordBatch.from_pylist(payloads)
    return table if kind is WorkKind.ARROW else table.to_pandas()


def _rows(kind: WorkKind, given: Any) -> list[Any]:
    if kind is WorkKind.BATCH:
        return list(given)
    if kind is WorkKind.ARROW:
        return given.to_pylist()  # type: ignore[no-any-return]
    return given.to_dict(orient="records")  # type: ignore[no-any-return]


def quietly_close(*descriptors: int) -> None:
    """Closes what may be closed already."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
