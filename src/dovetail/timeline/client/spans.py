"""Spans of a client of timelines: scheduling, and handling due messages."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dovetail import tracing
from dovetail.timeline.client.message import Message


def scheduling(
    timeline: str, headers: Sequence[Mapping[str, bytes]]
) -> AbstractContextManager[Any]:
    """Around storing messages with these headers; their context is the one inside.

    Messages that bring contexts of their own, all of them, need none.
    """
    if not tracing.is_on() or all(tracing.TRACEPARENT in given for given in headers):
        return tracing.NO_SPAN
    about: tracing.Attributes = {
        "dovetail.timeline": timeline,
        "messaging.operation.name": "schedule",
        "messaging.batch.message_count": len(headers),
    }
    return tracing.span(f"schedule {timeline}", kind="producer", attributes=about)


def handling(timeline: str, messages: Sequence[Message]) -> AbstractContextManager[Any]:
    """Around a handler; a list belongs to the trace of its first message."""
    first = messages[0]
    if not tracing.is_on() or tracing.traceparent_in(first.headers) is None:
        return tracing.NO_SPAN
    about: tracing.Attributes = {
        "dovetail.timeline": timeline,
        "dovetail.attempt": first.attempt,
        "messaging.operation.name": "handle",
        "messaging.message.id": str(first.id),
        "messaging.batch.message_count": len(messages),
    }
    name = f"handle {timeline}"
    return tracing.span(name, kind="consumer", parent=first.headers, attributes=about)
