"""Frames of timelines to messages and back. See `frames` for what they mean."""

import struct
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from dovetail import errors
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Unavailable
from dovetail.timeline.frames import (
    ERROR_TEXT_MAX,
    REQUESTS,
    VERSION,
    Answer,
    Failure,
    Request,
    TimelineKey,
)

#: Api key, version, correlation id, length of the client id.
_HEADER: Final = struct.Struct("!hhih")
_ANSWER_HEAD: Final = struct.Struct("!ii")
_CORRELATION_BYTES: Final = 4
_KEY_FIRST: Final = min(TimelineKey)
_KEY_END: Final = _KEY_FIRST + 1_000

Answered = TypeVar("Answered", bound=Answer)

_encoder = msgspec.msgpack.Encoder()
_request_decoders: dict[int, msgspec.msgpack.Decoder[Any]] = {
    key: msgspec.msgpack.Decoder(kind) for key, kind in REQUESTS.items()
}
_answer_decoders: dict[type[Answer], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind | Failure) for kind in Answer.__subclasses__()
}
_error_classes: dict[str, type[DovetailError]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, DovetailError)
}


def is_timeline(frame: memoryview) -> bool:
    """Whether a frame is a request to timelines, for whoever stands at the door."""
    return _KEY_FIRST <= int.from_bytes(frame[:2], "big", signed=True) < _KEY_END


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came in."""

    key: TimelineKey
    correlation_id: int
    client_id: str
    message: Request


def decode_request(frame: memoryview) -> Asked:
    """The request in a frame. Raises `ProtocolViolation`."""
    if len(frame) < _HEADER.size:
        raise ProtocolViolation(f"a request of {len(frame)} bytes has no header")
    api_key, version, correlation_id, client_bytes = _HEADER.unpack_from(frame)
    start = _HEADER.size + max(0, client_bytes)
    if start > len(frame):
        raise ProtocolViolation(f"a client id of {client_bytes} bytes does not fit its frame")
    decoder = _request_decoders.get(api_key)
    if decoder is None:
        raise ProtocolViolation(f"timeline request {api_key} is not known here")
    key = TimelineKey(api_key)
    if version != VERSION and key is not TimelineKey.HELLO:
        raise ProtocolViolation(
            f"timeline request {key.name} in version {version}; this node speaks {VERSION}"
        )
    try:
        client_id = bytes(frame[_HEADER.size : start]).decode()
        message = decoder.decode(frame[start:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"timeline request {key.name}: {error}") from error
    return Asked(key, correlation_id, client_id, message)


def encode_request(message: Request) -> list[Buffer]:
    """What stands behind the header of a request."""
    return [_encoder.encode(message)]


def encode_answer(correlation_id: int, message: Answer | Failure) -> list[Buffer]:
    """A whole answer, with its length."""
    body = _encoder.encode(message)
    return [_ANSWER_HEAD.pack(_CORRELATION_BYTES + len(body), correlation_id) + body]


def decode_answer(kind: type[Answered], data: memoryview) -> Answered | DovetailError:
    """What stands behind a correlation id, an error that has travelled among it.

    Raises `ProtocolViolation`.
    """
    try:
        message: Answered | Failure = _answer_decoders[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"{kind.__name__}: {error}") from error
    return error_of(message) if isinstance(message, Failure) else message


def failure_of(error: DovetailError) -> Failure:
    """An error, ready to travel."""
    return Failure(type(error).__name__, str(error)[:ERROR_TEXT_MAX])


def error_of(failure: Failure) -> DovetailError:
    """An error that has travelled, as what it was; an unknown one is `Unavailable`."""
    found = _error_classes.get(failure.name)
    if found is None:
        return Unavailable(f"{failure.name[:100]}: {failure.text}")
    return found(failure.text)
