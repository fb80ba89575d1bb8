"""A message of the outbox: what the application gives, checked at the edge.

Everything is bytes by the time it is stored: encoding happens before. Headers are kept as JSON
text, so that other languages and people can write and read them:

    [["source", "shop"], ["trace", "AP8=", "base64"], ["empty", null]]

A message keeps its id for life. It travels as the header `dovetail-message-id`, so that a consumer
can recognise what was sent twice.
"""

import base64
import binascii
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dovetail.errors import InvalidInput
from dovetail.foreign import check_header, check_topic, encoded, shown

#: The header that carries the id of a message.
MESSAGE_ID_HEADER = "dovetail-message-id"

#: Longest id; a UUID has 36 characters, ids of other systems seldom more than 64.
MESSAGE_ID_CHARACTERS_MAX = 64
_MESSAGE_ID = re.compile(r"[\x21-\x7e]{1,64}")

#: Longest key; databases index and compare it, and longer ones are values.
KEY_BYTES_MAX = 4096

#: Kafka clients refuse more than 64 MiB in nearly every setting; the database should not store
#: what can never leave.
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024

Headers = tuple[tuple[str, bytes | None], ...]
HeadersGiven = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


@dataclass(frozen=True, slots=True)
class Message:
    """What is to be published.

    `payload` None is a tombstone. `partition_key` decides the partition and the order; without one
    the key does. `id` is made when it is not given. Raises `InvalidInput`.
    """

    topic: str
    payload: bytes | None
    key: bytes | None = None
    partition_key: bytes | None = None
    headers: Headers = ()
    id: str = field(default_factory=lambda: os.urandom(16).hex())

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if not isinstance(self.id, str) or not _MESSAGE_ID.fullmatch(self.id):
            raise InvalidInput(
                f"message id {shown(self.id)} must be 1 to {MESSAGE_ID_CHARACTERS_MAX} printable "
                "ASCII characters without spaces"
            )
        _check_bytes("payload", self.payload, PAYLOAD_BYTES_MAX)
        _check_bytes("key", self.key, KEY_BYTES_MAX)
        _check_bytes("partition key", self.partition_key, KEY_BYTES_MAX)
        for name, value in self.headers:
            check_header(name)
            if name == MESSAGE_ID_HEADER:
                raise InvalidInput(f"header {name!r} is set by the outbox; give the id as `id`")
            _check_bytes(f"header {shown(name)}", value, KEY_BYTES_MAX)

    @classmethod
    def of(
        cls,
        topic: str,
        payload: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition_key: bytes | str | None = None,
        headers: HeadersGiven = (),
        message_id: str | None = None,
    ) -> "Message":
        """The same with text where bytes are wanted; text becomes UTF-8. Raises `InvalidInput`."""
        made = cls(
            topic,
            _bytes(payload, "payload"),
            _bytes(key, "key"),
            _bytes(partition_key, "partition key"),
            _headers(headers),
        )
        return made if message_id is None else replace(made, id=message_id)


def _check_bytes(what: str, value: object, bytes_max: int) -> None:
    if value is None:
        return
    if not isinstance(value, bytes):
        raise InvalidInput(
            f"the {what} is {type(value).__name__}, and must be bytes: encode it before publishing"
        )
    if len(value) > bytes_max:
        raise InvalidInput(f"the {what} has {len(value)} bytes, more than {bytes_max}")


def _bytes(value: bytes | str | None, what: str) -> bytes | None:
    return encoded(value, what) if isinstance(value, str) else value


def _headers(given: HeadersGiven) -> Headers:
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple((name, _bytes(value, "value of a header")) for name, value in pairs)


def headers_to_text(headers: Headers) -> str | None:
    """Headers as they are stored; None for none."""
    if not headers:
        return None
    return json.dumps([_header_to_json(name, value) for name, value in headers])


def _header_to_json(name: str, value: bytes | None) -> list[str | None]:
    if value is None:
        return [name, None]
    try:
        return [name, value.decode()]
    except UnicodeDecodeError:
        return [name, base64.b64encode(value).decode(), "base64"]


def headers_from_text(text: str | None) -> Headers:
    """What `headers_to_text`, or another writer, has stored. Raises `InvalidInput`."""
    if text is None:
        return ()
    try:
        return tuple(_header_from_json(item) for item in json.loads(text))
    except (ValueError, TypeError, binascii.Error) as error:
        raise InvalidInput(f"headers are not a list of names and values: {error}") from error


def _header_from_json(item: Sequence[str | None]) -> tuple[str, bytes | None]:
    name, value, *coding = item
    if not isinstance(name, str) or not (value is None or isinstance(value, str)):
        raise ValueError(f"{item!r} is not a name and a value")
    if coding not in ([], ["base64"]):
        raise ValueError(f"unknown coding {coding!r}")
    if value is None:
        return name, None
    return name, base64.b64decode(value, validate=True) if coding else value.encode()
