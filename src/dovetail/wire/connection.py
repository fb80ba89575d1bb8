"""One client: bytes in, frames out to the dispatcher, answers back in order.

Reading. The socket fills a scratch buffer, from which whole frames are cut. A larger frame gets a
buffer of exactly its size once the scratch is full, and the socket fills the rest of it directly:
most of a batch of a megabyte is never copied on its way in, and its slices can be written to disk
as they are. All connections share the scratch, because one is read at a time; an idle one holds no
buffer at all. Bytes that were read but could not be processed yet are kept (`_rest`, at most a
scratch full). While only the budget or the queue holds them up, nothing more is read.

Order. A connection's requests are handled one after another, as in Kafka. The exception is a
*pipelined* reply: the next request starts while it waits for the disk. Answers always leave in the
order of the requests.

Bytes. The budget is charged for what has arrived, not for what a length promises: a small frame
when it is complete, a larger one in steps as it is filled. A frame's bytes return to the budget
when its answer was written, or when the connection is gone and nothing works on the frame any more.
Returning bytes can let this same connection continue; it does so in a turn of its own (`_go_on`),
so that no request starts in the middle of another.

States of reading: OPEN ⇄ PAUSED (budget, queue, quota or slow reader) → CLOSED.
Survives: any bytes whatever; at worst this connection is closed, with a line in the log.
"""

import asyncio
import mmap
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

from dovetail.background import later
from dovetail.errors import ProtocolViolation
from dovetail.prompt_future import when_done
from dovetail.wire.budget import ByteBudget
from dovetail.wire.replies import Answer, OrderedReply, Pending, PipelinedReply, Reply, begin

#: The scratch buffer: larger than nearly all requests but Produce, and what one read brings.
SCRATCH_BYTES = 64 * 1024

#: Requests of one connection that are read but not answered; clients have 5, kafkajs up to 100.
QUEUE_MAX = 100

#: Largest frame of a client before its login, which needs under 1 KiB; the rest is for tokens.
FRAME_BYTES_MAX_UNAUTHENTICATED = 64 * 1024

#: Requests that such a client may have read but not answered: a login is one after another.
_QUEUE_MAX_UNAUTHENTICATED = 1

#: From this size on a frame's memory comes page by page as it is filled. Clearing it at once takes
#: half a millisecond for each MiB, and a client needs four bytes to ask for 100 of them. Smaller
#: ones are faster the plain way; ordinary batches have at most 1 MiB.
_LAZY_BYTES_MIN = 2 * 1024 * 1024

#: A frame above the scratch buffer is charged in such steps: what one can take that is not lazy.
STEP_BYTES = _LAZY_BYTES_MIN

_LENGTH_BYTES = 4

_HTTP_BEGINNINGS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ")
_TLS_BEGINNING = b"\x16\x03"


class Dispatch(Protocol):
    """What the frames mean."""

    def __call__(self, connection: "Connection", frame: memoryview) -> Reply:
        """The answer's buffers, None for no answer, or one of the ways to answer later.

        Raises `ProtocolViolation` to have the connection closed.
        """
        ...


class Observer(Protocol):
    """Hears what happens to connections, for metrics and the log."""

    def opened(self, connection: "Connection") -> None: ...

    def closed(self, connection: "Connection") -> None: ...

    def violation(self, connection: "Connection", error: ProtocolViolation) -> None: ...

    def failed(self, connection: "Connection", error: Exception) -> None:
        """A defect of ours: the request gets no answer, and the connection is closed."""
        ...

    def moved(self, bytes_in: int, bytes_out: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may do."""

    frame_bytes_max: int
    frame_read_ms: int
    idle_ms: int
    connections_max: int


class Connection(asyncio.BufferedProtocol):
    """See the module."""

    def __init__(
        self,
        dispatch: Dispatch,
        limits: Limits,
        budget: ByteBudget,
        observer: Observer,
        scratch: memoryview,
    ) -> None:
        self._dispatch = dispatch
        self._limits = limits
        self._budget = budget
        self._observer = observer
        self._scratch = scratch

        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._rest = b""  #: Bytes read, of frames that could not be started yet.
        self._frame: memoryview | None = None
        self._frame_filled = 0
        #: How far that frame is charged to the budget, and may be filled.
        self._frame_charged = 0
        #: Bytes that this connection waits for, and those that it was given.
        self._awaited_bytes = self._granted_bytes = 0
        self._going_on = False
        #: Whether a frame in `_rest` waits for the budget or the queue, not for more of its bytes.
        self._behind = False

        self._queue: deque[memoryview] = deque()
        self._answers: deque[Pending] = deque()
        self._busy: asyncio.Task[Answer] | None = None
        self.reading_paused = False
        self._writing_paused = False
        #: Until when no request is begun; 0 if the client need not wait.
        self._held_ms = 0.0
        self._closed = self._finishing = False

        #: Where the client is, with its port and without.
        self.peer = self.host = "?"
        #: What the dispatcher knows of this client: `guest` for itself alone, the rest for people.
        self.guest: object = None
        self.on_lost: set[Callable[[], None]] = set()  #: Called when the connection has ended.
        self.client, self.software, self.produces, self.fetches = "", "", False, False
        #: Whether the client still has to log in; until then it may send little.
        self.stranger = False

        #: When the frame that is being read began, and when anything last happened.
        self.frame_begun_ms: float | None = None
        self.active_ms = self.since_ms = self._now_ms()

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The client's certificate as `ssl` gives it, if it showed one that is trusted."""
        return self._transport.get_extra_info("peercert") if self._transport is not None else None

    @property
    def met(self) -> bool:
        """Whether TLS is agreed on, where it is asked for."""
        return self._transport is not None

    @property
    def awaits_client(self) -> bool:
        """Whether it is the client's turn: to ask something, or to read what it was answered."""
        return not self._answers or self._writing_paused

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._observer.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._budget.forget(self)
        self._budget.answers.release(self)
        held = [len(frame) for frame in self._queue]
        if self._frame is not None:
            held.append(self._frame_charged)
        if self._granted_bytes:
            held.append(self._granted_bytes)

        self._queue.clear()
        self._frame, self._granted_bytes, self._rest = None, 0, b""
        for size in held:
            self._budget.give_back(size)
        # What is begun still holds its frame; each gives back when it has ended, in `_flush`.
        for pending in self._answers:
            pending.future.cancel()
        self._flush()
        self._observer.closed(self)
        for lost in tuple(self.on_lost):
            lost()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._hold_unread()
        self._pace()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._budget.answers.release(self)
        self._pace()
        self._work()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled : self._frame_charged]
        self._scratch[: len(self._rest)] = self._rest
        return self._scratch[len(self._rest) :]

    def buffer_updated(self, count: int) -> None:
        self._observer.moved(count, 0)
        self.active_ms = self._now_ms()
        if self._frame is not None:
            self._frame_filled += count
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self.frame_begun_ms = None
                self._queue.append(frame)
            elif self._frame_filled == self._frame_charged:
                self._charge_step(len(self._frame) - self._frame_charged)
        else:
            self._cut_frames(self._scratch[: len(self._rest) + count])
        self._work()

    # Frames

    def _cut_frames(self, data: memoryview) -> None:
        """Takes whole frames out of what was read, and starts one that the scratch cannot hold."""
        at = 0
        self._behind = False
        while len(data) - at >= _LENGTH_BYTES:
            if self._full:
                self._behind = True
                break
            length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big", signed=True)
            if not 0 < length <= self._frame_bytes_max:
                self._refuse_length(bytes(data[at : at + _LENGTH_BYTES]), length)
                return
            start = at + _LENGTH_BYTES
            have = min(length, len(data) - start)
            if have < length and _LENGTH_BYTES + have < SCRATCH_BYTES:
                break  # What a client promises and does not send is not charged.

            charged = min(length, STEP_BYTES)
            if not self._granted_bytes and not self._budget.take(self, charged, self._on_granted):
                self._awaited_bytes = charged
                self._behind = True
                break
            self._granted_bytes = 0

            frame = _memory(length)
            frame[:have] = data[start : start + have]
            at = start + have
            if have == length:
                self._queue.append(frame)
            else:
                self._frame, self._frame_filled, self._frame_charged = frame, have, charged
                break

        self._rest = bytes(data[at:])
        if self._frame is None and not self._rest:
            self.frame_begun_ms = None
        elif at or self.frame_begun_ms is None:
            self.frame_begun_ms = self.active_ms

    def _charge_step(self, left: int) -> None:
        """Takes the bytes for the next step of the frame that is being read, or waits for them."""
        size = min(left, STEP_BYTES)
        if self._budget.extend(self, size, self._on_granted):
            self._frame_charged += size
        else:
            self._awaited_bytes = size

    def _on_granted(self) -> None:
        if self._frame is None:
            self._granted_bytes = self._awaited_bytes
        else:
            self._frame_charged += self._awaited_bytes
        self._awaited_bytes = 0
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Cuts what was read and had to wait, or reads on."""
        self._going_on = False
        if not self._closed and not self._finishing:
            if self._frame is None:
                self._cut_frames(memoryview(self._rest))
            self._work()

    @property
    def _full(self) -> bool:
        queue_max = _QUEUE_MAX_UNAUTHENTICATED if self.stranger else QUEUE_MAX
        return len(self._queue) + len(self._answers) >= queue_max

    @property
    def _frame_bytes_max(self) -> int:
        if self.stranger:
            return min(FRAME_BYTES_MAX_UNAUTHENTICATED, self._limits.frame_bytes_max)
        return self._limits.frame_bytes_max

    def _refuse_length(self, raw: bytes, length: int) -> None:
        hint = ""
        if raw in _HTTP_BEGINNINGS:
            hint = "; this looks like HTTP, which has a port of its own"
        elif raw.startswith(_TLS_BEGINNING):
            hint = "; this looks like TLS, which is off here"
        elif self.stranger:
            hint = " before login"
        self.violate(
            ProtocolViolation(
                f"a frame of {length} bytes is outside 1 to {self._frame_bytes_max}{hint}"
            )
        )

    def violate(self, error: ProtocolViolation) -> None:
        """Closes the connection because of what the client sent."""
        if not self._closed:
            self._observer.violation(self, error)
            self.close()

    def close(self) -> None:
        """Closes at once; what is not sent is lost."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def admit(self) -> None:
        """The client has logged in: it has the limits of one that is known."""
        self.stranger = False

    def hold(self, wait_ms: int) -> None:
        """Begins no other request of this client for so long: it is over its quota."""
        held_ms, self._held_ms = self._held_ms, max(self._held_ms, self._now_ms() + wait_ms)
        if not held_ms:
            later(wait_ms / 1000, self._let_go, name="wire/let-go")
            self._pace()

    def _let_go(self) -> None:
        left_ms = self._held_ms - self._now_ms()
        if self._closed:
            return
        if left_ms > 1:
            later(left_ms / 1000, self._let_go, name="wire/let-go")
        else:
            self._held_ms = 0.0
            self._work()

    def finish(self) -> None:
        """Closes when what is on its way to the disk is answered; begins nothing new."""
        if self._closed or self._transport is None:
            return
        self._finishing = True
        while self._queue:
            self._budget.give_back(len(self._queue.popleft()))
        if self._busy is not None:
            self._busy.cancel()
        self._pace()
        self._flush()

    # Requests and answers

    def _work(self) -> None:
        """Begins requests until one has to be waited for."""
        while self._queue and self._busy is None and not (self._writing_paused or self._held_ms):
            if self._closed or self._finishing:
                return
            frame = self._queue.popleft()
            try:
                reply = self._dispatch(self, frame)
            except ProtocolViolation as error:
                self.violate(error)
                self._budget.give_back(len(frame))
                return
            except Exception as error:  # noqa: BLE001 - no request may take the node down
                self._fail(error)
                self._budget.give_back(len(frame))
                return
            self._answer(reply, len(frame))
        self._pace()

    def _answer(self, reply: Reply, size: int) -> None:
        if isinstance(reply, PipelinedReply):
            self._answers.append(Pending(reply.future, size, reply.released))
            when_done(reply.future, self._flush)
        elif isinstance(reply, OrderedReply):
            self._wait_for(reply.answer, size, reply.released)
        elif reply is not None and not isinstance(reply, list):
            self._wait_for(reply, size)
        elif self._answers:
            future: asyncio.Future[Answer] = self._loop.create_future()
            future.set_result(reply)
            self._answers.append(Pending(future, size))
        else:
            self._write(reply)
            self._budget.give_back(size)

    def _wait_for(
        self,
        answer: Coroutine[Any, Any, Answer],
        size: int,
        released: "asyncio.Future[Any] | None" = None,
    ) -> None:
        self._busy = begin(answer)
        self._answers.append(Pending(self._busy, size, released))
        self._busy.add_done_callback(self._on_busy_done)

    def _on_busy_done(self, _: object) -> None:
        self._busy = None
        self._flush()
        self._work()

    def _flush(self, _: object = None) -> None:
        """Writes the answers that are at the head of the line and ready."""
        while self._answers and self._answers[0].future.done():
            future, size, released = self._answers.popleft()
            self._settle(future)
            if released is None or released.done():
                self._budget.give_back(size)
            else:
                released.add_done_callback(partial(_give_back, self._budget, size))
        if self._finishing and not self._answers and self._transport is not None:
            self._transport.close()
        self._pace()

    def _settle(self, future: "asyncio.Future[Answer]") -> None:
        """Writes an answer. Without one the next would be taken for it, so the end is better."""
        if future.cancelled():
            if not self._closed and not self._finishing:
                self._fail(RuntimeError("a request was cancelled before it was answered"))
            return
        error = future.exception()
        if error is None:
            self._write(future.result())
        elif isinstance(error, ProtocolViolation):
            self.violate(error)
        else:
            self._fail(cast(Exception, error))

    def _fail(self, error: Exception) -> None:
        self._observer.failed(self, error)
        self.close()

    def _write(self, answer: Answer) -> None:
        if answer is None or self._closed or self._transport is None:
            return
        self.active_ms = self._now_ms()
        self._observer.moved(0, sum(map(len, answer)))
        if len(answer) == 1:
            self._transport.write(answer[0])
        else:
            self._transport.writelines(answer)
        if self._writing_paused:
            self._hold_unread()

    def _hold_unread(self) -> None:
        if not self._closed and self._transport is not None:
            unread = self._transport.get_write_buffer_size()
            self._budget.answers.hold(self, unread, self._give_up)

    def _give_up(self) -> None:
        self.violate(
            ProtocolViolation("the client does not read its answers, and others need the room")
        )

    def _pace(self) -> None:
        """Reads from the socket only while there is room for what comes."""
        if self._closed or self._transport is None:
            return
        waiting = self._behind or self._awaited_bytes > 0
        stopped = self._writing_paused or self._finishing or self._held_ms > 0
        pause = self._full or waiting or stopped
        if self._behind and not (self._full or self._awaited_bytes or self._writing_paused):
            self._go_on_soon()
        if pause and not self.reading_paused:
            self._transport.pause_reading()
        elif not pause and self.reading_paused:
            self._transport.resume_reading()
            self.frame_begun_ms = self._now_ms() if self.frame_begun_ms is not None else None
        self.reading_paused = pause

    def _now_ms(self) -> float:
        return self._loop.time() * 1000


def _memory(size: int) -> memoryview:
    if size < _LAZY_BYTES_MIN:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def _give_back(budget: ByteBudget, size: int, _: object) -> None:
    budget.give_back(size)
