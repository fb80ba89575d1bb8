"""The headers of requests and responses.

Three request headers exist: version 0 has no client id (ControlledShutdown 0 only), version 1
adds it, version 2 adds tagged fields. The client id keeps its two-byte length in all of them, so
that a broker can read the header of an ApiVersions request from the future. A response header is
the correlation id, in version 1 followed by tagged fields. The response to ApiVersions always has
header 0, because the client does not yet know the broker's versions.
"""

import struct
from dataclasses import dataclass
from typing import Final

from dovetail.errors import ProtocolViolation
from dovetail.kafka.codec.apis import SUPPORTED, ApiKey
from dovetail.kafka.codec.primitives import length_wrong, skip_tags

_CONTROLLED_SHUTDOWN: Final = 7
_FIXED: Final = struct.Struct("!hhi")
_FIXED_AND_LENGTH: Final = struct.Struct("!hhih")
_CORRELATION: Final = struct.Struct("!i")


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """Who asks what, in which version; the response carries the same correlation id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def request_header_version(api_key: int, api_version: int) -> int:
    """The header version of a request; 1 for a request type that is not supported."""
    api = SUPPORTED.get(api_key)
    if api is not None:
        return 2 if api.flexible(api_version) else 1
    return 0 if api_key == _CONTROLLED_SHUTDOWN and api_version == 0 else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """The header version of a response."""
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if SUPPORTED[api_key].flexible(api_version) else 0


def decode_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header of a request, supported or not, and where its body begins.

    Raises `ProtocolViolation`.
    """
    end = len(frame)
    if end < _FIXED.size:
        raise ProtocolViolation(f"a request header has {_FIXED.size} bytes or more, not {end}")

    api_key, api_version, correlation_id = _FIXED.unpack_from(frame)
    header_version = request_header_version(api_key, api_version)
    if header_version == 0:
        return RequestHeader(api_key, api_version, correlation_id), _FIXED.size

    position = _FIXED_AND_LENGTH.size
    if end < position:
        raise ProtocolViolation(f"request header of {position} bytes or more ends after {end}")
    length = int.from_bytes(frame[_FIXED.size : position], "big", signed=True)

    client_id = None
    if length >= 0:
        stop = position + length
        if stop > end:
            raise length_wrong("request header client_id", length, end - position)
        try:
            client_id = str(frame[position:stop], "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolViolation(f"request header client_id is not UTF-8: {error}") from error
        position = stop
    elif length != -1:
        raise length_wrong("request header client_id", length, end - position)

    if header_version == 2:
        position = _after_tags("request header", frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def encode_header(header: RequestHeader) -> bytes:
    """The bytes of a request header, in the version that its request has."""
    header_version = request_header_version(header.api_key, header.api_version)
    fixed = (header.api_key, header.api_version, header.correlation_id)
    if header_version == 0:
        return _FIXED.pack(*fixed)
    tags = b"\0" if header_version == 2 else b""
    if header.client_id is None:
        return _FIXED_AND_LENGTH.pack(*fixed, -1) + tags
    client_id = header.client_id.encode()
    return _FIXED_AND_LENGTH.pack(*fixed, len(client_id)) + client_id + tags


def decode_response_header(header: RequestHeader, frame: memoryview) -> int:
    """Checks that `frame` answers the request of this header; gives where its body begins.

    Raises `ProtocolViolation`.
    """
    correlation_id = correlation_id_of(frame)
    if correlation_id != header.correlation_id:
        raise ProtocolViolation(
            f"response has correlation id {correlation_id}, the request had {header.correlation_id}"
        )
    if response_header_version(header.api_key, header.api_version) == 0:
        return _CORRELATION.size
    return _after_tags("response header", frame, _CORRELATION.size)


def correlation_id_of(frame: memoryview) -> int:
    """Which request a response answers. Raises `ProtocolViolation`."""
    if len(frame) < _CORRELATION.size:
        raise ProtocolViolation(
            f"a response has {_CORRELATION.size} bytes or more, not {len(frame)}"
        )
    return int.from_bytes(frame[: _CORRELATION.size], "big", signed=True)


def encode_response_header(header: RequestHeader) -> bytes:
    """The bytes of the header of the response to a request."""
    correlation_id = _CORRELATION.pack(header.correlation_id)
    if response_header_version(header.api_key, header.api_version) == 0:
        return correlation_id
    return correlation_id + b"\0"


def _after_tags(where: str, frame: memoryview, position: int) -> int:
    try:
        if frame[position] == 0:
            return position + 1
        return skip_tags(where, frame, position, len(frame))
    except IndexError as error:
        raise ProtocolViolation(f"{where} of {len(frame)} bytes ends in its tags") from error
