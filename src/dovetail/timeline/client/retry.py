"""A failed attempt: when the message returns, and the reason that is stored with it."""

import random

from dovetail.foreign import described, traceback_of
from dovetail.timeline.client.message import Message
from dovetail.timeline.client.moments import Duration, duration_ms
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import REASON_CHARACTERS_MAX, Leased

_rng = random.SystemRandom()


class Retry(Exception):
    """Raised by a handler: not now, again after `after`."""

    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason or f"again after {after}")
        self.after_ms = duration_ms(after)


class Reject(Exception):
    """Raised by a handler: never again; the message is a dead letter now, with this reason."""


class NotHandled(Exception):
    """Raised by a handler that could do nothing: the message goes back, and no attempt counts.

    Only for a handler whose consumer stops then; it would be given the message again at once.
    """


def pause_ms(message: Message | Leased, error: BaseException, config: TimelineConfig) -> int:
    """How long a message rests that failed: what `Retry` says, or longer each time."""
    if isinstance(error, Retry):
        return error.after_ms
    return config.rest_ms(message.attempt, _rng, message.backoff_ms)


def reason_of(error: BaseException) -> str:
    """The kind of the error and its text, with the end of the traceback."""
    text = traceback_of(error).strip()
    head = described(error)
    room = REASON_CHARACTERS_MAX - len(head) - 1
    return f"{head}\n{text[-room:]}" if room > 0 else head[:REASON_CHARACTERS_MAX]
