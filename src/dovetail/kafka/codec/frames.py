"""Frames to messages and back.

A frame is what follows the four bytes of its length. Promises:
- `decode_request` and its parts raise nothing but `ProtocolViolation`, whatever the bytes, and take
  memory in proportion to the frame, never to a number written in it.
- Record batches are neither read nor copied: decoded, they are slices of the frame (so the frame
  must live as long as they do); encoded, they are passed on as the buffers that were given.
- What was encoded decodes to an equal message, in every supported version.

Bytes behind the end of a message are ignored, as in Kafka: librdkafka 2.16 asks for all topics
(Metadata 9 and later) with three bytes too many.

A request of an unsupported type or version should not close the connection without an answer if an
answer exists. Hence two steps: `decode_header`, then either `decode_body`, or `refuse` for what the
table does not contain.

Not here: reading frames from a socket and their maximum size (see `dovetail.wire`), the inside of a
record batch, and what to answer.
"""

import sys
from dataclasses import dataclass
from typing import Any, Final

from dovetail.buffers import Buffer
from dovetail.errors import InvalidInput, ProtocolViolation
from dovetail.kafka.codec.apis import SUPPORTED, Api, ApiKey, advertised_of
from dovetail.kafka.codec.decoding import DECODE_ERRORS, decoder
from dovetail.kafka.codec.encoding import ENCODE_ERRORS, encoder
from dovetail.kafka.codec.encoding import frame as join_frame
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.headers import (
    RequestHeader,
    decode_header,
    decode_response_header,
    encode_header,
    encode_response_header,
)
from dovetail.kafka.codec.messages import (
    ApiVersionsResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from dovetail.kafka.codec.primitives import room

#: Elements of all arrays of one request. Reading, handling and answering one takes some 10 us, in
#: which nobody else is served: the largest request takes a second. It can name ten topics with all
#: the partitions that a topic may have.
ELEMENTS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came: `body` is of the class that the table names for its api key."""

    header: RequestHeader
    body: Any


def decode_request(frame: memoryview) -> Request:
    """A whole request. Raises `ProtocolViolation`, also for what is not supported."""
    header, body_start = decode_header(frame)
    return Request(header, decode_body(header, frame, body_start))


def decode_body(header: RequestHeader, frame: memoryview, body_start: int) -> Any:
    """The body of a request whose header was decoded. Raises `ProtocolViolation`."""
    api = _api_of(header)
    return _decode(api.request, api, header.api_version, frame, body_start, ELEMENTS_MAX)


def encode_request(header: RequestHeader, body: Any) -> list[Buffer]:
    """The buffers of a request with its length in front. Raises `InvalidInput`."""
    api = _api_of(header)
    return _encode(api.request, api, header.api_version, encode_header(header), body)


def decode_response(header: RequestHeader, frame: memoryview) -> Any:
    """The body of the response to the request of this header. Raises `ProtocolViolation`."""
    api = _api_of(header)
    body_start = decode_response_header(header, frame)
    return _decode(api.response, api, header.api_version, frame, body_start)


def encode_response(header: RequestHeader, body: Any) -> list[Buffer]:
    """The buffers of the response to a request, with its length in front.

    Raises `InvalidInput` if the body does not fit: of another class, null where the version has
    no null, a number out of range.
    """
    api = _api_of(header)
    return _encode(api.response, api, header.api_version, encode_response_header(header), body)


def answers(header: RequestHeader) -> bool:
    """Whether the table answers this request; if not, `refuse` it."""
    api = SUPPORTED.get(header.api_key)
    return api is not None and api.answers(header.api_version)


def refuse(header: RequestHeader, frame: memoryview, body_start: int) -> list[Buffer] | None:
    """The answer to a request that the table does not answer; None says to close the connection.

    An ApiVersions request of an unknown version gets a body of version 0 that names the versions
    of ApiVersions, with which the client asks again. Produce below its lowest version gets an
    error for each partition, unless it wants no answer. Kafka has no words for anything else.
    Raises `ProtocolViolation`.
    """
    if header.api_key == ApiKey.API_VERSIONS:
        answer = ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=(advertised_of(SUPPORTED[ApiKey.API_VERSIONS]),),
        )
        as_version_0 = RequestHeader(header.api_key, 0, header.correlation_id)
        return encode_response(as_version_0, answer)
    api = SUPPORTED.get(header.api_key)
    if api is None or api.key != ApiKey.PRODUCE or not api.decodes(header.api_version):
        return None
    request: ProduceRequest = decode_body(header, frame, body_start)
    if request.acks == 0:
        return None
    return encode_response(header, produce_refused(request, ErrorCode.UNSUPPORTED_VERSION))


def produce_refused(request: ProduceRequest, error_code: ErrorCode) -> ProduceResponse:
    """The answer to a request of which nothing is stored."""
    return ProduceResponse(
        responses=tuple(
            ProduceResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=tuple(
                    ProduceResponsePartition(
                        index=partition.index,
                        error_code=error_code,
                        base_offset=-1,
                    )
                    for partition in topic.partition_data
                ),
            )
            for topic in request.topic_data
        )
    )


def _api_of(header: RequestHeader) -> Api:
    api = SUPPORTED.get(header.api_key)
    if api is None:
        raise ProtocolViolation(f"api key {header.api_key} is not supported")
    if not api.decodes(header.api_version):
        raise ProtocolViolation(
            f"{api.name} version {header.api_version} is not supported, "
            f"versions {api.lowest} to {api.highest} are"
        )
    return api


def _decode(
    message: type[Any],
    api: Api,
    version: int,
    frame: memoryview,
    start: int,
    elements_max: int = sys.maxsize,
) -> Any:
    decode = decoder(message, version, version >= api.flexible_since)
    room.left = elements_max
    end = len(frame)
    try:
        body, _ = decode(frame, start, end)
    except DECODE_ERRORS as error:
        raise ProtocolViolation(
            f"{message.__name__} v{version} of {end} bytes is cut off or garbled: {error}"
        ) from error
    return body


def _encode(message: type[Any], api: Api, version: int, header: bytes, body: Any) -> list[Buffer]:
    if type(body) is not message:
        raise InvalidInput(f"{api.name} takes a {message.__name__}, not a {type(body).__name__}")
    pieces: list[Buffer] = [b"", header]
    cuts: list[int] = []
    try:
        encoder(message, version, version >= api.flexible_since)(body, pieces, cuts)
        return join_frame(pieces, cuts)
    except ENCODE_ERRORS as error:
        raise InvalidInput(f"{message.__name__} v{version} cannot be encoded: {error}") from error
