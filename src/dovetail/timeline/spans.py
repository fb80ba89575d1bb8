"""The span of a delivery: from a message's due time until it leaves the node.

Its length is the lateness. The parent is the span that scheduled the message, by its header.
"""

from dovetail import tracing
from dovetail.errors import InvalidInput
from dovetail.timeline.message import Leased, decode_headers


def note_delivered(timeline: str, message: Leased, start_ms: int, now_ms: int) -> None:
    """Makes the span, if the message carries a context."""
    if not message.headers:
        return
    try:
        headers = decode_headers(message.headers)
    except InvalidInput:
        # What they are is between producer and consumer; a span is not worth a failure.
        return

    if tracing.traceparent_in(headers) is None:
        return

    began_ms = min(start_ms, now_ms)
    tracing.past_span(
        f"deliver {timeline}",
        parent=headers,
        began_ns=began_ms * 1_000_000,
        ended_ns=now_ms * 1_000_000,
        attributes={
            "dovetail.timeline": timeline,
            "dovetail.attempt": message.attempt,
            "messaging.message.id": str(message.id),
        },
    )
