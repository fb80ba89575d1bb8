"""Signed messages between members: nobody else can send one, and none can be replayed.

A message is sealed for one life of one member: the seal covers the sender and its life, the
receiver and its life, and a number that grows. The receiver accepts it only if

- the signature (HMAC-SHA-256 with the shared secret) is right,
- it is meant for the receiver, in this life: a restarted one has forgotten which numbers it saw,
- the sender's life is the one that is registered in the shared log,
- the number was not seen before in that life, and is not older than the window.

The answer is sealed together with the signature of the message, so it fits no other. No clock takes
part. Pure: no I/O; random lives are arguments.

Records of the shared log are signed with the same secret (`RecordSigner`). The signature covers the
environment, the record, its writer and a number that grows. Readers accept each number once, and a
snapshot holds the highest of each writer, so all readers agree on which records an attacker has
copied and written again.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

import msgspec

from dovetail.election.election import Identity
from dovetail.election.identifiers import Incarnation, MemberName
from dovetail.election.messages import Message, decode_message, encode_message
from dovetail.election.transport import Directory
from dovetail.errors import ProtocolViolation, Refused

#: Numbers below the highest one that can still arrive late; requests overtake each other a little.
WINDOW = 1_024

#: The header of a record in a topic that holds its signature.
SIGNATURE_HEADER = "dovetail-signature"

#: More digits than a counter will ever have.
_NUMBER_DIGITS_MAX = 18
_RECORD = b"dovetail stream record\0"
_REQUEST = b"dovetail stream request\0"
_ANSWER = b"dovetail stream answer\0"


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What is signed."""

    sender: MemberName
    sender_life: Incarnation
    to: MemberName
    to_life: Incarnation
    number: int
    payload: bytes


@dataclass(slots=True)
class _Seen:
    """Numbers of one life of a sender: the highest, and a bit for each in the window below."""

    highest: int = -1
    bits: int = 0

    def take(self, number: int) -> bool:
        """Whether the number is new; then it is not any more."""
        if number > self.highest:
            shift = min(number - self.highest, WINDOW + 1)
            self.bits = ((self.bits << shift) | 1) & ((1 << (WINDOW + 1)) - 1)
            self.highest = number
            return True
        age = self.highest - number
        if age > WINDOW or self.bits >> age & 1:
            return False
        self.bits |= 1 << age
        return True


@dataclass(slots=True)
class Sealer:
    """Seals what one member sends and opens what it gets."""

    me: Identity
    secret: bytes = field(repr=False)
    directory: Directory
    _number: int = 0
    _seen: dict[MemberName, tuple[Incarnation, _Seen]] = field(default_factory=dict)

    def seal(self, to: MemberName, message: Message) -> tuple[bytes, bytes]:
        """The body for a member and its signature. Raises `Refused` if its life is not known."""
        life = self.directory(to)
        if life is None:
            raise Refused(f"{to} is not registered in the shared log")
        self._number += 1
        body = msgspec.msgpack.encode(
            Envelope(
                self.me.name, self.me.incarnation, to, life, self._number, encode_message(message)
            )
        )
        return body, self._sign(_REQUEST, body)

    def open(self, body: bytes, signature: bytes) -> Message:
        """The message. Raises `Refused` or `ProtocolViolation`."""
        if not hmac.compare_digest(signature, self._sign(_REQUEST, body)):
            raise Refused("the signature is wrong: another secret, or a forged message")
        try:
            envelope = msgspec.msgpack.decode(body, type=Envelope)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"these bytes are not an envelope: {error}") from error

        if (envelope.to, envelope.to_life) != (self.me.name, self.me.incarnation):
            raise Refused("the message is meant for another member, or for an earlier life")
        if self.directory(envelope.sender) != envelope.sender_life:
            raise Refused(f"this life of {envelope.sender} is not in the shared log (yet)")

        life, seen = self._seen.get(envelope.sender, (None, _Seen()))
        if life != envelope.sender_life:
            seen = _Seen()
            self._seen[envelope.sender] = (envelope.sender_life, seen)
        if not seen.take(envelope.number):
            raise Refused(f"message {envelope.number} of {envelope.sender} arrived before")

        message = decode_message(envelope.payload)
        if (message.sender, message.incarnation) != (envelope.sender, envelope.sender_life):
            raise ProtocolViolation("the message names another sender than its envelope")
        return message

    def seal_answer(self, answer: Message | None, request: bytes) -> tuple[bytes, bytes]:
        """The body of an answer and its signature; `request` is the signature it answers."""
        body = b"" if answer is None else encode_message(answer)
        return body, self._sign(_ANSWER + request, body)

    def open_answer(self, body: bytes, signature: bytes, request: bytes) -> Message | None:
        """The answer. Raises `Refused` or `ProtocolViolation`."""
        if not hmac.compare_digest(signature, self._sign(_ANSWER + request, body)):
            raise Refused("the signature of the answer is wrong")
        return decode_message(body) if body else None

    def _sign(self, kind: bytes, body: bytes) -> bytes:
        return hmac.new(self.secret, kind + body, hashlib.sha256).hexdigest().encode()


#: Who wrote a record of the shared log, and which one of its records it is.
Mark = tuple[str, int]


@dataclass(slots=True)
class RecordSigner:
    """Signs what one writer puts into a shared log, and checks what others put there."""

    secret: bytes = field(repr=False)
    writer: str
    _number: int = 0

    def sign(self, environment: str, payload: bytes) -> bytes:
        """The signature of the next record: writer, number and code."""
        self._number += 1
        head = f"{self.writer} {self._number}".encode()
        return head + b" " + self._code(environment, head, payload)

    def mark_of(self, environment: str, payload: bytes, signature: bytes | None) -> Mark | None:
        """Who wrote the record; None if nobody who knows the secret did."""
        head, _, code = (signature or b"").rpartition(b" ")
        writer, _, number = head.partition(b" ")
        if not number.isdigit() or len(number) > _NUMBER_DIGITS_MAX or not writer.isalnum():
            return None
        if not hmac.compare_digest(code, self._code(environment, head, payload)):
            return None
        return writer.decode(), int(number)

    def _code(self, environment: str, head: bytes, payload: bytes) -> bytes:
        parts = b"\0".join((environment.encode(), head, payload))
        return hmac.new(self.secret, _RECORD + parts, hashlib.sha256).hexdigest().encode()
