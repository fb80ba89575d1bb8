"""The options of a consumer."""

import random
from dataclasses import dataclass, field

from dovetail.errors import InvalidInput
from dovetail.foreign import shown
from dovetail.timeline.frames import Open


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer works. `batch` above 0: the handler gets lists of up to so many.

    `prefetch`: messages that wait here for a handler, beside those that are handled; None means as
    many as are handled at once. They go back when another consumer is idle.
    """

    lease_ms: int = 30_000
    concurrency: int = 16
    batch: int = 0
    prefetch: int | None = None
    #: Longest time of a handler without progress; 0: as the timeline says.
    handling_ms_max: int = 0
    rack: str = ""
    id: str = ""
    stop_ms: int = 30_000
    #: Tells this consumer from another one under the same id.
    instance: int = field(default_factory=lambda: random.SystemRandom().randrange(1, 2**62))

    def __post_init__(self) -> None:
        """Raises `InvalidInput`."""
        for name, count in (
            ("concurrency", self.concurrency),
            ("batch", self.batch),
            ("prefetch", self.prefetch),
        ):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
                raise InvalidInput(f"{name} {shown(count)} is not a whole number")
        if self.lease_ms < 1:
            # Without one a session is a producer's: it would be given nothing, for ever.
            raise InvalidInput("a lease is at least 1 ms long; a timeline may want more")
        if self.handling_ms_max < 0:
            raise InvalidInput(f"a longest handling time of {self.handling_ms_max} ms")
        if self.concurrency < 1 or self.batch < 0 or (self.prefetch or 0) < 0:
            raise InvalidInput(
                f"concurrency {self.concurrency}, batch {self.batch}, prefetch {self.prefetch}: "
                "at least 1, 0 and 0"
            )

    def opening(self, timeline: str) -> Open:
        """The request that begins a session."""
        return Open(timeline, self.id, self.rack, self.lease_ms, self.instance)

    @property
    def handled_at_once(self) -> int:
        """Messages that handlers can have at once."""
        return self.concurrency * max(1, self.batch)

    @property
    def ahead(self) -> int:
        """Messages that may wait here beside those."""
        return self.handled_at_once if self.prefetch is None else self.prefetch
