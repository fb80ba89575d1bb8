"""Splits a batch into due records and the rest; builds what is appended when they are due; pure.

A waiting record is a message of a timeline: its value is the body, and its headers are the
message's, after an additional one (`RECORD_HEADER`) with what a message has no field for.

The other records of the batch keep their places and offsets, and the batch keeps the producer's
sequence numbers: to its producer it is stored as sent, and to readers it is a batch with gaps, as
compaction leaves them. A batch without any record left is stored only if its producer numbers its
records.

A record of a transaction is in doubt until the transaction has ended. The log decides: its batch
lies at an offset, and is open, committed or aborted like the other records of it.

A batch that an idempotent producer sends again must be split as the first time: a record that
waited then and is due by now would otherwise be stored beside the waiting one. So all its records
with a due time go through the timeline, including those whose time has passed.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from dovetail.compression import inflate
from dovetail.errors import InvalidBatch, InvalidInput
from dovetail.foreign import check_key
from dovetail.record_batch import (
    CODEC_MASK,
    DUE_PRODUCER_ID,
    HEADER_BYTES,
    SEQUENCE_END,
    BatchHeader,
    NewRecord,
    OpenRecord,
    build_batch,
    open_records,
    resealed,
)
from dovetail.timeline.client.moments import duration_ms
from dovetail.timeline.message import (
    TIME_MS_MAX,
    KeyRule,
    Leased,
    NewMessage,
    OnTaken,
    decode_headers,
    encode_headers,
)

DUE: Final = "dovetail-due"
DELAY: Final = "dovetail-delay"
KEY: Final = "dovetail-key"
#: On the record that is appended: the message that it was. Whoever takes the partition over reads
#: it, and a consumer can tell by it that it has seen the record.
ID: Final = "dovetail-due-id"
#: In front of a waiting message's headers.
RECORD_HEADER: Final = "dovetail-record"

Headers = list[tuple[str, bytes | None]]

#: In every batch that may have a due record, uncompressed.
_SAID: Final = b"dovetail-d"

#: The producer of all records that became due: clients cannot take its part.
PRODUCER_ID: Final = DUE_PRODUCER_ID
#: How far ahead a record may be due: as far as a timeline takes a message by default.
AHEAD_MS_MAX: Final = 10 * 366 * 24 * 3_600_000
#: Records of one batch that may wait: they are stored in one transaction of the timeline, and a
#: compressed batch of 1 MiB can have millions.
WAITING_MAX: Final = 100_000


class Doubt(msgspec.Struct, array_like=True, frozen=True):
    """A record of a transaction: where the log says how that ended, and what becomes of it then."""

    offset: int
    producer_id: int
    due_ms: int
    key: str | None


class Origin(msgspec.Struct, array_like=True, frozen=True):
    """What a message has no place for: of which topic it is, and what a record may lack."""

    topic_id: str
    key: bytes | None
    has_value: bool
    #: Headers without a value, by their place.
    bare: list[int] = []
    #: Set until the transaction that it came in has ended.
    doubt: Doubt | None = None


class _Form(NamedTuple):
    """What the messages of records with the same headers have in common."""

    due_ms: int
    #: That of the first of them, and with the headers as its message has it.
    origin: Origin
    headers: list[tuple[str, bytes]]
    packed: bytes
    key: str | None
    key_rule: KeyRule | None


class Split(NamedTuple):
    """A batch in two: what is stored now, and what waits."""

    #: None if nothing has to be stored now.
    batch: memoryview | None
    header: BatchHeader
    waiting: list[NewMessage]


def split(batch: memoryview, header: BatchHeader, *, topic_id: str, now_ms: int) -> Split | None:
    """What of a checked batch waits; None if nothing does.

    Raises `InvalidBatch` for a header that says no time, or one too far ahead.
    """
    codec = header.attributes & CODEC_MASK
    if _SAID not in bytes(inflate(batch[HEADER_BYTES:], codec)):
        return None  # Nearly all batches of most topics; looking at each record takes much longer.

    counted = header.producer_id >= 0
    kept: list[bytes] = []
    waiting: list[NewMessage] = []
    headers: Headers | None = None
    form: _Form | None = None
    for record in open_records(batch, header):
        # Most programs give many records in a row the same headers.
        if record.headers is not headers:
            headers = record.headers
            due_ms = _due_ms(headers, now_ms)
            waits = due_ms is not None and (due_ms > now_ms or counted)
            form = _form(record, max(due_ms or 0, now_ms), topic_id) if waits else None
        if form is None:
            kept.append(record.raw)
        else:
            waiting.append(_message(record, form))
        if len(waiting) > WAITING_MAX:
            raise InvalidBatch(
                f"a batch has more than {WAITING_MAX} due records; send smaller ones"
            )
    if not waiting:
        return None

    if not kept and header.producer_id < 0:
        return Split(None, header, waiting)
    plain = header._replace(attributes=header.attributes & ~CODEC_MASK, record_count=len(kept))
    made, plain = resealed(plain, b"".join(kept))
    return Split(memoryview(made), plain, waiting)


def _due_ms(headers: Headers, now_ms: int) -> int | None:
    """When a record with these headers is due; None if they do not say."""
    said = [(name, value) for name, value in headers if name in (DUE, DELAY)]
    if not said:
        return None
    if len(said) > 1:
        raise InvalidBatch(f"a record has {DUE} or {DELAY} more than once; give one of them")

    ((name, value),) = said
    try:
        text = (value or b"").decode("ascii").strip()
        if name == DUE:
            due_ms = _number(text)
        else:
            delay_ms = _delay_ms(text)
            if not delay_ms:
                return None
            due_ms = now_ms + delay_ms
    except (UnicodeDecodeError, ValueError, InvalidInput) as error:
        shown = (value or b"")[:80]
        raise InvalidBatch(f"header {name}: {shown!r} is not a time: {error}") from error
    if due_ms > min(TIME_MS_MAX, now_ms + AHEAD_MS_MAX):
        raise InvalidBatch(
            f"a record is due at {due_ms}, more than ten years ahead; {DUE} is in milliseconds"
        )
    return due_ms


@lru_cache(maxsize=256)
def _delay_ms(text: str) -> int:
    """Programs say the same few delays again and again."""
    return _number(text) if text.isdigit() else duration_ms(text)


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValueError("write milliseconds, such as 1700000000000")
    return int(text)


def _form(record: OpenRecord, due_ms: int, topic_id: str) -> _Form:
    """What messages of records with the headers of this one are. Raises `InvalidBatch`."""
    key = rule = None
    kept: list[tuple[str, bytes]] = []
    bare: list[int] = []
    for name, value in record.headers:
        if name == KEY:
            key, rule = _timeline_key(value), KeyRule(OnTaken.REPLACE)
        # An id that came with it is that of a record which it was before, perhaps of another topic.
        elif name not in (DUE, DELAY, ID):
            if value is None:
                bare.append(len(kept))
            kept.append((name, value or b""))

    origin = Origin(topic_id, record.key, record.value is not None, bare)
    return _Form(due_ms, origin, kept, _with_origin(origin, kept), key, rule)


def _timeline_key(value: bytes | None) -> str:
    try:
        return check_key((value or b"").decode(), f"header {KEY}")
    except (InvalidInput, UnicodeDecodeError) as error:
        raise InvalidBatch(f"header {KEY}: {error}") from error


def _message(record: OpenRecord, form: _Form) -> NewMessage:
    headers, like = form.packed, form.origin
    has_value = record.value is not None
    if record.key != like.key or has_value != like.has_value:
        origin = Origin(like.topic_id, record.key, has_value, like.bare)
        headers = _with_origin(origin, form.headers)
    return NewMessage(form.due_ms, record.value or b"", headers, form.key, key_rule=form.key_rule)


def _with_origin(origin: Origin, headers: Sequence[tuple[str, bytes]]) -> bytes:
    return encode_headers(((RECORD_HEADER, msgspec.msgpack.encode(origin)), *headers))


def in_doubt(message: NewMessage, offset: int, producer_id: int, *, now_ms: int) -> NewMessage:
    """A record of a transaction whose batch lies at the offset: looked at soon, under no key."""
    (_, packed), *headers = decode_headers(message.headers)
    origin = msgspec.msgpack.decode(packed, type=Origin)
    doubt = Doubt(offset, producer_id, message.due_ms, message.key)
    return NewMessage(now_ms, message.body, _packed(origin, doubt, headers))


def without_doubt(message: Leased, origin: Origin) -> NewMessage:
    """The record of a transaction that is committed, as it waits for its time."""
    assert origin.doubt is not None
    key, (_, *headers) = origin.doubt.key, decode_headers(message.headers)
    return NewMessage(
        origin.doubt.due_ms,
        message.body,
        _packed(origin, None, headers),
        key,
        key_rule=None if key is None else KeyRule(OnTaken.REPLACE),
    )


def _packed(origin: Origin, doubt: Doubt | None, headers: Sequence[tuple[str, bytes]]) -> bytes:
    return _with_origin(msgspec.structs.replace(origin, doubt=doubt), headers)


def record_of(message: Leased, name: str) -> tuple[Origin, NewRecord]:
    """The record that a message was, with the time at which it is due, and named as given.

    Raises `InvalidInput` for a message that is none of ours.
    """
    headers = list(decode_headers(message.headers))
    if not headers or headers[0][0] != RECORD_HEADER:
        raise InvalidInput(f"message {message.id} is not a record")
    try:
        origin = msgspec.msgpack.decode(headers[0][1], type=Origin)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"message {message.id} is not a record: {error}") from error

    bare = set(origin.bare)
    given = [(name, None if at in bare else value) for at, (name, value) in enumerate(headers[1:])]
    given.append((ID, name.encode()))
    value = message.body if origin.has_value else None
    return origin, NewRecord(message.due_ms, origin.key, value, given)


def due_batch(records: Sequence[NewRecord], sequence: int) -> bytearray:
    """The batch that is appended, which can be stamped."""
    return bytearray(
        build_batch(
            records, producer_id=PRODUCER_ID, producer_epoch=0, sequence=sequence % SEQUENCE_END
        )
    )


def names_in(batch: memoryview, header: BatchHeader) -> set[str]:
    """The names of the messages that the records of one of our batches were."""
    said = [[value for name, value in r.headers if name == ID] for r in open_records(batch, header)]
    return {values[-1].decode("ascii", "replace") for values in said if values and values[-1]}
