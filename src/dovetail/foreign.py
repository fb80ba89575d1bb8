"""Foreign text: what keys, ids, names, headers, reasons and bodies may hold (R6).

    body, value, payload    any bytes; text in their place is encoded (`encoded`)
    header                  a name without NUL, and any bytes (`check_header`)
    key, id                 text that every store takes: 1 to 255 characters, no NUL (`check_key`)
    group                   text without NUL (`check_group`)
    topic                   Kafka's names: letters, digits, '.', '_' and '-' (`check_topic`)
    reason                  whatever an exception says, made readable (`described`, `readable`)

An exception may raise when it is converted to text, and any text may hold NUL, which PostgreSQL
does not store, or a lone surrogate, which has no encoding. Text that is only displayed is made
readable, and that never raises. Text that is stored unchanged is refused where it enters, before
anything has happened, with `InvalidInput`.
"""

import re
import traceback
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from dovetail.errors import InvalidInput

#: Longest key, consumer id and name of a schedule, in characters: they are entries of an index.
KEY_CHARACTERS_MAX: Final = 255
#: Without NUL, which PostgreSQL cannot store in a text, and without half a character.
Key = Annotated[
    str, Meta(min_length=1, max_length=KEY_CHARACTERS_MAX, pattern=r"\A[^\x00\ud800-\udfff]*\Z")
]

#: Kafka's limit, and one of file systems less a suffix for the partition.
TOPIC_CHARACTERS_MAX: Final = 249
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
#: Names of groups are shown in lists and metrics; longer ones are data.
GROUP_CHARACTERS_MAX: Final = 1000
#: Longest text in a request of Kafka's protocol, which counts it in 16 bits with a sign.
KAFKA_TEXT_BYTES_MAX: Final = 32_767
#: How much of a refused value an error message shows.
_SHOWN_MAX = 80


def check_key(key: object, what: str) -> str:
    """A key, consumer id or name, as it was given. Raises `InvalidInput` if no store takes it."""
    try:
        return msgspec.convert(key, Key)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"{shown(key)} is not a {what}: write text of 1 to {KEY_CHARACTERS_MAX} characters "
            "without NUL"
        ) from error


def check_topic(name: object) -> str:
    """The name, if a topic can have it. Raises `InvalidInput`."""
    fits = isinstance(name, str) and len(name) <= TOPIC_CHARACTERS_MAX and _TOPIC.fullmatch(name)
    if not fits or name in (".", ".."):
        raise InvalidInput(
            f"{shown(name)} cannot name a topic: use 1 to {TOPIC_CHARACTERS_MAX} letters, digits "
            "and . _ -"
        )
    return str(name)


def check_group(name: object) -> str:
    """The name of a consumer group, as C clients take it. Raises `InvalidInput`."""
    fits = isinstance(name, str) and 0 < len(name) <= GROUP_CHARACTERS_MAX and "\0" not in name
    if not isinstance(name, str) or not fits:
        raise InvalidInput(
            f"{shown(name)} cannot name a group: use 1 to {GROUP_CHARACTERS_MAX} characters "
            "without NUL"
        )
    encoded(name, "name of a group")
    return name


def check_header(name: object) -> str:
    """The name of a header of a record. Raises `InvalidInput`.

    C clients end a name at NUL: two names that differ behind it would be one.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidInput(f"header name {shown(name)} must be text without NUL, and not empty")
    encoded(name, "name of a header")
    return name


def encoded(text: str, what: str, *, bytes_max: int | None = None) -> bytes:
    """Text as UTF-8. Raises `InvalidInput` for half a character, and for too much."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"the {what} {shown(text)} holds half a character (a lone surrogate), which has no "
            "encoding; give bytes, or text that has one"
        ) from error
    if bytes_max is not None and len(data) > bytes_max:
        raise InvalidInput(f"the {what} {shown(text)} has {len(data)} bytes, more than {bytes_max}")
    return data


def shown(value: object) -> str:
    """A refused value in an error message: escaped, and cut if it is long."""
    try:
        text = ascii(value)
    except BaseException as broken:  # noqa: BLE001 - a foreign `__repr__` may do anything
        return f"({type(value).__name__}, its text cannot be read: {type(broken).__name__})"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}... ({len(text)} characters)"


def readable(text: str) -> str:
    """The text with escapes for what cannot be sent or stored: half a character, and NUL."""
    return text.replace("\0", r"\x00").encode(errors="backslashreplace").decode()


def text_of(value: object) -> str:
    """`str(value)` as readable text, also if the object cannot say it."""
    try:
        return readable(str(value))
    except BaseException as broken:  # noqa: BLE001 - a foreign `__str__` may do anything
        return f"(its text cannot be read: {type(broken).__name__})"


def traceback_of(error: BaseException) -> str:
    """Its traceback as readable text; also of an exception whose parts cannot be read."""
    try:
        return readable("".join(traceback.format_exception(error)))
    except BaseException as broken:  # noqa: BLE001 - its notes or lines may be anything
        unread = f"(its traceback cannot be read: {type(broken).__name__})\n"
        return f"{''.join(map(readable, traceback.format_tb(error.__traceback__)))}{unread}"


def described(error: BaseException) -> str:
    """The class of an exception and its text, on one line where it has one."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
