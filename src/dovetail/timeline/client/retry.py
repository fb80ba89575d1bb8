"""A failed attempt: when the message comes again, and the reason that is kept with it."""

import random
import traceback
from typing import Final

from dovetail.foreign import described, readable
from dovetail.timeline.client.moments import Duration, duration_ms
from dovetail.timeline.message import REASON_CHARACTERS_MAX

#: Pause after the first failed attempt, doubled with each, and its longest.
BACKOFF_MS_MIN: Final = 1_000
BACKOFF_MS_MAX: Final = 3_600_000


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


def pause_ms(attempt: int, error: BaseException) -> int:
    """How long a message rests that failed: what `Retry` says, or longer each time.

    A random half is taken off, so that what failed together does not come again together.
    """
    if isinstance(error, Retry):
        return error.after_ms
    longest_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_MIN << min(attempt - 1, 22))
    return round(longest_ms * random.SystemRandom().uniform(0.5, 1.0))


def reason_of(error: BaseException) -> str:
    """The kind of the error and its text, with the end of the traceback."""
    text = readable("".join(traceback.format_exception(error)).strip())
    head = described(error)
    room = REASON_CHARACTERS_MAX - len(head) - 1
    return f"{head}\n{text[-room:]}" if room > 0 else head[:REASON_CHARACTERS_MAX]
