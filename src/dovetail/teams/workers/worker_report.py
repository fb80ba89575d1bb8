"""The messages between a worker's process and its parent.

    frames in    [[number, slot, key, payload, traceparent, stored, attempt, headers], ...]
                                                                              one chunk of jobs
                 slot -1: the job of that number was cancelled
    frames out   [[number, result, [[target, key, payload, ms, item], ...]], ...]     results,
                                           followed by the traceparent of a span of their own
                 [[number, kind, reason, traceback], ...]                     failures
                 [[number, "progress", part, text]]                the progress of a running job
                 [[-1, "retire"]]                                  gives this process no more jobs
                 [[-1, "unready", reason]]                         its set-up has failed; it ends
    shared page  by slot, which jobs are begun, ended and cancelled, and since when the current one
                 runs: readable when this process is dead or stuck

A frame is its length (4 bytes) and MessagePack. Outcomes are sent after five milliseconds or a
quarter of a megabyte, so that a function of ten microseconds does not pay for a system call; the
outcome of a slow one is sent at once.

A job that is `stored` has a result already, from an attempt that died: its payload is that result,
the function does not run, and what follows from it is made again.
"""

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from dovetail.errors import InvalidInput
from dovetail.foreign import traceback_of
from dovetail.teams.codecs import Undecodable, Unencodable
from dovetail.teams.connectors import ConnectorKind, opening_of
from dovetail.teams.envelope import GATHER_ITEMS_MAX, id_of, key_of
from dovetail.teams.graph import Stage
from dovetail.teams.outcome import MARKS_BYTES_MAX, Failure, FailureKind, Reject

LENGTH = struct.Struct("<I")
#: At the head of the page: the number of the running job, and since when it runs.
RUNNING = struct.Struct("<qd")
#: Behind it, one byte for each slot; 0: not begun. The parent may recall what is not begun.
#: It may cancel what is, too.
BEGUN, ENDED, RECALLED, CANCELLED = 1, 2, 3, 4

FLUSH_S = 0.005
FLUSH_BYTES = 256 * 1024
#: Text and bytes so many times larger than the limit are not even encoded.
_HOPELESS = 4

#: In place of a failure: the batch failed, and this job may or may not be the reason.
SPLIT = "split"
#: In place of an outcome, about job -1: this process must be replaced.
RETIRE = "retire"
#: About job -1 as well: the team's set-up raised.
UNREADY = "unready"
#: In place of an outcome: the job goes on, and says how far it is.
PROGRESS = "progress"
#: The slot of a frame that cancels a job.
CANCEL_SLOT = -1
#: A job is not heard more often: what it says is for people.
PROGRESS_S = 0.5

#: What is sent about one job, and roughly how many bytes it has.
Reply = tuple[Any, ...]
SizedReply = tuple[Reply, int]


class GivenJob(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One job of a chunk."""

    number: int
    slot: int
    key: bytes
    payload: bytes
    traceparent: bytes | None
    stored: bool
    attempt: int
    headers: tuple[tuple[str, bytes], ...]


class Report:
    """Reports on jobs: through the pipe, and on the shared page."""

    def __init__(self, replies: BinaryIO, page: mmap.mmap) -> None:
        self._replies, self._page = replies, page
        self._buffer: list[Reply] = []
        self._bytes = 0
        self._flushed = time.monotonic()
        self._encode = msgspec.msgpack.Encoder().encode
        self._lock = threading.Lock()
        self._unsent, self._waking = threading.Event(), False
        #: When each job that runs last said how far it is.
        self._said: dict[int, float] = {}
        self._forked = False
        os.register_at_fork(after_in_child=self._note_fork)

    def _note_fork(self) -> None:
        self._forked = True

    def leave_if_forked(self) -> None:
        """Ends a process that a function has forked, once it has left the function: two that read
        and write the same pipes would garble the jobs of both."""
        if self._forked:
            os._exit(0)

    def keep_flushing(self) -> None:
        """Sends what has ended also while the next job takes long."""
        while True:
            self._unsent.wait()
            time.sleep(FLUSH_S)
            self.flush()

    def recalled(self, job: GivenJob) -> bool:
        """Whether the parent has given the job to another process; it then is passed over."""
        at = RUNNING.size + job.slot
        if self._page[at] != RECALLED:
            return False
        self._page[at] = ENDED
        return True

    def cancelled(self, job: GivenJob) -> bool:
        """Whether nobody wants the outcome of a job that runs."""
        return self._page[RUNNING.size + job.slot] == CANCELLED

    def progress(self, job: GivenJob, part: float, text: str) -> None:
        """How far a job is; what comes too soon after the last word is left out."""
        if self._forked:
            return
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(job.number, 0.0) < PROGRESS_S:
                return
            self._said[job.number] = now
            self._buffer.append((job.number, PROGRESS, part, text))
        self.flush()

    def unready(self, error: BaseException) -> None:
        """The set-up of the team has failed."""
        self.leave_if_forked()
        reason = _failure_of(error).reason
        with self._lock:
            self._buffer.append((-1, UNREADY, reason))
        self.flush()

    def begin(self, job: GivenJob, now: float) -> None:
        if self._buffer and not self._waking:
            # It may take long. What ends without another behind it is sent at once.
            self._waking = True
            self._unsent.set()
        # The time first: whoever sees that it has begun must not take an older one for its own.
        RUNNING.pack_into(self._page, 0, job.number, now)
        self._page[RUNNING.size + job.slot] = BEGUN

    def end(self, job: GivenJob, reply: SizedReply, now: float) -> None:
        if self._forked:
            self.leave_if_forked()
        self._page[RUNNING.size + job.slot] = ENDED
        if self._said:
            self._said.pop(job.number, None)
        # Without the lock: it is the same list always, and a flush takes from its front only.
        self._buffer.append(reply[0])
        self._bytes += reply[1]
        if now - self._flushed > FLUSH_S or self._bytes > FLUSH_BYTES:
            self.flush()

    def retire(self) -> None:
        """This process can take no more jobs; what is sent next says so first."""
        with self._lock:
            self._buffer.insert(0, (-1, RETIRE))

    def flush(self) -> None:
        with self._lock:
            self._unsent.clear()
            self._waking = False
            count, self._bytes = len(self._buffer), 0
            if count:
                frame = self._encode(self._buffer[:count])
                data = memoryview(LENGTH.pack(len(frame)) + frame)
                while data:
                    data = data[self._replies.write(data) :]
                del self._buffer[:count]
            self._flushed = time.monotonic()


class Outcomes:
    """From a result to the reply about it: encoded, forwarded, measured."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._connectors = stage, stage.connectors
        self._encode = stage.codec.encoder()
        self._size_max = stage.policy.result_bytes_max
        self._decode_stored = stage.codec.decoder()
        self._encoders = {
            name: target.codec.encoder() for name, target in sorted(stage.targets.items())
        }

    def again(self, job: GivenJob) -> SizedReply:
        """The reply about a result that is stored; raises nothing."""
        try:
            return self.of(job, self._decode_stored(job.payload))
        except BaseException as error:  # noqa: BLE001 - a connector may do anything
            return failed(job.number, error)

    def of(self, job: GivenJob, result: Any) -> SizedReply:
        """The reply about a result. Raises what the user's code does, and `InvalidInput`."""
        encoded = self._encoded(self._encode, result, len(job.key))
        size = len(encoded)
        if not self._connectors:
            return (job.number, encoded, ()), size
        forwards: list[tuple[str, bytes, bytes, int, str]] = []
        job_id = id_of(job.key)
        for connector in self._connectors:
            target = connector.target
            gathered = (
                connector.kind is ConnectorKind.SPRAY and self._stage.targets[target].gather_topic
            )
            made = connector.forward(job_id, result)
            if gathered and len(made) > GATHER_ITEMS_MAX:
                raise InvalidInput(
                    f"the result has {len(made)} items; the limit of a spray that is gathered is "
                    f"{GATHER_ITEMS_MAX}"
                )

            for forward in made:
                # Its record names its parent too.
                key = job.key if forward.id is job_id else key_of(forward.id)
                encode = self._encoders[forward.target]
                payload = self._encoded(encode, forward.payload, len(key) + len(job.key))
                item = forward.item if gathered else ""
                about = (forward.target, key, payload, forward.after_ms, item)
                forwards.append(about)
                size += len(payload)
            if gathered:
                key = key_of(connector.next_id(job_id))
                forwards.append((target, key, b"", 0, opening_of(len(made))))
        return (job.number, encoded, forwards), size

    def _encoded(self, encode: Callable[[Any], bytes], value: Any, named: int) -> bytes:
        """For a record whose key and parent have so many bytes: long ones leave less room."""
        size_max = self._size_max - max(0, named - MARKS_BYTES_MAX)
        if isinstance(value, str | bytes) and len(value) > _HOPELESS * self._size_max:
            raise _TooLarge(len(value), size_max)
        data = encode(value)
        if len(data) > size_max:
            raise _TooLarge(len(data), size_max)
        return data


class _TooLarge(InvalidInput):
    def __init__(self, size: int, size_max: int) -> None:
        super().__init__(
            f"the result has {size} bytes; the limit is {max(0, size_max)} (result_bytes_max of "
            "the team, less for long keys). Store it elsewhere and return a reference to it"
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
    trace = traceback_of(error) if kind is FailureKind.EXCEPTION else ""
    return Failure(kind, reason, trace).bounded()


def failed(number: int, error: BaseException) -> SizedReply:
    """The reply about an exception."""
    failure = _failure_of(error)
    size = len(failure.reason) + len(failure.traceback)
    return (number, failure.kind.value, failure.reason, failure.traceback), size


def overdue(number: int, timeout_ms: int) -> SizedReply:
    """The reply about a job that takes too long."""
    reason = f"not done within {timeout_ms} ms; abandoned"
    return (number, FailureKind.TIMEOUT.value, reason, ""), len(reason)
