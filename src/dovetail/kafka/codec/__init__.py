"""The Kafka wire protocol: codec and request handlers.

Clients of Apache Kafka talk to Dovetail's log topics through this room. It has two parts.

The codec is pure: bytes in, typed messages out, and back. `messages` declares every message once,
as a dataclass with its wire format in the annotations (`schema`); `decoding` and `encoding` make
a function for each message and version from that; `headers` holds what stands before a body;
`apis` is the one table of what is answered; `codec` puts it together. The codec does not know
sockets, topics or records: a record batch passes through it as a slice of bytes.

The handlers decide what to answer, by asking the log. They know no bytes.

What the codec promises: no frame raises anything but `ProtocolViolation`, none takes more memory
than a small multiple of its own size, and batches are never copied. What it leaves to others: the
largest frame (`wire`), checksums and offsets inside batches (`log`).
"""

from dovetail.kafka.codec.apis import SUPPORTED, Api, ApiKey, advertised
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import (
    Request,
    answers,
    decode_body,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    refuse,
)
from dovetail.kafka.codec.headers import RequestHeader, correlation_id_of, decode_header

__all__ = [
    "SUPPORTED",
    "Api",
    "ApiKey",
    "ErrorCode",
    "Request",
    "RequestHeader",
    "advertised",
    "answers",
    "correlation_id_of",
    "decode_body",
    "decode_header",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "refuse",
]
