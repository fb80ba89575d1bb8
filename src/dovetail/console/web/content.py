"""Bytes in JSON: keys, values, headers and bodies, shown as text where they are text.

Out, valid UTF-8 without control characters shows as it is, everything else in base64; both can be
turned back into the same bytes. Long values are cut, and say so. In, a plain string stands for its
UTF-8 bytes, and base64 is for the rest.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from dovetail.errors import InvalidInput

#: Bytes of a value that are shown unless more is asked for: a screenful.
SHOWN_BYTES_DEFAULT = 16 * 1024
#: The most that can be asked for. Larger values are for a consumer.
SHOWN_BYTES_MAX = 1024 * 1024
#: Headers of one message. Kafka has no limit; what people send is a handful.
HEADERS_MAX = 100

Encoding = Literal["utf-8", "base64"]
ShownBytes = Annotated[
    int,
    Meta(ge=0, le=SHOWN_BYTES_MAX, description="Bytes of each key, value and header to show."),
]

_PLAIN_CONTROLS = frozenset("\t\n\r")
#: Bytes that a UTF-8 character can have beyond its first.
_TAIL_BYTES_MAX = 3


class Content(Struct, frozen=True):
    """Bytes as they are shown; `size` is how many there are, also if `data` was cut."""

    encoding: Encoding
    data: str
    size: int
    truncated: bool


class GivenContent(Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes as they are given."""

    data: str
    encoding: Encoding = "utf-8"


Given = str | GivenContent
HeaderName = Annotated[str, Meta(min_length=1, max_length=1_000)]


class HeaderShown(Struct, frozen=True):
    """A header of a message."""

    name: str
    value: Content | None


class HeaderGiven(Struct, frozen=True, forbid_unknown_fields=True):
    """A header to send."""

    name: HeaderName
    value: Given | None = None


HeadersGiven = Annotated[list[HeaderGiven], Meta(max_length=HEADERS_MAX)]


def shown(data: bytes | None, bytes_max: int = SHOWN_BYTES_DEFAULT) -> Content | None:
    """The bytes for a reader, at most `bytes_max` of them."""
    if data is None:
        return None
    cut = data[:bytes_max]
    text = _text(cut, cut_short=len(cut) < len(data))
    truncated = len(cut) < len(data)
    if text is not None:
        return Content("utf-8", text, len(data), truncated)
    return Content("base64", base64.b64encode(cut).decode(), len(data), truncated)


def shown_headers(
    headers: Iterable[tuple[str, bytes | None]], bytes_max: int = SHOWN_BYTES_DEFAULT
) -> list[HeaderShown]:
    """Headers for a reader."""
    return [HeaderShown(name, shown(value, bytes_max)) for name, value in headers]


def given_bytes(content: Given | None, what: str) -> bytes | None:
    """The bytes that are meant. Raises `InvalidInput`, naming `what`."""
    if content is None:
        return None
    given = GivenContent(content) if isinstance(content, str) else content
    try:
        if given.encoding == "base64":
            return base64.b64decode(given.data, validate=True)
        return given.data.encode()
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"{what} is not {given.encoding}: {error}") from error


def given_headers(headers: Iterable[HeaderGiven]) -> list[tuple[str, bytes | None]]:
    """Headers as they travel. Raises `InvalidInput`."""
    return [(h.name, given_bytes(h.value, f"header {h.name!r}")) for h in headers]


def _text(data: bytes, *, cut_short: bool) -> str | None:
    for tail in range(_TAIL_BYTES_MAX + 1 if cut_short else 1):
        try:
            text = data[: len(data) - tail].decode()
        except UnicodeDecodeError:
            continue
        # Nearly all text is printable, which is known at once.
        plain = text.isprintable() or all(
            c.isprintable() or c in _PLAIN_CONTROLS or ord(c) > 0x9F for c in text
        )
        return text if plain else None
    return None
