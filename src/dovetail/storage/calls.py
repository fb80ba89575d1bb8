"""The private requests: what nodes ask each other through the one door.

A private request is a frame like Kafka's, under an api key that Kafka will not use. Behind the
header stands

    4 bytes   length of the body
    body      MessagePack, one of the messages below
    payloads  raw bytes, one after another; their lengths are in the body

and an answer is the correlation id followed by the same three. So payloads are never copied into a
message, on neither side. Messages travel as arrays: a newer one may have more elements at its end.

An error travels as its class's name and its text, and is raised again as the same class. A class
that the receiver does not know is `Unavailable` to it.

Versions: all private requests share one, `VERSION`. A connection begins with `Hello`, which never
changes in its own first elements, and is answered with the version and the identity of the node.
Nodes of different versions do not talk; both sides say so.

Everything that comes in is checked here, before anybody acts on it: numbers against what the disk
can hold, lengths against what follows. What does not fit is a `ProtocolViolation`.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from dovetail import errors
from dovetail.buffers import Buffer
from dovetail.errors import DovetailError, ProtocolViolation, Unavailable
from dovetail.storage import EntryId, LedgerId, Term
from dovetail.storage.held import HELD_SPANS_MAX, Span

#: Below this, api keys are Kafka's.
PRIVATE_KEY_FIRST: Final = 10_000

#: What this node speaks; raised with every change that an older node would misunderstand.
VERSION: Final = 2

#: Entries of one append request. Some hundred make the cost of a frame vanish; more would only
#: delay the first ones.
APPENDS_MAX: Final = 512

#: Payload bytes of one append request, unless one entry alone has more. A frame is begun when all
#: of it is here, so larger ones would leave the other node idle meanwhile.
APPEND_BYTES_MAX: Final = 4 * 1024 * 1024

#: Payload bytes of one read answer, unless one entry alone has more: what a Kafka consumer asks of
#: a partition by default. A door holds up to 100 answers of a connection.
READ_BYTES_MAX: Final = 1024 * 1024

#: Entries of one read answer; each costs some hundred bytes of memory beside its payload.
READ_ENTRIES_MAX: Final = 16 * 1024

#: Largest body of a request: `APPENDS_MAX` entries take up to 22 KiB.
REQUEST_BODY_BYTES_MAX: Final = 64 * 1024

#: Longest text of an error that travels.
ERROR_TEXT_MAX: Final = 2048

#: Numbers are 64 bits on the disk.
NUMBER_MAX: Final = 2**63 - 1

_BODY_LENGTH = struct.Struct("!I")
_ANSWER_HEAD = struct.Struct("!iiI")


class PrivateKey(IntEnum):
    """Api keys."""

    HELLO = 10_000
    APPEND = 10_001
    FENCE = 10_002
    READ = 10_003
    RECOVERY_READ = 10_004
    DELETE = 10_005
    LEDGERS = 10_006
    HELD = 10_007


_Ledger = Annotated[LedgerId, Meta(ge=0, le=NUMBER_MAX)]
_Entry = Annotated[EntryId, Meta(ge=0, le=NUMBER_MAX)]
_EntryOrNone = Annotated[EntryId, Meta(ge=-1, le=NUMBER_MAX)]
_Term = Annotated[Term, Meta(ge=0, le=NUMBER_MAX)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Name = Annotated[str, Meta(max_length=255)]


class PrivateRequest(Struct, array_like=True, frozen=True):
    """What is asked."""


class PrivateAnswer(Struct, array_like=True, frozen=True, tag=0):
    """What is answered, unless it failed."""


class Failure(Struct, array_like=True, frozen=True, tag=1):
    """An error on its way."""

    name: str
    text: str


class Hello(PrivateRequest, frozen=True):
    """The first request of a connection; its first element is the version that is spoken."""

    version: _Count


class Welcome(PrivateAnswer, frozen=True):
    """The version that the node speaks, and who it is."""

    version: _Count
    identity: _Name


class AppendHead(Struct, array_like=True, frozen=True, gc=False):
    """An entry to store, without its payload."""

    ledger: _Ledger
    entry: _Entry
    term: _Term
    confirmed: _EntryOrNone
    payload_bytes: _Count


class Appends(PrivateRequest, frozen=True):
    """Store these entries; their payloads follow in the same order."""

    heads: Annotated[list[AppendHead], Meta(min_length=1, max_length=APPENDS_MAX)]


class AppendOutcomes(PrivateAnswer, frozen=True):
    """For each entry, in order: None if it is durable, or why not."""

    outcomes: Annotated[list[Failure | None], Meta(max_length=APPENDS_MAX)]


class FenceLedger(PrivateRequest, frozen=True):
    """Refuse lower terms from now on."""

    ledger: _Ledger
    term: _Term


class LedgerFenced(PrivateAnswer, frozen=True):
    """The state of the ledger when it was fenced."""

    entry_last: _EntryOrNone
    confirmed: _EntryOrNone
    fenced: _Term


class ReadEntries(PrivateRequest, frozen=True):
    """Entries from `first` on without a gap."""

    ledger: _Ledger
    first: _Entry
    last: _EntryOrNone
    bytes_max: _Count


class ReadForRecovery(PrivateRequest, frozen=True):
    """Fence, then read one entry."""

    ledger: _Ledger
    entry: _Entry
    term: _Term


class EntryHead(Struct, array_like=True, frozen=True, gc=False):
    """An entry as read, without its payload."""

    entry: _Entry
    term: _Term
    confirmed: _EntryOrNone
    payload_bytes: _Count


class EntriesRead(PrivateAnswer, frozen=True):
    """Entries, none if a recovery read found none; their payloads follow in the same order."""

    heads: Annotated[list[EntryHead], Meta(max_length=READ_ENTRIES_MAX)]


class DeleteLedger(PrivateRequest, frozen=True):
    """Forget the ledger."""

    ledger: _Ledger


class LedgerDeleted(PrivateAnswer, frozen=True):
    """It is forgotten."""


class ListLedgers(PrivateRequest, frozen=True):
    """Which ledgers are there?"""


class LedgersListed(PrivateAnswer, frozen=True):
    """The ledgers of the node."""

    ledgers: list[_Ledger]


class AskHeld(PrivateRequest, frozen=True):
    """Which entries of the ledger from `first` to `last` can be read there?"""

    ledger: _Ledger
    first: _Entry
    last: _EntryOrNone


class HeldTold(PrivateAnswer, frozen=True):
    """Spans, first and last included; -1 or the entry from which on nothing was told."""

    spans: Annotated[list[Span], Meta(max_length=HELD_SPANS_MAX)]
    next: _EntryOrNone


REQUESTS: Final[dict[PrivateKey, type[PrivateRequest]]] = {
    PrivateKey.HELLO: Hello,
    PrivateKey.APPEND: Appends,
    PrivateKey.FENCE: FenceLedger,
    PrivateKey.READ: ReadEntries,
    PrivateKey.RECOVERY_READ: ReadForRecovery,
    PrivateKey.DELETE: DeleteLedger,
    PrivateKey.LEDGERS: ListLedgers,
    PrivateKey.HELD: AskHeld,
}

Asked = TypeVar("Asked", bound=PrivateRequest)
Answered = TypeVar("Answered", bound=PrivateAnswer)

_encoder = msgspec.msgpack.Encoder()
_request_decoders: dict[type[PrivateRequest], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in REQUESTS.values()
}
_answer_decoders: dict[type[PrivateAnswer], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind | Failure) for kind in PrivateAnswer.__subclasses__()
}
_error_classes: dict[str, type[DovetailError]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, DovetailError)
}


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


# Requests


def encode_request(message: PrivateRequest, payloads: Sequence[Buffer] = ()) -> list[Buffer]:
    """What stands behind the header of a request."""
    body = _encoder.encode(message)
    return [_BODY_LENGTH.pack(len(body)) + body, *payloads]


def decode_request(kind: type[Asked], data: memoryview) -> tuple[Asked, memoryview]:
    """The message behind a header, and the payloads behind that. Raises `ProtocolViolation`."""
    body, payloads = _split(data, body_bytes_max=REQUEST_BODY_BYTES_MAX)
    message: Asked = _decode(_request_decoders[kind], body, kind.__name__)
    return message, payloads


# Answers


def encode_answer(
    correlation_id: int, message: PrivateAnswer | Failure, payloads: Sequence[Buffer] = ()
) -> list[Buffer]:
    """A whole answer, with its length."""
    body = _encoder.encode(message)
    length = _ANSWER_HEAD.size - 4 + len(body) + sum(map(len, payloads))
    return [_ANSWER_HEAD.pack(length, correlation_id, len(body)) + body, *payloads]


def decode_answer(
    kind: type[Answered], data: memoryview
) -> tuple[Answered, memoryview] | DovetailError:
    """What stands behind a correlation id: message and payloads, or an error that has travelled.

    Raises `ProtocolViolation`.
    """
    body, payloads = _split(data, body_bytes_max=len(data))
    message: Answered | Failure = _decode(_answer_decoders[kind], body, kind.__name__)
    if isinstance(message, Failure):
        return error_of(message)
    return message, payloads


# Payloads


def cut_payloads(payloads: memoryview, lengths: list[int]) -> list[memoryview]:
    """The payloads, one by one. Raises `ProtocolViolation` unless the lengths add up exactly."""
    ends = list(accumulate(lengths))
    announced = ends[-1] if ends else 0
    if announced != len(payloads):
        raise ProtocolViolation(f"{announced} bytes of payload announced, {len(payloads)} are here")
    return [payloads[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _split(data: memoryview, *, body_bytes_max: int) -> tuple[memoryview, memoryview]:
    start = _BODY_LENGTH.size
    if len(data) < start:
        raise ProtocolViolation(f"a private message of {len(data)} bytes has no length")
    (length,) = _BODY_LENGTH.unpack_from(data)
    if length > len(data) - start:
        raise ProtocolViolation(f"a body of {length} bytes, of which {len(data) - start} are here")
    if length > body_bytes_max:
        raise ProtocolViolation(f"a body of {length} bytes; {body_bytes_max} are taken")
    return data[start : start + length], data[start + length :]


def _decode(decoder: "msgspec.msgpack.Decoder[Any]", body: memoryview, name: str) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"{name}: {error}") from error
