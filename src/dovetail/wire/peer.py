"""A peer: one node, called in frames.

A request is a frame with a header like Kafka's (api key, version, correlation id, client id) and a
body that this room does not interpret. Its answer is the frame that begins with the same
correlation id. Calls are pipelined: any number is in flight at once, and none waits for another.

States of a peer, and what changes them:

    IDLE        no connection, no call          a call → CONNECTING
    CONNECTING  calls wait; tries with backoff   greeted → CONNECTED; no call left → IDLE
    CONNECTED   calls leave at once              broken, overdue or garbage → IDLE or CONNECTING
    CLOSED      for good; every call fails

Promises:
- Each call is answered exactly once: with a frame, or with an error.
- A call that was not sent fails with `Unavailable`: it has not happened. One that was sent and lost
  its connection fails with the error that it named (`Uncertain` if it changes something).
- Calls that fail together fail in the order in which they were made. No call takes longer than
  `call_ms_max`: an overdue call closes its connection, because a node that stopped, or its network,
  looks like one that will still answer.
- The first request on each connection is the greeting. If its answer is not acceptable, nothing
  else is sent to that node, and waiting calls fail with that reason at once.
- Bytes of calls, and the length of an answer, are checked before memory is taken.

Not here: what is safe to repeat. This room never sends a call twice.
"""

import asyncio
import random
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from dovetail.addresses import Address
from dovetail.background import Alarm, keep_task
from dovetail.buffers import Buffer
from dovetail.errors import (
    DovetailError,
    Forbidden,
    InvalidInput,
    ProtocolViolation,
    Throttled,
    Unavailable,
)
from dovetail.foreign import KAFKA_TEXT_BYTES_MAX, encoded
from dovetail.supervision import current
from dovetail.wire.connection import SCRATCH_BYTES
from dovetail.wire.login import NOBODY, ClientLogin, conversation

Answered = TypeVar("Answered")

_LENGTH_BYTES = 4
_CORRELATION_BYTES = 4
_CORRELATION_MASK = 0x7FFFFFFF

#: Length of the frame, api key, version, correlation id, length of the client id.
_HEADER = struct.Struct("!ihhih")

#: What a call costs beside its bytes: a few objects. With it, small calls are bounded in number.
_CALL_BYTES = 512

#: Why there is no connection, as long as no attempt has failed.
_CONNECTING = "still connecting"


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How long a peer is waited for, and how much is held for it."""

    #: From the call to its answer. A group commit takes milliseconds, a busy disk a second.
    call_ms_max: int = 5_000
    #: From the first packet to the answer to the greeting; a live node needs milliseconds.
    connect_ms_max: int = 2_000
    #: The wait after the first failed attempt; it doubles, and a random half of it is taken off.
    backoff_ms_min: int = 25
    #: The longest wait. A node that comes back is found within this.
    backoff_ms_max: int = 1_000
    #: How long calls wait while nobody listens there; short where there are others to ask.
    refused_ms_max: int = 5_000
    #: Bytes of calls that wait or are not answered; a second of a busy 1 Gbit/s line is 120 MB.
    bytes_in_flight_max: int = 64 * 1024 * 1024
    #: Largest request: what a node takes by default.
    request_bytes_max: int = 100 * 1024 * 1024
    #: Largest answer: an entry has at most 128 MiB, and comes with some others.
    answer_bytes_max: int = 160 * 1024 * 1024
    #: How connections are encrypted, and who logs in.
    login: ClientLogin = NOBODY
    #: Whether errors ask what people get wrong; not between nodes.
    hints: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent; `lost` is the error of a request that was sent and not answered."""

    api_key: int
    api_version: int
    body: Sequence[Buffer]
    lost: type[DovetailError]


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first request on a connection; `judge` says why the answer to it is refused, if it is.

    What it returns fails the calls that wait. What it raises may pass: the peer tries again.
    """

    request: Request
    judge: Callable[[memoryview], DovetailError | None]


#: Gets what is behind the correlation id. Raises `ProtocolViolation` if that is not an answer, and
#: before anybody heard of it; the connection is dropped then, and the call fails as lost.
OnAnswer = Callable[[memoryview], None]
OnError = Callable[[DovetailError], None]


@dataclass(slots=True)
class _Call:
    """A request, and the callback that waits for its answer."""

    request: Request
    size: int
    deadline_s: float
    on_answer: OnAnswer
    on_error: OnError


class Peer:
    """One node, as its clients see it. See the module."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        greeting: Greeting,
        client_id: str,
        settings: PeerSettings,
        rng: random.Random,
    ) -> None:
        """Does nothing yet: the first call connects. Call it inside the event loop."""
        self._host = host
        self._port = port
        self._greeting = greeting
        self._client_id = encoded(client_id, "client id", bytes_max=KAFKA_TEXT_BYTES_MAX)
        self.settings = settings
        self._rng = rng
        self._loop = asyncio.get_running_loop()

        self.address = str(Address(host, port))
        self._line: _Line | None = None
        self._waiting: deque[_Call] = deque()
        self._bytes_in_flight = 0

        self._connector: asyncio.Task[None] | None = None
        self._attempts_failed = 0
        self._attempt_next_s = 0.0
        self._why_not = _CONNECTING
        #: Since when all attempts were refused.
        self._refused_since_s = float("inf")
        self._timer = Alarm(self._on_time, name="wire/deadlines", of=self.address)
        self._supervisor = current()
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a call would leave at once."""
        return self._line is not None

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of calls that wait or are not answered."""
        return self._bytes_in_flight

    def call(self, request: Request, *, on_answer: OnAnswer, on_error: OnError) -> None:
        """Sends now, or once connected; then one of the two is called, never from inside here.

        Raises, with nothing done: `Throttled` if too much is on its way, `InvalidInput` if the
        request is larger than a node takes, `Unavailable` if the peer is closed.
        """
        size = _CALL_BYTES + len(self._client_id) + sum(map(len, request.body))
        if self._closed:
            raise Unavailable(f"the connection to {self.address} was closed by this side")
        if size > self.settings.request_bytes_max:
            raise InvalidInput(
                f"a request of {size} bytes is above the limit of {self.settings.request_bytes_max}"
            )
        held = self._bytes_in_flight
        if held and held + size > self.settings.bytes_in_flight_max:
            raise Throttled(f"{held} bytes sent to {self.address} are unanswered; try again later")

        self._bytes_in_flight += size
        deadline_s = self._loop.time() + self.settings.call_ms_max / 1000
        call = _Call(request, size, deadline_s, on_answer, on_error)

        if self._line is not None:
            self._line.send(call)
        else:
            self._waiting.append(call)
            self._connect_soon()
        if not self._timer.is_set:
            self._timer.set(self.settings.call_ms_max / 1000)

    async def ask(
        self, request: Request, decode: Callable[[memoryview], Answered | DovetailError]
    ) -> Answered:
        """The decoded answer; raises it if it is an error, and whatever `call` fails with."""
        future: asyncio.Future[Answered | DovetailError] = self._loop.create_future()

        def resolve(frame: memoryview) -> None:
            _settle(future, decode(frame))

        def reject(error: DovetailError) -> None:
            _settle(future, error)

        self.call(request, on_answer=resolve, on_error=reject)
        answer = await future
        if isinstance(answer, DovetailError):
            raise answer
        return answer

    async def close(self) -> None:
        """Ends the connection; what is on its way is lost, what waits has not happened."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        if self._connector is not None:
            self._connector.cancel()
            await asyncio.gather(self._connector, return_exceptions=True)
        line = self._line
        if line is not None:
            line.drop("closed by this side")
        self._fail_waiting(Unavailable(f"the connection to {self.address} was closed by this side"))
        if line is not None:
            await line.ended.wait()

    def head(self, request: Request, correlation_id: int) -> bytes:
        """The bytes before the body of a request."""
        client_id = self._client_id
        body_bytes = sum(map(len, request.body))
        length = _HEADER.size - _LENGTH_BYTES + len(client_id) + body_bytes
        fixed = (request.api_key, request.api_version, correlation_id, len(client_id))
        return _HEADER.pack(length, *fixed) + client_id

    def release(self, call: _Call) -> None:
        """Takes a call out of the account: it is about to be answered or to fail."""
        self._bytes_in_flight -= call.size

    def lost(self, line: "_Line") -> None:
        """Takes note that a connection is gone; its calls fail next."""
        if line is self._line:
            self._line = None
            self._why_not = _CONNECTING
            self._attempt_next_s = self._loop.time() + self._backoff_s()

    # Connecting

    def _connect_soon(self) -> None:
        if self._connector is None:
            # It belongs to the owner of the peer, whoever calls.
            with self._supervisor.supervising():
                self._connector = keep_task(
                    self._connect_for_calls, name="wire/connect", of=self.address
                )

    async def _connect_for_calls(self) -> None:
        """Tries until there is a connection, or no call waits for one."""
        while self._waiting:
            await asyncio.sleep(self._attempt_next_s - self._loop.time())
            line = await self._attempt()
            if line is None:
                self._attempts_failed += 1
                patience_s = self.settings.refused_ms_max / 1000
                if self._loop.time() - self._refused_since_s >= patience_s:
                    gone = Unavailable(f"no connection to {self.address}: {self._why_not}")
                    self._fail_waiting(gone)
                self._attempt_next_s = self._loop.time() + self._backoff_s()
                continue

            self._attempts_failed = 0
            self._line = line
            while self._waiting and self._line is not None:
                self._line.send(self._waiting.popleft())
        self._connector = None

    async def _attempt(self) -> "_Line | None":
        line = _Line(self)
        greeted, since_s, self._refused_since_s = False, self._refused_since_s, float("inf")
        try:
            async with asyncio.timeout(self.settings.connect_ms_max / 1000):
                await self._loop.create_connection(
                    lambda: line, self._host, self._port, ssl=self.settings.login.tls
                )
                refusal: DovetailError | None = await self._log_in(line)
                if refusal is None:
                    refusal = self._greeting.judge(await line.greet(self._greeting.request))

        except TimeoutError:
            self._why_not = f"no greeting within {self.settings.connect_ms_max} ms"
        except (OSError, DovetailError) as error:
            self._why_not = f"{type(error).__name__}: {error}"
            if self.settings.hints:
                self._why_not = f"{self._why_not}. {self.settings.login.hint(error)}"
            if isinstance(error, ConnectionRefusedError):
                self._refused_since_s = min(since_s, self._loop.time())
        else:
            greeted = refusal is None and not line.closed
            if refusal is not None:
                self._why_not = str(refusal)
                self._fail_waiting(refusal)
        finally:
            if not greeted:
                line.drop(self._why_not)
        return line if greeted else None

    async def _log_in(self, line: "_Line") -> Forbidden | None:
        """Why the node does not let this client in, if it does not."""
        talk = conversation(self.settings.login)
        try:
            key, version, body = next(talk)
            while True:
                answer = await line.greet(Request(key, version, [body], Unavailable))
                key, version, body = talk.send(answer)
        except StopIteration:
            return None
        except Forbidden as refusal:
            return refusal

    def _backoff_s(self) -> float:
        doubled_ms = self.settings.backoff_ms_min * (1 << min(self._attempts_failed, 20))
        longest_ms = min(doubled_ms, self.settings.backoff_ms_max)
        return longest_ms / 1000 * self._rng.uniform(0.5, 1.0)

    def _on_time(self) -> None:
        """Ends what is overdue. Calls have one time limit, so the oldest is the first."""
        now_s = self._loop.time()
        line = self._line
        if line is not None and line.deadline_s is not None and line.deadline_s <= now_s:
            line.drop(f"no answer within {self.settings.call_ms_max} ms")
        while self._waiting and self._waiting[0].deadline_s <= now_s:
            self._fail(self._waiting.popleft(), self._not_connected())
        oldest_s = self._line.deadline_s if self._line is not None else None
        if oldest_s is None and self._waiting:
            oldest_s = self._waiting[0].deadline_s
        if oldest_s is not None and not self._timer.is_set:
            self._timer.set(oldest_s - now_s)

    def _not_connected(self) -> Unavailable:
        within = f"within {self.settings.call_ms_max} ms"
        return Unavailable(f"no connection to {self.address} {within}: {self._why_not}")

    def _fail_waiting(self, error: DovetailError) -> None:
        failing, self._waiting = self._waiting, deque()
        for call in failing:
            self._fail(call, error)

    def _fail(self, call: _Call, error: DovetailError) -> None:
        self.release(call)
        call.on_error(error)


class _Line(asyncio.BufferedProtocol):
    """One connection: the calls that were sent on it, and its bytes cut into answers.

    Small answers are cut from a scratch buffer. One that does not end there gets a buffer of its
    size, once that was checked, which the socket fills directly.
    """

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        #: Calls by correlation id, oldest first.
        self._calls: dict[int, _Call] = {}
        self._correlation_id = 0
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._scratch_filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self.closed = False
        #: Set when the socket is given back, which is a little later than `closed`.
        self.ended = asyncio.Event()

    @property
    def deadline_s(self) -> float | None:
        """When the oldest call is overdue."""
        oldest = next(iter(self._calls.values()), None)
        return None if oldest is None else oldest.deadline_s

    def send(self, call: _Call) -> None:
        """Writes the request, whose buffers are not copied here."""
        assert self._transport is not None
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        self._calls[self._correlation_id] = call
        request = call.request
        self._transport.writelines([self._peer.head(request, self._correlation_id), *request.body])

    async def greet(self, request: Request) -> memoryview:
        """Sends the first request; raises `Unavailable` if the connection ends instead."""
        future: asyncio.Future[memoryview | DovetailError] = (
            asyncio.get_running_loop().create_future()
        )

        def settle(answer: memoryview | DovetailError) -> None:
            _settle(future, answer)

        self.send(_Call(request, 0, float("inf"), settle, settle))
        answer = await future
        if isinstance(answer, DovetailError):
            raise answer
        return answer

    def drop(self, why: str, *, first: _Call | None = None) -> None:
        """Ends the connection and fails what was sent on it, in order.

        `first` is a call whose answer was read and refused.
        """
        if self.closed:
            return
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        self._peer.lost(self)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._peer.release(call)
        for call in (*(() if first is None else (first,)), *calls.values()):
            call.on_error(call.request.lost(f"{self._peer.address} did not answer: {why}"))

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:  # Given up while the system was connecting.
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(f"the connection broke ({error})" if error else "it closed the connection")
        self.ended.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return self._scratch[self._scratch_filled :]

    def buffer_updated(self, count: int) -> None:
        try:
            if self._frame is not None:
                self._frame_filled += count
                if self._frame_filled == len(self._frame):
                    frame, self._frame = self._frame, None
                    self._deliver(frame)
            else:
                self._cut_frames(self._scratch_filled + count)
        except ProtocolViolation as violation:
            self.drop(f"what it sent is no answer: {violation}")

    def _cut_frames(self, end: int) -> None:
        data, at = self._scratch, 0
        while end - at >= _LENGTH_BYTES and not self.closed:
            start = at + _LENGTH_BYTES
            length = int.from_bytes(data[at:start], "big", signed=True)
            if not _CORRELATION_BYTES <= length <= self._peer.settings.answer_bytes_max:
                raise ProtocolViolation(
                    f"an answer of {length} bytes is outside the bounds {_CORRELATION_BYTES} to "
                    f"{self._peer.settings.answer_bytes_max}"
                )

            at = min(start + length, end)
            if at == start + length:
                self._deliver(memoryview(bytes(data[start:at])))
            else:
                self._frame = memoryview(bytearray(length))
                self._frame_filled = at - start
                self._frame[: self._frame_filled] = data[start:at]
                break

        self._scratch_filled = end - at
        data[: self._scratch_filled] = bytes(data[at:end])

    def _deliver(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:_CORRELATION_BYTES], "big", signed=True)
        call = self._calls.pop(correlation_id, None)
        if call is None:
            raise ProtocolViolation(f"nothing was asked under correlation id {correlation_id}")
        self._peer.release(call)
        try:
            call.on_answer(frame[_CORRELATION_BYTES:])
        except ProtocolViolation as violation:
            self.drop(f"what it sent is no answer: {violation}", first=call)


def _settle(future: "asyncio.Future[Answered]", answer: Answered) -> None:
    """Gives the answer, unless who asked has gone."""
    if not future.done():
        future.set_result(answer)
