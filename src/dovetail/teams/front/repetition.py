"""Whether a submitted job repeats an earlier one: the rule of `seen`, applied to one id.

A record is a repetition if an earlier record of its partition has the same identity and a time
later than its own minus the time to live. The earlier one may be a repetition itself, so the search
goes back from one to the next until a whole time to live has none: that one was accepted, and
outcomes of the id are not older than it.

A team reads its whole partition and remembers (`seen_log`). This module reads a window of the
partition for a single id, and needs neither Arrow nor memory.
"""

from collections.abc import Callable, Iterable

#: Times of the records of one identity, from a time on and below an offset: (offset, milliseconds).
Look = Callable[[int, int], Iterable[tuple[int, int]]]


def first_accepted(look: Look, *, offset: int, at_ms: int, remember_ms: int) -> int | None:
    """When the job was accepted that a record repeats, in milliseconds; None if it is new.

    `look(since_ms, below)` finds the earlier records of the same identity.
    """
    accepted: int | None = None
    while True:
        since_ms = at_ms - remember_ms
        earlier = [(at, one) for one, at in look(since_ms, offset) if at > since_ms]
        if not earlier:
            return accepted
        at_ms, offset = min(earlier)
        accepted = at_ms
