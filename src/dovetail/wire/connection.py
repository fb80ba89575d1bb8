"""One client: bytes in, frames out to the dispatcher, answers back in order.

Reading. The socket fills a scratch buffer, from which small frames are cut. A frame that does not
end there gets a buffer of exactly its size, once its length was checked and its bytes were taken
from the node's budget, and the socket fills the rest of it directly: most of a batch of a megabyte
is never copied on its way in, and its slices can be written to the disk as they are. The scratch
is shared by all connections, because one is read at a time; an idle one holds no buffer at all.

Order. A connection's requests are handled one after another, as Kafka does. The exception is a
reply that is *pipelined*: the next request is begun while it waits for the disk. Answers always
leave in the order of the requests.

States of reading: OPEN ⇄ PAUSED (budget, queue or slow reader) → CLOSED.
Survives: any bytes whatever; the worst is that this connection is closed, with a line in the log.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Protocol, cast

from dovetail.buffers import Buffer
from dovetail.errors import ProtocolViolation
from dovetail.wire.budget import ByteBudget

#: The scratch buffer: larger than nearly all requests but Produce, and what one read brings.
SCRATCH_BYTES = 64 * 1024

#: Requests of one connection that are read but not answered; clients have 5, kafkajs up to 100.
QUEUE_MAX = 100

_LENGTH_BYTES = 4


class PipelinedReply:
    """An answer that waits for something while the next request is already begun."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[list[Buffer] | None]") -> None:
        self.future = future


Reply = list[Buffer] | None | PipelinedReply | Coroutine[None, None, list[Buffer] | None]


class Dispatch(Protocol):
    """What the frames mean."""

    def __call__(self, connection: "Connection", frame: memoryview) -> Reply:
        """The answer's buffers, None for no answer, or one of the two ways to answer later.

        Raises `ProtocolViolation` to have the connection closed.
        """
        ...


class Observer(Protocol):
    """Who is told what happens at the door, for metrics and the log."""

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
        #: Bytes that begin a frame which could not be started yet.
        self._rest = b""
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._granted = False
        self._queue: deque[memoryview] = deque()
        self._answers: deque[tuple[asyncio.Future[list[Buffer] | None], int]] = deque()
        self._busy: asyncio.Task[list[Buffer] | None] | None = None
        self.reading_paused = False
        self._writing_paused = False
        self._closed = False
        self._finishing = False
        self.peer = "?"
        #: When the frame that is being read began, and when anything last happened.
        self.frame_begun_ms: float | None = None
        self.active_ms = self._now_ms()

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._observer.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._budget.forget(self)
        if self._busy is not None:
            self._busy.cancel()
        held = sum(len(frame) for frame in self._queue)
        held += sum(size for _, size in self._answers)
        held += len(self._frame) if self._frame is not None else 0
        for future, _ in self._answers:
            future.cancel()
        self._answers.clear()
        self._queue.clear()
        self._frame = None
        self._budget.give_back(held)
        self._observer.closed(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._pace()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._pace()
        self._work()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
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
        else:
            self._cut_frames(self._scratch[: len(self._rest) + count])
        self._work()

    # Frames

    def _cut_frames(self, data: memoryview) -> None:
        """Takes whole frames out of what was read, and starts one that is not whole."""
        at = 0
        while len(data) - at >= _LENGTH_BYTES:
            length = int.from_bytes(data[at : at + _LENGTH_BYTES], "big", signed=True)
            if not 0 < length <= self._limits.frame_bytes_max:
                self._refuse_length(bytes(data[at : at + _LENGTH_BYTES]), length)
                return
            if not self._granted and not self._budget.take(self, length, self._on_granted):
                break  # The rest stays as it is; reading goes on when there is room.
            self._granted = False
            start = at + _LENGTH_BYTES
            have = min(length, len(data) - start)
            frame = memoryview(bytearray(length))
            frame[:have] = data[start : start + have]
            at = start + have
            if have == length:
                self._queue.append(frame)
            else:
                self._frame, self._frame_filled = frame, have
                break
        self._rest = bytes(data[at:])
        begun = self._frame is not None or self._rest
        self.frame_begun_ms = (self.frame_begun_ms or self.active_ms) if begun else None

    def _on_granted(self) -> None:
        self._granted = True
        self._cut_frames(memoryview(self._rest))
        self._work()

    def _refuse_length(self, raw: bytes, length: int) -> None:
        hint = ""
        if raw[:3] in (b"GET", b"POS", b"HEA", b"PUT"):
            hint = "; this looks like HTTP, which has a port of its own"
        elif raw[:2] == b"\x16\x03":
            hint = "; this looks like TLS, which is not switched on here"
        self.violate(
            ProtocolViolation(
                f"a frame of {length} bytes; 1 to {self._limits.frame_bytes_max} are taken{hint}"
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

    def finish(self) -> None:
        """Closes when what is on its way to the disk is answered; begins nothing new."""
        if self._closed or self._transport is None:
            return
        self._finishing = True
        self._budget.give_back(sum(len(frame) for frame in self._queue))
        self._queue.clear()
        if self._busy is not None:
            self._busy.cancel()
        self._pace()
        self._flush()

    # Requests and answers

    def _work(self) -> None:
        """Begins requests until one has to be waited for."""
        while self._queue and self._busy is None and not self._writing_paused:
            if self._closed or self._finishing:
                return
            frame = self._queue.popleft()
            try:
                reply = self._dispatch(self, frame)
            except ProtocolViolation as error:
                self._budget.give_back(len(frame))
                self.violate(error)
                return
            except Exception as error:  # noqa: BLE001 - no request may take the node down
                self._budget.give_back(len(frame))
                self._observer.failed(self, error)
                self.close()
                return
            self._answer(reply, len(frame))
        self._pace()

    def _answer(self, reply: Reply, size: int) -> None:
        if isinstance(reply, PipelinedReply):
            self._answers.append((reply.future, size))
            reply.future.add_done_callback(self._flush)
        elif reply is not None and not isinstance(reply, list):
            self._busy = self._loop.create_task(reply)
            self._answers.append((self._busy, size))
            self._busy.add_done_callback(self._on_busy_done)
        elif self._answers:
            future: asyncio.Future[list[Buffer] | None] = self._loop.create_future()
            future.set_result(reply)
            self._answers.append((future, size))
        else:
            self._budget.give_back(size)
            self._write(reply)

    def _on_busy_done(self, _: object) -> None:
        self._busy = None
        self._flush()
        self._work()

    def _flush(self, _: object = None) -> None:
        """Writes the answers that are at the head of the line and ready."""
        while self._answers and self._answers[0][0].done():
            future, size = self._answers.popleft()
            self._budget.give_back(size)
            if future.cancelled() or self._closed:
                continue
            error = future.exception()
            if isinstance(error, ProtocolViolation):
                self.violate(error)
            elif error is not None:
                self._observer.failed(self, cast(Exception, error))
                self.close()
            else:
                self._write(future.result())
        if self._finishing and not self._answers and self._transport is not None:
            self._transport.close()
        self._pace()

    def _write(self, answer: list[Buffer] | None) -> None:
        if answer is None or self._closed or self._transport is None:
            return
        self.active_ms = self._now_ms()
        self._observer.moved(0, sum(map(len, answer)))
        if len(answer) == 1:
            self._transport.write(answer[0])
        else:
            self._transport.writelines(answer)

    def _pace(self) -> None:
        """Reads from the socket only while there is room for what comes."""
        if self._closed or self._transport is None:
            return
        full = len(self._queue) + len(self._answers) >= QUEUE_MAX
        waits_for_budget = self._frame is None and len(self._rest) >= _LENGTH_BYTES
        pause = full or waits_for_budget or self._writing_paused or self._finishing
        if pause and not self.reading_paused:
            self._transport.pause_reading()
        elif not pause and self.reading_paused:
            self._transport.resume_reading()
            self.frame_begun_ms = self._now_ms() if self.frame_begun_ms is not None else None
        self.reading_paused = pause

    def _now_ms(self) -> float:
        return self._loop.time() * 1000
