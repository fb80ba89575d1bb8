"""Messages and their outcomes, as a client sees them."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.errors import InvalidInput
from dovetail.timeline.message import Handle, Headers, Leased, MessageId, decode_headers


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that is stored; `created` is false if its unique key was taken by this one."""

    id: MessageId
    created: bool = True


@dataclass(eq=False, slots=True)
class Message:
    """A message under a lease of this consumer."""

    id: MessageId
    body: bytes
    headers: Headers
    key: str | None
    #: When it was to be handled.
    due_ms: int
    #: Counts from 1.
    attempt: int
    priority: int
    timeline: str
    #: When this attempt may begin, and when the lease ends unless it is extended.
    start_ms: int
    until_ms: int
    handle: Handle = field(repr=False)
    order_key: str | None = None
    #: Its own rest after a first failed attempt; 0 is what the timeline says.
    backoff_ms: int = 0
    #: Until when the lease is surely ours, by `time.monotonic`: a margin before it ends.
    until_s: float = field(default=0.0, repr=False)
    #: Whether the lease is another consumer's by now; what is done then is done for nothing.
    lease_lost: bool = False
    #: When the handler last said that it goes on, by `time.monotonic`.
    _progress_s: float = field(default=0.0, repr=False)

    def progress(self) -> None:
        """Says that the handler goes on: its longest time counts from now. From any thread."""
        self._progress_s = time.monotonic()

    @property
    def text(self) -> str:
        """The body as text. Raises `InvalidInput` if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(f"the body of message {self.id} is not text: {error}") from error

    def json(self) -> Any:
        """The body, decoded as JSON. Raises `InvalidInput` if it is none."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInput(f"the body of message {self.id} is not JSON: {error}") from error

    @property
    def due(self) -> datetime:
        """When it was to be handled, in UTC."""
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)


def message_of(leased: Leased, timeline: str, *, lease_ms: int) -> Message:
    """A message as it was pushed. Raises `InvalidInput` if its headers cannot be read."""
    return Message(
        leased.id,
        leased.body,
        decode_headers(leased.headers),
        leased.key,
        leased.due_ms,
        leased.attempt,
        leased.priority,
        timeline,
        leased.until_ms - lease_ms,
        leased.until_ms,
        leased.handle,
        leased.order_key,
        leased.backoff_ms,
    )
