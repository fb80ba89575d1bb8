"""A dead letter of any kind, as it is shown; and what became of those that were dealt with."""

from dataclasses import dataclass, field

from msgspec import Struct

from dovetail.console.web.content import Content, HeaderShown
from dovetail.errors import InvalidInput


class DeadSource(Struct, frozen=True):
    """A place with dead letters; `trouble` is why it could not be asked."""

    source: str
    name: str
    count: int | None
    trouble: str | None = None


class DeadLetter(Struct, frozen=True):
    """A message or work that was given up."""

    source: str
    name: str
    id: str
    key: Content | None
    body: Content | None
    headers: list[HeaderShown]
    reason: str
    kind: str | None
    attempts: int | None
    died_ms: int | None
    detail: str | None
    can_replay: bool
    can_drop: bool


class DeadLeft(Struct, frozen=True):
    """A letter that was left as it is, and why."""

    id: str
    reason: str


class DeadDone(Struct, frozen=True):
    """How many were dealt with, and which were not."""

    done: int
    left: list[DeadLeft]


@dataclass(frozen=True, slots=True)
class Found:
    """What one kind has."""

    sources: list[DeadSource] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


def numbers(ids: list[str]) -> list[int]:
    """Ids that are numbers. Raises `InvalidInput`."""
    for text in ids:
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise InvalidInput(f"{text!r} is no id of such a dead letter; they are numbers")
    return [int(text) for text in ids]
