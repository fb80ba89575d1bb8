"""Which events the handler sees: those of the leader, while it leads.

Another filter can be given to a `SharedStream`, for example one that also looks at the event. What
a filter refuses is not handled by this leader in this leadership, and stays for the next one.
"""

from typing import Protocol

from dovetail.election import Leadership
from dovetail.stream.source import Event


class LeaderEventFilter(Protocol):
    """Decides right before each event is handed over."""

    def accepts(self, event: Event, leadership: Leadership) -> bool:
        """Whether to hand it over; may be called from another thread."""
        ...


class OnlyLeader:
    """The filter that is used unless another one is given."""

    __slots__ = ()

    def accepts(self, event: Event, leadership: Leadership) -> bool:
        del event
        return leadership.valid
