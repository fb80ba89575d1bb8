"""The types that travel between a client, a broker and a store: decoded once, passed on unchanged.

A message has an id, which its store issues once, and a version, which every change of holder
raises. `Handle` names both: a consumer holds it, and must present it to extend, to release or to
delete. A message that went on to another consumer has another version, so the store itself refuses
an old handle.

Times are milliseconds since the epoch. To the store, headers are bytes: `encode_headers` and
`decode_headers` serve both ends.
"""

import zlib
from enum import IntEnum
from typing import Annotated, Final, NewType

import msgspec
from msgspec import Meta, Struct

from dovetail.errors import InvalidInput
from dovetail.foreign import Key

MessageId = NewType("MessageId", int)
Version = NewType("Version", int)
#: One life of a timeline. A name that is deleted and created again has another.
TimelineId = NewType("TimelineId", int)

#: Buckets are 16-bit numbers; this many is the most that a timeline can have.
BUCKETS_MAX: Final = 65_536
#: Numbers are 64 bits in every store.
NUMBER_MAX: Final = 2**63 - 1
#: The year 9999: what people mean by "never", and what both stores and Python's dates can hold.
TIME_MS_MAX: Final = 253_402_300_799_999
#: Longest reason that is kept with a dead letter: the end of a traceback.
REASON_CHARACTERS_MAX: Final = 2_000
#: Highest priority. Ten steps are what people tell apart.
PRIORITY_MAX: Final = 9
#: Longest rest between two attempts: a month. Longer ones are another message.
BACKOFF_MS_MAX: Final = 30 * 24 * 3_600_000
#: Items of one command; some hundred make the cost of a call vanish, more only delay its answer.
BATCH_MAX: Final = 10_000

TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Priority = Annotated[int, Meta(ge=0, le=PRIORITY_MAX)]
Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)]


class Status(IntEnum):
    """What became of one item of a command. Each item has its own."""

    OK = 0
    #: No such message: deleted, cancelled, a dead letter, or it never was.
    GONE = 1
    #: The message has another version: it went on to another consumer.
    STALE = 2
    #: The unique key is taken by a message that is still there.
    EXISTS = 3
    #: Somebody holds a live lease on it.
    LEASED = 4
    #: It was released for the last time, and is a dead letter now.
    DEAD = 5
    #: It is larger than the timeline takes.
    TOO_LARGE = 6
    #: It is due later than the timeline takes.
    TOO_FAR = 7


class Life(Struct, frozen=True, array_like=True, gc=False):
    """How long a message is tried; 0 is what its timeline says.

    `attempts_max`: the attempt after which it is a dead letter. `backoff_ms`: its rest after the
    first one, doubled with each. `ttl_ms`: it is not handled later than that after its due time.
    """

    attempts_max: Annotated[int, Meta(ge=0, le=10_000)] = 0
    backoff_ms: Annotated[int, Meta(ge=0, le=BACKOFF_MS_MAX)] = 0
    ttl_ms: TimeMs = 0


class OnTaken(IntEnum):
    """What happens to a new message whose unique key a message has that is still there."""

    #: The one that is there stays, and is the answer.
    KEEP = 0
    #: The new one takes its place, unless somebody handles it.
    REPLACE = 1
    #: The one that is there becomes due when the new one is, if that is earlier.
    EARLIER = 2


class KeyRule(Struct, frozen=True, array_like=True, gc=False):
    """What a unique key does beyond its default; it stays taken for `hold_ms` after it is done."""

    on_taken: OnTaken = OnTaken.KEEP
    hold_ms: TimeMs = 0


class NewMessage(Struct, frozen=True, array_like=True, gc=False):
    """A message to be stored, as its producer sends it; a due time in the past means now."""

    due_ms: TimeMs
    body: bytes
    headers: bytes = b""
    key: Key | None = None
    priority: Priority = 0
    #: Messages of one order key are handled one at a time, in order of due time.
    order_key: Key | None = None
    life: Life | None = None
    key_rule: KeyRule | None = None

    @property
    def is_plain(self) -> bool:
        """Whether nothing but its due time decides about it."""
        return self.key is None and self.order_key is None and self.life is None


def bucket_of(order_key: str, buckets: int) -> int:
    """The bucket of an order key: one consumer has them all."""
    return zlib.crc32(order_key.encode()) % buckets


class BatchId(Struct, frozen=True, array_like=True, gc=False):
    """A producer's name for a batch: sent again under the same name, it is stored once.

    The producer is done with all its batches up to `settled`: their names need not be kept.
    """

    producer: Number
    sequence: Number
    settled: Number = 0


class Inserted(Struct, frozen=True, array_like=True, gc=False):
    """The id of a new message, or of the one that has its unique key; 0 if there is none."""

    status: Status
    id: MessageId


class Handle(Struct, frozen=True, array_like=True, gc=False):
    """A lease, as its holder shows it."""

    id: Annotated[MessageId, Meta(ge=0, le=NUMBER_MAX)]
    version: Annotated[Version, Meta(ge=0, le=2**31 - 1)]


class Extension(Struct, frozen=True, array_like=True, gc=False):
    """A lease that should end at another time."""

    handle: Handle
    until_ms: TimeMs


class Release(Struct, frozen=True, array_like=True, gc=False):
    """A lease given back: the message is due again at `due_ms`.

    `counted` is false if nothing was tried, as when a consumer stops: the attempt is taken back.
    `rejected`: this was the last attempt, whatever the timeline allows; of one that is counted.
    """

    handle: Handle
    due_ms: TimeMs
    counted: bool = True
    reason: Reason = ""
    rejected: bool = False

    def attempts_max(self, of_timeline: int) -> int:
        """The attempt after which it is a dead letter."""
        return 0 if self.rejected else of_timeline


class Leased(Struct, frozen=True, array_like=True, gc=False):
    """A message and the lease on it: what a consumer gets.

    `due_ms` is when it should be handled, `attempt` counts from 1.
    """

    id: MessageId
    version: Version
    due_ms: int
    until_ms: int
    attempt: int
    priority: int
    bucket: int
    body: bytes
    headers: bytes
    key: str | None = None
    order_key: str | None = None
    #: Its rest after a first failed attempt; 0 is what the timeline says.
    backoff_ms: int = 0

    @property
    def handle(self) -> Handle:
        return Handle(self.id, self.version)


class State(IntEnum):
    """Where a message is."""

    WAITING = 0
    DUE = 1
    LEASED = 2
    DEAD = 3


class Shown(Struct, frozen=True, array_like=True, gc=False):
    """A message as it is shown to people."""

    id: MessageId
    version: Version
    state: State
    #: When it was to be handled, and when it next changes hands: due time or end of the lease.
    due_ms: int
    visible_ms: int
    attempts: int
    priority: int
    bucket: int
    body: bytes
    headers: bytes
    key: str | None = None
    holder: str | None = None
    #: Of a dead letter: why, and when it died.
    reason: str = ""
    died_ms: int = 0
    order_key: str | None = None


class Counts(Struct, frozen=True, array_like=True, gc=False):
    """How many messages are in each state."""

    waiting: int
    due: int
    leased: int
    dead: int
    #: The due time of the oldest message that is due; 0 if none is.
    oldest_due_ms: int = 0


_headers_encoder = msgspec.msgpack.Encoder()
_headers_decoder = msgspec.msgpack.Decoder(list[tuple[str, bytes]])

Headers = tuple[tuple[str, bytes], ...]


def encode_headers(headers: Headers) -> bytes:
    """Headers as a store keeps them; none are no bytes at all. Raises `InvalidInput`."""
    try:
        return _headers_encoder.encode(list(headers)) if headers else b""
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the name of a header holds half a character: {error}") from error


def decode_headers(data: bytes) -> Headers:
    """The headers again. Raises `InvalidInput` if they cannot be read."""
    if not data:
        return ()
    try:
        return tuple(_headers_decoder.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{len(data)} bytes are no headers: {error}") from error
