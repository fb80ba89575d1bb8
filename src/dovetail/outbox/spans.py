"""Spans of the outbox: for what an application publishes, and for what a relay has sent.

The context travels in the message's own headers, so the application's transaction stores it with
the message. A relay changes nothing in what it sends.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

from dovetail import tracing
from dovetail.outbox.batch import Row
from dovetail.outbox.drain import Fate, Outcome
from dovetail.outbox.message import Message


@contextmanager
def published(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The messages as they are to be published, inside the span of their publication."""
    if not tracing.is_on() or not messages:
        yield messages
        return
    topic = messages[0].topic
    about: tracing.Attributes = {
        "messaging.system": "dovetail",
        "messaging.operation.name": "publish",
        "messaging.destination.name": topic,
        "messaging.batch.message_count": len(messages),
        "messaging.message.id": messages[0].id,
    }
    with tracing.span(f"publish {topic}", kind="producer", attributes=about):
        context = (tracing.traceparent() or "").encode()
        yield [_with_context(message, context) for message in messages]


def _with_context(message: Message, context: bytes) -> Message:
    if any(name == tracing.TRACEPARENT for name, _ in message.headers):
        return message
    return replace(message, headers=(*message.headers, (tracing.TRACEPARENT, context)))


def follow(
    sent: "Future[dict[int, Outcome]]", topic: str, sets: Mapping[int, Sequence[Row]]
) -> None:
    """Makes the spans of a batch that is on its way, when it is known what became of it."""
    if not tracing.is_on():
        return
    began_ns = time.time_ns()

    def ended(future: "Future[dict[int, Outcome]]") -> None:
        if not future.cancelled() and future.exception() is None:
            _note(topic, sets, future.result(), began_ns)

    sent.add_done_callback(ended)


def _note(
    topic: str,
    sets: Mapping[int, Sequence[Row]],
    outcomes: Mapping[int, Outcome],
    began_ns: int,
) -> None:
    ended_ns = time.time_ns()
    for partition, rows in sets.items():
        outcome = outcomes[partition]
        error = (
            "" if outcome.fate is Fate.ACKNOWLEDGED else f"{outcome.fate.name}: {outcome.reason}"
        )
        for message_id, context in _contexts(rows):
            tracing.past_span(
                f"send {topic}",
                kind="client",
                parent=context,
                began_ns=began_ns,
                ended_ns=ended_ns,
                attributes={
                    "messaging.system": "kafka",
                    "messaging.operation.name": "send",
                    "messaging.destination.name": topic,
                    "messaging.destination.partition.id": str(partition),
                    "messaging.message.id": message_id,
                },
                error=error,
            )


def _contexts(rows: Iterable[Row]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if row.headers is None or tracing.TRACEPARENT not in row.headers:
            continue
        for name, value, *encoded in json.loads(row.headers):
            if name == tracing.TRACEPARENT and isinstance(value, str) and not encoded:
                yield row.message_id, value
                break
