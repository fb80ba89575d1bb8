"""Positions in a partition as people write them: the beginning, the end, an offset, a moment."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from dovetail.errors import InvalidInput

_WORDS: dict[str, Literal["beginning", "end"]] = {
    "beginning": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
}


@dataclass(frozen=True, slots=True)
class Position:
    """`number` is the offset, or the moment in milliseconds since the epoch."""

    kind: Literal["beginning", "end", "offset", "time"]
    number: int = 0


def parse_position(text: str) -> Position:
    """The position of `beginning`, `end`, an offset, or a time such as 2026-01-31T08:00.

    A time without a zone is in the zone of this machine. Raises `InvalidInput`.
    """
    word = _WORDS.get(text.lower())
    if word is not None:
        return Position(word)
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return Position("offset", int(text))
    try:
        moment = datetime.fromisoformat(text)
        return Position("time", max(0, round(moment.timestamp() * 1000)))
    except (ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{text!r} is no position; use beginning, end, an offset such as 1200, "
            "or a time such as 2026-01-31T08:00 or 2026-01-31T08:00:00Z"
        ) from error
