"""Which events the handler sees: those of the leader, while it leads.

A `SharedStream` can be given another filter, for example one that also inspects the event.

    HANDLE   the handler gets the event
    SKIP     the event counts as done, and the handler never sees it
    WAIT     the event waits, and all events behind it; the filter is asked again soon. The next
             leader asks its own filter

A filter that raises, or answers anything else, makes the event wait: its mistakes lose nothing.
"""

from enum import Enum
from typing import Protocol

from dovetail.election import Leadership
from dovetail.stream.source import Event


class Verdict(Enum):
    """What becomes of an event."""

    HANDLE = "handle"
    SKIP = "skip"
    WAIT = "wait"


class LeaderEventFilter(Protocol):
    """Decides right before each event is handed over."""

    def verdict(self, event: Event, leadership: Leadership) -> Verdict:
        """What to do with it; may be called from another thread."""
        ...


class OnlyLeader:
    """The filter that is used unless another one is given."""

    __slots__ = ()

    def verdict(self, event: Event, leadership: Leadership) -> Verdict:
        del event
        return Verdict.HANDLE if leadership.valid else Verdict.WAIT
