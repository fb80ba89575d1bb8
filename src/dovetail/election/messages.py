"""The messages between members, and their form on the wire (MessagePack).

Every message names its sender, the sender's life and the term it concerns. `election` distinguishes
the rounds of one candidate, so that an answer to an earlier round never counts in a later one.
"""

import msgspec

from dovetail.election.identifiers import Incarnation, MemberName, Term
from dovetail.errors import ProtocolViolation

#: Largest message. A ping has a position of some ten bytes a lane; this is room for 4,000 lanes.
MESSAGE_BYTES_MAX = 64 * 1024


class _Message(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    sender: MemberName
    incarnation: Incarnation
    term: Term


class Ping(_Message, frozen=True, tag="ping"):
    """I lead under `term`. `position` is what I have received of the stream."""

    sent_ms: float
    position: dict[int, int]
    #: I have more events than I can take: what I have not received yet is not lost to me.
    busy: bool = False


class PingAnswer(_Message, frozen=True, tag="ping-answer"):
    """I have heard the ping that you sent at `sent_ms`, and follow."""

    sent_ms: float


class VoteRequest(_Message, frozen=True, tag="vote-request"):
    """Would you vote for me (`trial`), or: vote for me, in the election of `term`."""

    election: int
    trial: bool


class VoteAnswer(_Message, frozen=True, tag="vote-answer"):
    """Yes or no; `known_term` lets a candidate that is behind catch up."""

    election: int
    trial: bool
    granted: bool
    known_term: Term


class Resign(_Message, frozen=True, tag="resign"):
    """I led under `term` and stop: do not wait for the timeout."""


Message = Ping | PingAnswer | VoteRequest | VoteAnswer | Resign

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """The message as bytes."""
    return _ENCODER.encode(message)


def decode_message(payload: bytes) -> Message:
    """The message of these bytes. Raises `ProtocolViolation`."""
    if len(payload) > MESSAGE_BYTES_MAX:
        raise ProtocolViolation(
            f"the message has {len(payload)} bytes; members send at most {MESSAGE_BYTES_MAX}"
        )
    try:
        return _DECODER.decode(payload)
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"these bytes are not a message of a member: {error}") from error
