"""Private calls: requests of our own nodes and clients, in the same frames as Kafka's requests.

A call is a frame like Kafka's, under an api key that Kafka will not use:

    header    api key, version, correlation id, client id: version 1 of Kafka's request header
    4 bytes   length of the body
    body      MessagePack, one message of a `CallTable`
    payloads  raw bytes, one after another; their lengths are in the body

and an answer is the correlation id followed by the same three. So payloads are never copied into a
message, on either side. Messages travel as arrays; a newer one may have more elements at its end.

Keys: `Hello` has the first. Each service has its own range, and its table of messages in its own
room (`storage/calls.py`, `timeline/frames.py`, `log/transactions/calls.py`,
`log/share/calls.py`, `log/ends/calls.py`, `coordination/calls.py`).

Version: all calls share one, `VERSION`. A connection begins with `Hello`, whose first elements
never change; the node answers with its version, its services and its time. Nodes of different
versions do not talk to each other; both sides report that.

Errors: an error travels as its class's name and its text, and is raised again as the same class. A
class that the receiver does not know becomes `Unavailable`.

Limits: this module checks all incoming data before any code acts on it: numbers against the bounds
in the message types, lengths against what follows, bodies against the limit of their table. A
violation raises `ProtocolViolation`.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from dovetail import errors
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Unavailable
from dovetail.wire.peer import Greeting
from dovetail.wire.peer import Request as WireRequest

#: What this node speaks; raised with every change that an older node would misunderstand.
VERSION: Final = 3

#: The key of `Hello`, and the keys of each service. Kafka's own end far below.
HELLO_KEY: Final = 10_000
STORAGE_KEYS: Final = range(10_001, 11_000)
TIMELINE_KEYS: Final = range(11_000, 12_000)
TRANSACTION_KEYS: Final = range(12_000, 12_100)
SHARE_KEYS: Final = range(12_100, 12_200)
ENDS_KEYS: Final = range(12_200, 12_300)
COORDINATION_KEYS: Final = range(12_300, 12_400)

#: Longest text of an error that travels.
ERROR_TEXT_MAX: Final = 2_048

#: Largest body of `Hello`: a newer node may say more than its version.
_HELLO_BYTES_MAX: Final = 1_024

_API_KEY_BYTES: Final = 2
_NO_CLIENT: Final = -1

#: Api key, version, correlation id, length of the client id.
_HEADER: Final = struct.Struct("!hhih")
_BODY_LENGTH: Final = struct.Struct("!I")
#: Length of the frame, correlation id, length of the body.
_ANSWER_HEAD: Final = struct.Struct("!iiI")
_FRAME_LENGTH_BYTES: Final = 4
#: Where in an answer's frame that begins which `decode_answer` reads.
ANSWER_START: Final = _ANSWER_HEAD.size - _BODY_LENGTH.size

_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Name = Annotated[str, Meta(max_length=255)]


# Messages


class Request(Struct, array_like=True, frozen=True):
    """What is asked."""


class Answer(Struct, array_like=True, frozen=True, tag=0):
    """What is answered, unless it failed."""


class Failure(Struct, array_like=True, frozen=True, tag=1):
    """An error that travels."""

    name: str
    text: str


class Hello(Request, frozen=True):
    """The first request of a connection; its first element is the version that is spoken."""

    version: _Count


class Welcome(Answer, frozen=True):
    """The version that the node speaks, its name, its time, and what it serves to this client."""

    version: _Count
    node: _Name
    now_ms: int
    services: list[_Name]
    #: Of a storage node's disk, so that nobody takes another one at this address for it.
    identity: _Name = ""


Answered = TypeVar("Answered", bound=Answer)

_encoder = msgspec.msgpack.Encoder()
_error_classes: dict[str, type[DovetailError]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, DovetailError)
}


@cache
def _request_decoder(kind: type[Request]) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind)


@cache
def _answer_decoder(kind: type[Answer]) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind | Failure)


# Requests


class Call(NamedTuple):
    """A request as it came in."""

    correlation_id: int
    client_id: str
    message: Request
    payloads: memoryview


class CallTable:
    """The messages of one service, by their keys."""

    def __init__(
        self,
        service: str,
        keys: range,
        requests: Mapping[int, type[Request]],
        *,
        body_bytes_max: int,
    ) -> None:
        self.service = service
        self.requests = requests
        self._body_bytes_max = body_bytes_max
        self._keys = {kind: key for key, kind in requests.items()}
        assert all(key in keys for key in requests)
        assert len(self._keys) == len(requests)

    def key(self, kind: type[Request]) -> int:
        """The api key of a message."""
        return self._keys[kind]

    def request(
        self, message: Request, payloads: Sequence[Buffer] = (), *, lost: type[DovetailError]
    ) -> WireRequest:
        """A request to send; `lost` is its error if it was sent and not answered."""
        key = self._keys[type(message)]
        return WireRequest(key, VERSION, encode_request(message, payloads), lost)

    def read_back(self, request: WireRequest) -> Request:
        """The message of a request, as its receiver will read it. Raises `ProtocolViolation`."""
        kind = self.requests[request.api_key]
        body, _ = _split(memoryview(request.body[0]), body_bytes_max=self._body_bytes_max)
        message: Request = _decode(_request_decoder(kind), body, kind.__name__)
        return message

    def decode(self, frame: memoryview) -> Call:
        """The request in a frame. Raises `ProtocolViolation`."""
        key, version, correlation_id, client_id, start = _header(frame)
        kind = self.requests.get(key)
        if kind is None:
            raise ProtocolViolation(f"{self.service}: call {key} is unknown")
        if version != VERSION:
            raise ProtocolViolation(
                f"{self.service}: {kind.__name__} in version {version}; this node speaks {VERSION}"
            )
        body, payloads = _split(frame[start:], body_bytes_max=self._body_bytes_max)
        message = _decode(_request_decoder(kind), body, kind.__name__)
        return Call(correlation_id, client_id, message, payloads)


def api_key_of(frame: memoryview) -> int:
    """The key of any request, ours or Kafka's."""
    return int.from_bytes(frame[:_API_KEY_BYTES], "big", signed=True)


def encode_request(message: Request, payloads: Sequence[Buffer] = ()) -> list[Buffer]:
    """What stands behind the header of a request."""
    body = _encoder.encode(message)
    return [_BODY_LENGTH.pack(len(body)) + body, *payloads]


def _header(frame: memoryview) -> tuple[int, int, int, str, int]:
    """Key, version, correlation id and client id, and where the body begins."""
    if len(frame) < _HEADER.size:
        raise ProtocolViolation(f"a call of {len(frame)} bytes has no header")
    key, version, correlation_id, client_bytes = _HEADER.unpack_from(frame)
    start = _HEADER.size + max(0, client_bytes)
    if client_bytes < _NO_CLIENT or start > len(frame):
        raise ProtocolViolation(f"a client id of {client_bytes} bytes does not fit its frame")
    try:
        client_id = str(frame[_HEADER.size : start], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolViolation(f"the client id is not UTF-8: {error}") from error
    return key, version, correlation_id, client_id, start


# Hello


def hello() -> WireRequest:
    """The first request of a connection."""
    return WireRequest(HELLO_KEY, VERSION, encode_request(Hello(VERSION)), Unavailable)


def answer_hello(
    frame: memoryview, *, node: str, now_ms: int, services: list[str], identity: str = ""
) -> list[Buffer]:
    """The answer to a frame with `Hello`, of any version. Raises `ProtocolViolation`."""
    _, _, correlation_id, _, start = _header(frame)
    body, _ = _split(frame[start:], body_bytes_max=_HELLO_BYTES_MAX)
    _decode(_request_decoder(Hello), body, "Hello")
    return encode_answer(correlation_id, Welcome(VERSION, node, now_ms, services, identity))


def greeting(
    address: str, service: str, judge: Callable[[Welcome], DovetailError | None] = lambda _: None
) -> Greeting:
    """Has a peer talk only to a node that speaks our version and serves `service`.

    `judge` says what else is wrong with the node, if anything.
    """

    def check(data: memoryview) -> DovetailError | None:
        try:
            welcome = decode_answer(Welcome, data)
        except ProtocolViolation as violation:
            return Unavailable(f"{address} is not a Dovetail node: {violation}")
        if isinstance(welcome, DovetailError):
            return welcome
        if welcome.version != VERSION:
            return Unavailable(
                f"{address} speaks version {welcome.version} of the private calls, this side "
                f"{VERSION}; run the same release on both"
            )
        if service not in welcome.services:
            # A node that starts will serve it in a moment: raised, so that the peer tries again.
            raise Unavailable(f"{address} serves no {service}")
        return judge(welcome)

    return Greeting(hello(), check)


# Answers


def encode_answer(
    correlation_id: int, message: Answer | Failure, payloads: Sequence[Buffer] = ()
) -> list[Buffer]:
    """A whole answer, with its length."""
    body = _encoder.encode(message)
    length = _ANSWER_HEAD.size - _FRAME_LENGTH_BYTES + len(body) + sum(map(len, payloads))
    return [_ANSWER_HEAD.pack(length, correlation_id, len(body)) + body, *payloads]


def decode_answer(kind: type[Answered], data: memoryview) -> Answered | DovetailError:
    """The message behind a correlation id, or an error that has travelled.

    Raises `ProtocolViolation`.
    """
    found = decode_answer_with_payloads(kind, data)
    if isinstance(found, DovetailError):
        return found
    message, payloads = found
    if payloads:
        raise ProtocolViolation(
            f"{len(payloads)} unexpected bytes after an answer without a payload"
        )
    return message


def decode_answer_with_payloads(
    kind: type[Answered], data: memoryview
) -> tuple[Answered, memoryview] | DovetailError:
    """As `decode_answer`, with the payloads behind the message."""
    body, payloads = _split(data, body_bytes_max=len(data))
    message: Answered | Failure = _decode(_answer_decoder(kind), body, kind.__name__)
    if isinstance(message, Failure):
        return error_of(message)
    return message, payloads


# Errors


def failure_of(error: DovetailError) -> Failure:
    """An error, ready to travel."""
    return Failure(type(error).__name__, str(error)[:ERROR_TEXT_MAX])


def error_of(failure: Failure) -> DovetailError:
    """An error that has travelled, as what it was."""
    found = _error_classes.get(failure.name)
    if found is None:
        return Unavailable(f"{failure.name[:100]}: {failure.text}")
    return found(failure.text)


# Payloads


def cut_payloads(payloads: memoryview, lengths: list[int]) -> list[memoryview]:
    """The payloads, one by one. Raises `ProtocolViolation` unless the lengths add up exactly."""
    ends = list(accumulate(lengths))
    expected = ends[-1] if ends else 0
    if expected != len(payloads):
        raise ProtocolViolation(f"the payloads have {len(payloads)} bytes instead of {expected}")
    return [payloads[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _split(data: memoryview, *, body_bytes_max: int) -> tuple[memoryview, memoryview]:
    start = _BODY_LENGTH.size
    if len(data) < start:
        raise ProtocolViolation(f"a private message of {len(data)} bytes has no length")
    (length,) = _BODY_LENGTH.unpack_from(data)
    if length > len(data) - start:
        raise ProtocolViolation(f"a body of {length} bytes, of which {len(data) - start} arrived")
    if length > body_bytes_max:
        raise ProtocolViolation(f"a body of {length} bytes is above the limit of {body_bytes_max}")
    return data[start : start + length], data[start + length :]


def _decode(decoder: "msgspec.msgpack.Decoder[Any]", body: memoryview, name: str) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"{name}: {error}") from error
