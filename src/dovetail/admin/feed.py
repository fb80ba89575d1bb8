"""Follows a topic with one partition: each read gets only what is new."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.admin.positions import Bounds, bounds_of
from dovetail.errors import Unavailable

if TYPE_CHECKING:
    from dovetail.admin.kafka import Kafka
    from dovetail.admin.records import Record

#: Records of one look.
SCAN_MAX = 200_000


class Feed:
    """What is new in a topic since the last look."""

    def __init__(
        self, topic: str, *, start: "Callable[[Kafka, Bounds], int] | None" = None
    ) -> None:
        """`start` says where the first look begins; without it, at the beginning."""
        self.topic = topic
        self._start = start
        self._next: int | None = None

    def read(self, kafka: "Kafka") -> "tuple[list[Record], bool] | None":
        """What is new, and whether the topic was read anew, so that what was known is void.

        It is read anew at the first look, and when it was trimmed below where the last look ended
        or was created again. None if there is no such topic, or nobody serves it. Raises
        `Unavailable`.
        """
        from dovetail.admin.records import ReadLimits, Span, read

        place = (self.topic, 0)
        bounds = bounds_of(kafka, [place]).get(place)
        if bounds is None:
            return None
        anew = self._next is None or not bounds.first <= self._next <= bounds.end
        start = self._next
        if start is None or anew:
            start = bounds.first if self._start is None else self._start(kafka, bounds)

        reading = read(kafka, self.topic, [Span(0, start, bounds.end)], ReadLimits(scan=SCAN_MAX))
        if not reading.complete:
            raise Unavailable(f"topic {self.topic!r} could not be read to its end in time; retry")
        self._next = reading.next.get(0, start)
        return reading.records, anew
