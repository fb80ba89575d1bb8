"""A message to be scheduled, as people write it and as it travels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict

import msgspec

from dovetail import tracing
from dovetail.errors import InvalidInput
from dovetail.foreign import check_key
from dovetail.timeline.client.moments import Duration, Moment, duration_ms, moment_ms
from dovetail.timeline.message import (
    PRIORITY_MAX,
    TIME_MS_MAX,
    KeyRule,
    Life,
    NewMessage,
    OnTaken,
    encode_headers,
)

#: Bytes travel as they are, text as UTF-8, a dict or a list as JSON.
Body = bytes | str | dict[str, Any] | list[Any]
OnTakenName = Literal["keep", "replace", "earlier", "fail"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A message to be scheduled, for `schedule_many`: due `at`, after `delay`, or now."""

    body: Body
    at: Moment | None = None
    delay: Duration | None = None
    key: str | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)
    priority: int = 0
    #: Messages of one order key are handled one at a time, in order of due time.
    order_key: str | None = None
    #: The last attempt, the rest after the first one, and how late it may be handled at most; the
    #: timeline's own without.
    attempts: int | None = None
    backoff: Duration | None = None
    ttl: Duration | None = None
    #: While a message has the key: `keep` it, `replace` it, make it due `earlier`, or `fail`.
    on_taken: OnTakenName = "keep"
    #: The key stays taken for so long after the message is done.
    hold: Duration | None = None


class DraftTerms(TypedDict, total=False):
    """What of a `Draft` `schedule` takes by name beside its own arguments."""

    order_key: str | None
    attempts: int | None
    backoff: Duration | None
    ttl: Duration | None
    on_taken: OnTakenName
    hold: Duration | None


_RULES: Final = {
    "keep": OnTaken.KEEP,
    "replace": OnTaken.REPLACE,
    "earlier": OnTaken.EARLIER,
    "fail": OnTaken.KEEP,
}


def _check(draft: Draft) -> None:
    """Raises `InvalidInput` for what no timeline takes."""
    # Callers without a type checker give anything.
    headers: Iterable[tuple[object, object]] = draft.headers.items()
    for key, what in ((draft.key, "key"), (draft.order_key, "order key")):
        if key is not None:
            check_key(key, what)
    if draft.on_taken not in _RULES:
        raise InvalidInput(f"on_taken {draft.on_taken!r}: write {', '.join(_RULES)}")
    if draft.key is None and (draft.on_taken != "keep" or draft.hold is not None):
        raise InvalidInput("on_taken and hold are about a key; give one")
    if draft.priority not in range(PRIORITY_MAX + 1):
        raise InvalidInput(f"priority {draft.priority!r}: write a number from 0 to {PRIORITY_MAX}")
    for what, given in (
        ("attempts", draft.attempts),
        ("backoff", _ms(draft.backoff) if draft.backoff is not None else None),
        ("ttl", _ms(draft.ttl) if draft.ttl is not None else None),
    ):
        if given == 0:
            # As a number that travels, 0 stands for what the timeline says.
            raise InvalidInput(f"{what} must be above 0; leave it out for that of the timeline")
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise InvalidInput(f"header {name!r}: its name is text, and its value is bytes")


def body_bytes(body: object) -> bytes:
    """A body as it travels. Raises `InvalidInput`."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    try:
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, dict | list):
            return msgspec.json.encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"a body cannot be encoded: {error}") from error
    raise InvalidInput(
        f"a body is bytes, text, a dict or a list, not {type(body).__name__}; encode it first"
    )


def message_of_draft(draft: Draft, now_ms: int, context: str | None) -> NewMessage:
    """The message as it travels; `context` is its trace. Raises `InvalidInput`."""
    _check(draft)
    given = draft.headers
    if context is not None and tracing.TRACEPARENT not in given:
        given = {**given, tracing.TRACEPARENT: context.encode()}
    headers = encode_headers(tuple(given.items()))
    due_ms = due_ms_of(draft.at, draft.delay, now_ms)
    life = Life(draft.attempts or 0, _ms(draft.backoff), _ms(draft.ttl))
    rule = KeyRule(_RULES[draft.on_taken], _ms(draft.hold))
    return NewMessage(
        due_ms,
        body_bytes(draft.body),
        headers,
        draft.key,
        draft.priority,
        draft.order_key,
        None if life == Life() else life,
        None if rule == KeyRule() else rule,
    )


def due_ms_of(at: Moment | None, delay: Duration | None, now_ms: int) -> int:
    """When it is due; 0, which the node takes for now, if neither is given."""
    if at is not None and delay is not None:
        raise InvalidInput("a message is due at a time or after a delay, not both")
    due_ms = 0 if delay is None else now_ms + duration_ms(delay)
    if at is not None:
        due_ms = moment_ms(at)
    if due_ms > TIME_MS_MAX:
        raise InvalidInput("a message is due at the end of the year 9999 at the latest")
    return due_ms


def _ms(duration: Duration | None) -> int:
    return 0 if duration is None else duration_ms(duration)
