"""Inside a worker's process: jobs come in, outcomes go out, the user's code runs in between.

    frames in    [[number, key, payload, traceparent], ...]                   one chunk of jobs
    frames out   [[number, result, [[target, key, payload, ms], ...]], ...]   results, followed by
                                                          the traceparent of a span of their own
                 [[number, kind, reason, traceback], ...]                     failures
    shared page  which jobs of the chunk are begun and which ended, and since when the current one
                 runs: what is left to read when this process is dead or stuck

A frame is its length (4 bytes) and MessagePack. Outcomes are sent after two milliseconds or a
quarter of a megabyte, so that a function of ten microseconds does not pay for a system call, and
the outcome of a slow one is sent at once.

All of the user's code runs here: decoding into its types, the function, conditions, transforms. The
process may be killed at any moment; only the jobs that are running are lost.
"""

import asyncio
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
from dovetail.background import keep_thread
from dovetail.errors import InvalidInput
from dovetail.teams.codecs import Undecodable, Unencodable
from dovetail.teams.envelope import id_of, key_of
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import Failure, FailureKind, Reject
from dovetail.teams.team import WorkKind
from dovetail.teams.types import item_type, payload_type

LENGTH = struct.Struct("<I")
#: At the head of the page: the number of the running job, and since when it runs.
RUNNING = struct.Struct("<qd")
#: Behind it, one byte for each job of the chunk; 0: not begun.
BEGUN, ENDED = 1, 2

FLUSH_S = 0.002
FLUSH_BYTES = 256 * 1024
#: Text and bytes so many times larger than the limit are not even encoded.
_HOPELESS = 4
_PR_SET_PDEATHSIG = 1

#: In place of a failure: the batch failed, and this job may or may not be the reason.
SPLIT = "split"

#: What is sent about one job, and roughly how many bytes it has.
Reply = tuple[Any, ...]
SizedReply = tuple[Reply, int]


class GivenJob(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One job of a chunk."""

    number: int
    key: bytes
    payload: bytes
    traceparent: bytes | None


def main(stage: Stage, jobs_fd: int, replies_fd: int, page: mmap.mmap, parent: int) -> None:
    """Serves chunks until the parent closes its end, or dies."""
    # A function that hangs must not outlive the process that could kill it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # Ctrl-C reaches all processes of a terminal; the parent decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    jobs, replies = os.fdopen(jobs_fd, "rb"), os.fdopen(replies_fd, "wb", buffering=0)
    report = _Report(replies, page)
    perform = _performer(stage, report)
    decoder = msgspec.msgpack.Decoder(list[GivenJob])
    while not report.retire:
        head = jobs.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return
        chunk = decoder.decode(jobs.read(*LENGTH.unpack(head)))
        report.positions = {job.number: at for at, job in enumerate(chunk)}
        perform(chunk)
        report.flush()


class _Report:
    """Reports on a chunk: through the pipe, and on the shared page."""

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

    def of(self, job: GivenJob, result: Any) -> SizedReply:
        """The reply about a result. Raises what the user's code does, and `InvalidInput`."""
        encoded = self._encoded(self._encode, result)
        size = len(encoded)
        forwards = []
        job_id = id_of(job.key)
        for connector in self._stage.connectors:
            for forward in connector.forward(job_id, result):
                payload = self._encoded(self._encoders[forward.target], forward.payload)
                forwards.append((forward.target, key_of(forward.id), payload, forward.after_ms))
                size += len(payload)
        return (job.number, encoded, forwards), size

    def _encoded(self, encode: Callable[[Any], bytes], value: Any) -> bytes:
        if isinstance(value, str | bytes) and len(value) > _HOPELESS * self._size_max:
            raise _TooLarge(len(value), self._size_max)
        data = encode(value)
        if len(data) > self._size_max:
            raise _TooLarge(len(data), self._size_max)
        return data


class _TooLarge(InvalidInput):
    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(
            f"the result has {size} bytes; the limit of this team is {size_max} "
            "(result_bytes_max). Store it elsewhere and return a reference to it"
        )


#: The failure of each kind of exception; any other is `FailureKind.EXCEPTION`.
_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (Reject, FailureKind.REJECTED),
    (Undecodable, FailureKind.JOB_UNREADABLE),
    (Unencodable, FailureKind.RESULT_UNWRITABLE),
    (_TooLarge, FailureKind.RESULT_TOO_LARGE),
)


def _failure_of(error: BaseException) -> Failure:
    kinds = (kind for type_, kind in _KINDS if isinstance(error, type_))
    kind = next(kinds, FailureKind.EXCEPTION)
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - the user's __str__ may do anything
        text = f"(its message cannot be read: {type(broken).__name__})"

    reason = text if isinstance(error, Reject | InvalidInput) else f"{type(error).__name__}: {text}"
    lines = traceback.format_exception(error) if kind is FailureKind.EXCEPTION else []
    return Failure(kind, reason, "".join(lines)).bounded()


def _failed(number: int, error: BaseException) -> SizedReply:
    """The reply about an exception."""
    failure = _failure_of(error)
    size = len(failure.reason) + len(failure.traceback)
    return (number, failure.kind.value, failure.reason, failure.traceback), size


def _overdue(number: int, timeout_ms: int) -> SizedReply:
    """The reply about a job that takes too long."""
    reason = f"not done within {timeout_ms} ms; abandoned"
    return (number, FailureKind.TIMEOUT.value, reason, ""), len(reason)


def _performer(stage: Stage, report: _Report) -> Callable[[list[GivenJob]], None]:
    if stage.kind is not WorkKind.ITEM:
        return _Batches(stage, report).perform
    if is_async(stage.work):
        return _Coroutines(stage, report).perform
    if stage.policy.concurrency > 1:
        return _Threads(stage, report).perform
    return _OneByOne(stage, report).perform


def is_async(work: Callable[..., Any]) -> bool:
    """Whether a call of it must be awaited."""
    return inspect.iscoroutinefunction(work)


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
            begin(job.number, now)
            reply, size = one(job)
            now = clock()
            end(reply, size, now)

    def one(self, job: GivenJob) -> SizedReply:
        """The reply about one job; raises nothing."""
        try:
            if job.traceparent is None or not tracing.is_on():
                return self._outcomes.of(job, self._work(self._decode(job.payload)))
            with _span(self._stage, job):
                return _with_span(self._outcomes.of(job, self._work(self._decode(job.payload))))
        except BaseException as error:  # noqa: BLE001 - sys.exit() of a function is its failure
            return _failed(job.number, error)


class _Threads:
    """Plain functions that wait, several at once; an overdue one is left behind."""

    def __init__(self, stage: Stage, report: _Report) -> None:
        self._one = _OneByOne(stage, report).one
        self._report, self._policy, self._team = report, stage.policy, stage.team
        self._todo: queue.SimpleQueue[GivenJob] = queue.SimpleQueue()
        #: A job, a moment, and its reply, or None if it begins.
        self._events: queue.SimpleQueue[tuple[int, float, SizedReply | None]] = queue.SimpleQueue()
        self._threads = 0

    def perform(self, chunk: list[GivenJob]) -> None:
        open_numbers = {job.number for job in chunk}
        running: dict[int, float] = {}
        for job in chunk:
            self._todo.put(job)
        for _ in range(min(self._policy.concurrency, len(chunk)) - self._threads):
            self._start()

        while open_numbers:
            self._leave_overdue(running, open_numbers)
            try:
                number, at, reply = self._events.get(timeout=self._next_s(running))
            except queue.Empty:
                continue
            if number not in open_numbers:
                continue
            if reply is None:
                running[number] = at
                self._report.begin(number, at)
                continue

            running.pop(number, None)
            open_numbers.discard(number)
            self._report.end(*reply, at)
            if self._events.empty():
                self._report.flush()

    def _start(self) -> None:
        self._threads += 1
        of, stopped = f"{self._team}-{self._threads}", threading.Event()
        keep_thread(self._loop, name="teams/work", of=of, stopped=stopped)

    def _loop(self) -> None:
        while True:
            job = self._todo.get()
            self._events.put((job.number, time.monotonic(), None))
            reply = self._one(job)
            self._events.put((job.number, time.monotonic(), reply))

    def _next_s(self, running: dict[int, float]) -> float:
        oldest = min(running.values(), default=time.monotonic())
        return max(0.001, oldest + self._policy.timeout_ms / 1000 - time.monotonic())

    def _leave_overdue(self, running: dict[int, float], open_numbers: set[int]) -> None:
        now = time.monotonic()
        for number, since in list(running.items()):
            if now - since >= self._policy.timeout_ms / 1000:
                del running[number]
                open_numbers.discard(number)
                self._report.end(*_overdue(number, self._policy.timeout_ms), now)
                self._report.flush()
                # A thread cannot be ended. Another takes its place until this process retires.
                self._report.retire = True
                self._start()


class _Coroutines:
    """Async functions, several at once on one loop, which lives as long as this process."""

    def __init__(self, stage: Stage, report: _Report) -> None:
        self._stage, self._report = stage, report
        self._decode = stage.codec.decoder(payload_type(stage.work))
        self._outcomes = _Outcomes(stage)
        self._loop = asyncio.new_event_loop()

    def perform(self, chunk: list[GivenJob]) -> None:
        self._loop.run_until_complete(self._all(iter(chunk)))

    async def _all(self, jobs: Iterator[GivenJob]) -> None:
        await asyncio.gather(*(self._some(jobs) for _ in range(self._stage.policy.concurrency)))

    async def _some(self, jobs: Iterator[GivenJob]) -> None:
        for job in jobs:
            self._report.begin(job.number, time.monotonic())
            reply, size = await self._one(job)
            self._report.end(reply, size, time.monotonic())
            self._report.flush()

    async def _one(self, job: GivenJob) -> SizedReply:
        timeout_ms = self._stage.policy.timeout_ms
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                if job.traceparent is None or not tracing.is_on():
                    return self._outcomes.of(job, await self._result(job))
                with _span(self._stage, job):
                    return _with_span(self._outcomes.of(job, await self._result(job)))
        except TimeoutError as error:
            if limit.expired():
                return _overdue(job.number, timeout_ms)
            return _failed(job.number, error)
        except BaseException as error:  # noqa: BLE001 - as above
            return _failed(job.number, error)

    async def _result(self, job: GivenJob) -> Any:
        return await self._stage.work(self._decode(job.payload))


class _Batches:
    """Functions of a list or a table; the jobs of a batch that fails are tried one by one."""

    def __init__(self, stage: Stage, report: _Report) -> None:
        self._stage, self._report = stage, report
        of = Any if stage.kind is not WorkKind.BATCH else item_type(payload_type(stage.work))
        self._decode = stage.codec.decoder(Any if of is None else of)
        self._outcomes = _Outcomes(stage)
        self._loop = asyncio.new_event_loop() if is_async(stage.work) else None
        if stage.kind is not WorkKind.BATCH:
            # The first job does not pay for what Arrow loads at its first use (pandas).
            _rows(stage.kind, _table(stage.kind, [{"any": 0}]))

    def perform(self, chunk: list[GivenJob]) -> None:
        now = time.monotonic()
        readable, payloads = [], []
        for job in chunk:
            self._report.begin(job.number, now)
            try:
                payloads.append(self._decode(job.payload))
                readable.append(job)
            except Undecodable as error:
                self._report.end(*_failed(job.number, error), now)

        try:
            results = self._results(payloads)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(readable, error)
            return
        for job, result in zip(readable, results, strict=True):
            try:
                reply = self._outcomes.of(job, result)
            except BaseException as error:  # noqa: BLE001 - as above
                reply = _failed(job.number, error)
            self._report.end(*reply, time.monotonic())

    def _fail(self, jobs: list[GivenJob], error: BaseException) -> None:
        if len(jobs) == 1:
            self._report.end(*_failed(jobs[0].number, error), time.monotonic())
            return
        # Running them one by one shows which of them it was.
        for job in jobs:
            self._report.end((job.number, SPLIT), 0, time.monotonic())

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
