"""A dead letter of any kind, and the result of replaying or dropping some."""

from dataclasses import dataclass, field

from msgspec import Struct

from dovetail.errors import InvalidInput


class DeadSource(Struct, frozen=True):
    """A place with dead letters; `trouble` is why it could not be asked."""

    source: str
    name: str
    count: int | None
    trouble: str | None = None


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A message or job that was given up."""

    source: str
    name: str
    id: str
    key: bytes | None
    body: bytes | None
    headers: list[tuple[str, bytes | None]]
    reason: str
    kind: str | None = None
    attempts: int | None
    died_ms: int | None
    detail: str | None
    can_replay: bool = True
    can_drop: bool = True


class DeadLeft(Struct, frozen=True):
    """A letter that stayed as it is, and why."""

    id: str
    reason: str


class DeadDone(Struct, frozen=True):
    """How many were replayed or dropped, and which were not."""

    done: int
    left: list[DeadLeft]


@dataclass(frozen=True, slots=True)
class Found:
    """The dead letters of one kind, and where they are."""

    sources: list[DeadSource] = field(default_factory=list)
    letters: list[DeadLetter] = field(default_factory=list)


#: Why a letter was left that is not there.
GONE = "this dead letter no longer exists"


def numbers(ids: list[str]) -> list[int]:
    """Ids that are numbers. Raises `InvalidInput`."""
    for text in ids:
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise InvalidInput(f"{text!r} is not an id of such a dead letter; its ids are numbers")
    return [int(text) for text in ids]
