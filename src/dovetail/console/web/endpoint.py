"""An endpoint, declared once: its route, its checks and its page in the document come from here.

A handler gets the request, decoded and checked against the declared types, and returns an object of
the declared type. An endpoint with an `action` changes something: it is audited, and its request
must be JSON. `dispatch` performs what is declared; `openapi` describes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dovetail.errors import InvalidInput

if TYPE_CHECKING:
    from dovetail.console.desk import Desk

Query = TypeVar("Query")
Body = TypeVar("Body")

#: A request of names and settings; messages have a limit of their own.
BODY_BYTES_MAX = 64 * 1024
#: A message in base64, with its JSON around it: the largest that a topic takes by default.
MESSAGE_BODY_BYTES_MAX = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and from where."""

    who: str
    address: str


@dataclass(frozen=True, slots=True)
class Asked(Generic[Query, Body]):
    """A request that was checked. Without a declared query or body, that is None."""

    path: Mapping[str, str]
    query: Query
    body: Body
    caller: Caller
    #: Returns when the caller has gone away; asked for once, by a handler that waits.
    gone: Callable[[], Awaitable[object]] = asyncio.Event().wait

    def number(self, name: str) -> int:
        """A number in the path. Raises `InvalidInput`."""
        text = self.path[name]
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise InvalidInput(f"{text[:50]!r} is not a number; {name} is one from 0 on")
        return int(text)


def asked_by_node(query: Query, **path: str) -> Asked[Query, None]:
    """What the node itself asks, for the overview and for live documents."""
    return Asked(path, query, None, Caller("node", ""))


Handler = Callable[["Desk", Asked[Any, Any]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path. The handler's docstring is its description."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any = None
    query: type | None = None
    body: type | None = None
    status: int = 200
    #: What the audit log calls it; None for what only reads.
    action: str | None = None
    #: Names in the path that are numbers.
    numbers: tuple[str, ...] = ()
    body_bytes_max: int = BODY_BYTES_MAX

    @property
    def tag(self) -> str:
        """The noun: the first part of the path behind the version."""
        return self.path.split("/")[2]
