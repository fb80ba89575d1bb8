"""The name of a message: the same whenever it comes again, and different for every other message.

If the outbox sent the message, its id is in a header, and the name is made of that, the topic or
timeline, the key and the value: a relay may have stored it twice, at two offsets. Other records are
named by their place and time (topic, partition, offset, timestamp: a recreated topic begins at 0
again), messages of a timeline by timeline, id and due time, events of a shared stream by their
place. A key or value that a client has turned into an object is left out: only bytes and text are
certainly the same when they come again.

A name is a hash of 16 bytes, so that it costs the same whatever it is made of.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from dovetail.errors import InvalidInput
from dovetail.foreign import encoded, shown
from dovetail.outbox.message import MESSAGE_ID_HEADER

NAME_BYTES = 16
#: The marks of short parts: to make one takes as long as to hash what is behind it.
_LENGTHS = tuple(b"%d:" % length for length in range(256))


def name_of(message: Any) -> bytes:
    """The name of a message, an event, a record or an id. Raises `InvalidInput`."""
    if isinstance(message, str):
        if not message:
            raise InvalidInput("an id must be text and not empty")
        return _hash("id", encoded(message, "id"))

    headers, key, value, place = _parts(message)
    for name, content in headers:
        if name == MESSAGE_ID_HEADER and content is not None:
            return _digest(_begun("outbox", place[1]), content, *_same(key, value))
    return _hash(*place, *_same(key, value))


def _parts(message: Any) -> tuple[Iterable[tuple[str, bytes | None]], Any, Any, tuple[Any, ...]]:
    """Headers, key, value, and its place: of what kind, in which topic or timeline, and where."""
    if hasattr(message, "timeline") and hasattr(message, "due_ms"):
        place: tuple[Any, ...] = ("timeline", message.timeline, message.id, message.due_ms)
        return message.headers, message.key, message.body, place
    if hasattr(message, "lane") and hasattr(message, "offset"):
        place = ("event", message.stream, message.lane, message.offset, message.timestamp_ms)
        return message.headers, message.key, message.value, place
    if callable(getattr(message, "offset", None)):
        if message.error() is not None:
            raise InvalidInput(f"the client returned an error, not a message: {message.error()}")
        at = (message.topic(), message.partition(), message.offset(), message.timestamp()[1])
        return message.headers() or (), message.key(), message.value(), ("record", *at)
    if hasattr(message, "topic") and hasattr(message, "partition") and hasattr(message, "offset"):
        at = (message.topic, message.partition, message.offset, message.timestamp)
        return message.headers or (), message.key, message.value, ("record", *at)

    raise InvalidInput(
        f"{shown(type(message).__name__)} is not a message for the inbox; give a message of "
        "a Kafka client, of a timeline or a shared stream, or an id"
    )


def _same(key: Any, value: Any) -> Iterable[Any]:
    """What is surely the same when it comes again: an object may show another address then."""
    if type(key) is type(value) is bytes:
        return key, value
    parts = (
        bytes(part) if isinstance(part, bytearray | memoryview) else part for part in (key, value)
    )
    return [part for part in parts if part is None or isinstance(part, bytes | str)]


def _hash(*parts: object) -> bytes:
    return _digest(b"", *parts)


@lru_cache
def _begun(kind: str, topic: str) -> bytes:
    """What the names of all messages of a topic begin with."""
    return _joined([kind, topic])


def _digest(begun: bytes, *parts: object) -> bytes:
    return hashlib.blake2b(begun + _joined(parts), digest_size=NAME_BYTES).digest()


def _joined(parts: Sequence[object]) -> bytes:
    """Each part with its length before it: no two lists of parts are the same bytes."""
    pieces = []
    for part in parts:
        # None is not empty.
        if part is None:
            pieces.append(b"-")
            continue
        data = part if isinstance(part, bytes) else _encoded(str(part))
        length = len(data)
        pieces.append(_LENGTHS[length] if length < len(_LENGTHS) else b"%d:" % length)
        pieces.append(data)
    return b"".join(pieces)


def _encoded(text: str) -> bytes:
    """Also of text with half a character, which a client's decoder may have made."""
    return text.encode(errors="surrogatepass")
