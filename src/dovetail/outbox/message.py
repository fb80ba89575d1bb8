"""A message of the outbox, checked where the application passes it in.

Everything is bytes by the time it is stored: encoding happens before. Headers are stored as JSON
text, so that other languages and people can write and read them:

    [["source", "shop"], ["trace", "AP8=", "base64"], ["empty", null]]

A message keeps its id for life. The id travels as the header `dovetail-message-id`, so that a
consumer can recognise a message that was sent twice.

A message for a timeline has `timeline:` and the timeline's name in place of a topic. A header says
when it is due, for timelines and for topics that take due records: `dovetail-due` (milliseconds
since 1970) or `dovetail-delay` (milliseconds, or such as 2h, after it was published, by the clock
of the database).
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from dovetail.errors import InvalidInput
from dovetail.foreign import check_header, check_key, check_topic, encoded, shown

#: The header that carries the id of a message.
MESSAGE_ID_HEADER = "dovetail-message-id"

#: When a message is due, and after how long.
DUE_HEADER = "dovetail-due"
DELAY_HEADER = "dovetail-delay"
#: A message of a timeline with a priority has it here.
PRIORITY_HEADER = "dovetail-priority"

#: Before the name of a timeline. No topic can have a colon in its name.
TIMELINE_PREFIX = "timeline:"

#: Longest id; a UUID has 36 characters, ids of other systems seldom more than 64.
MESSAGE_ID_CHARACTERS_MAX = 64
_MESSAGE_ID = re.compile(r"[\x21-\x7e]{1,64}")

#: Longest key; databases index and compare it, and longer ones are values.
KEY_BYTES_MAX = 4096

#: Kafka clients refuse more than 64 MiB in nearly every setting; the database should not store
#: what can never leave.
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024

#: The end of the year 9999.
_TIME_MS_MAX = 253_402_300_799_999

Headers = tuple[tuple[str, bytes | None], ...]
#: After how long a message is due ("2h", a timedelta), or when.
Due = str | timedelta | datetime
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
        if self.timeline is None:
            check_topic(self.topic)
        else:
            self._check_timed(self.timeline)
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

    def _check_timed(self, timeline: str) -> None:
        """What a timeline needs: no relay could ever send anything else."""
        from dovetail.timeline.config import check_name

        check_name(timeline)
        if self.payload is None:
            raise InvalidInput("a message for a timeline needs a payload; None is for topics only")
        for what, key in (("key", self.key), ("order key", self.partition_key)):
            if isinstance(key, bytes):
                check_timed_key(key, what)
        for name, value in self.headers:
            if value is None:
                raise InvalidInput(f"header {shown(name)} has no value, which a timeline needs")

    @property
    def timeline(self) -> str | None:
        """The timeline that it goes to; None if it goes to a topic."""
        given: object = self.topic
        if not isinstance(given, str) or not given.startswith(TIMELINE_PREFIX):
            return None
        return given.removeprefix(TIMELINE_PREFIX)

    @property
    def is_due_later(self) -> bool:
        """Whether it says when it is due."""
        return any(name in (DUE_HEADER, DELAY_HEADER) for name, _ in self.headers)

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
        due: Due | None = None,
    ) -> "Message":
        """The same with text where bytes are wanted; text becomes UTF-8. Raises `InvalidInput`."""
        made = cls(
            topic,
            _bytes(payload, "payload"),
            _bytes(key, "key"),
            _bytes(partition_key, "partition key"),
            _headers(headers) if due is None else (*_headers(headers), due_header(due)),
        )
        return made if message_id is None else replace(made, id=message_id)

    @classmethod
    def for_timeline(
        cls,
        timeline: str,
        payload: bytes | str | None,
        *,
        due: Due | None = None,
        key: str | None = None,
        order_key: str | None = None,
        headers: HeadersGiven = (),
        priority: int = 0,
        message_id: str | None = None,
    ) -> "Message":
        """A message for a timeline; `key` is unique there. Raises `InvalidInput`."""
        from dovetail.timeline.config import check_name
        from dovetail.timeline.message import PRIORITY_MAX

        if not isinstance(timeline, str):
            raise InvalidInput(f"{shown(timeline)} cannot name a timeline")
        for what, given in (("key", key), ("order key", order_key)):
            if given is not None:
                check_key(given, what)
        if isinstance(priority, bool) or priority not in range(PRIORITY_MAX + 1):
            raise InvalidInput(f"priority {priority!r} is not a number from 0 to {PRIORITY_MAX}")

        pairs = _headers(headers)
        if priority:
            pairs += ((PRIORITY_HEADER, str(priority).encode()),)
        return cls.of(
            TIMELINE_PREFIX + check_name(timeline),
            payload,
            key=key,
            partition_key=order_key,
            headers=pairs,
            message_id=message_id,
            due=due,
        )


def due_header(due: Due) -> tuple[str, bytes]:
    """The header that says when a message is due. Raises `InvalidInput`."""
    from dovetail.timeline.client.moments import duration_ms, moment_ms

    name, given_ms = DELAY_HEADER, 0
    if isinstance(due, datetime):
        name, given_ms = DUE_HEADER, moment_ms(due)
    elif isinstance(due, str | timedelta):
        given_ms = duration_ms(due)
    else:
        # A number could be seconds from now or since 1970.
        raise InvalidInput(f'{shown(due)} is not a due time; write "2h", a timedelta or a datetime')
    if given_ms > _TIME_MS_MAX:
        raise InvalidInput("a message cannot be due after the year 9999")
    return name, str(given_ms).encode()


def due_ms_of(headers: Headers, *, published_ms: int) -> int | None:
    """When a message is due, in milliseconds since 1970. Raises `InvalidInput`."""
    found = dict(headers)
    for name, base_ms in ((DUE_HEADER, 0), (DELAY_HEADER, published_ms)):
        value = found.get(name)
        if value is None:
            continue
        if value.isdigit() and len(value) <= len(str(_TIME_MS_MAX)):
            return min(base_ms + int(value), _TIME_MS_MAX)
        if name == DELAY_HEADER and not value.isdigit():
            return min(base_ms + _duration_ms(value), _TIME_MS_MAX)
        raise InvalidInput(f"header {name} holds {shown(value)}, not a number of milliseconds")
    return None


def _duration_ms(value: bytes) -> int:
    """As clients of a topic that takes due records may write it, such as 2h."""
    from dovetail.timeline.client.moments import duration_ms

    try:
        return duration_ms(value.decode())
    except (UnicodeDecodeError, InvalidInput) as error:
        raise InvalidInput(
            f"header {DELAY_HEADER} holds {shown(value)}; write milliseconds or a duration such "
            "as 2h"
        ) from error


def check_timed_key(key: bytes, what: str) -> str:
    """The key as the text that a timeline takes. Raises `InvalidInput`."""
    try:
        return check_key(key.decode(), what)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the {what} {shown(key)} is not text, which a timeline needs"
        ) from error


def _check_bytes(what: str, value: object, bytes_max: int) -> None:
    if value is None:
        return
    if not isinstance(value, bytes):
        raise InvalidInput(
            f"the {what} is {type(value).__name__}, not bytes: encode it before publishing"
        )
    if len(value) > bytes_max:
        raise InvalidInput(f"the {what} has {len(value)} bytes, more than {bytes_max}")


def _bytes(value: bytes | str | None, what: str) -> bytes | None:
    return encoded(value, what) if isinstance(value, str) else value


def _headers(given: HeadersGiven) -> Headers:
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        return tuple((name, _bytes(value, "value of a header")) for name, value in pairs)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"headers are pairs of a name and a value: {error}") from error


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
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"headers are not a list of names and values: {error}") from error


def _header_from_json(item: Sequence[str | None]) -> tuple[str, bytes | None]:
    name, value, *coding = item
    if not isinstance(name, str) or not (value is None or isinstance(value, str)):
        raise ValueError(f"{item!r} is not a name and a value")
    if coding not in ([], ["base64"]):
        raise ValueError(f"unknown coding {coding!r}")
    name.encode()  # JSON can name half a character, which nothing encodes.
    if value is None:
        return name, None
    return name, base64.b64decode(value, validate=True) if coding else value.encode()
