"""How a consumer works, as its user says."""

import random
from dataclasses import dataclass, field

from dovetail.errors import InvalidInput
from dovetail.timeline.frames import Open


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer works. `batch` above 0: the handler gets lists of up to so many."""

    lease_ms: int = 30_000
    concurrency: int = 16
    batch: int = 0
    rack: str = ""
    id: str = ""
    stop_ms: int = 30_000
    #: Tells this consumer from another one under the same id.
    instance: int = field(default_factory=lambda: random.SystemRandom().randrange(1, 2**62))

    def __post_init__(self) -> None:
        """Raises `InvalidInput`."""
        if self.concurrency < 1 or self.batch < 0:
            raise InvalidInput(
                f"concurrency {self.concurrency} and batch {self.batch}: at least 1 and 0"
            )

    def opening(self, timeline: str) -> Open:
        """The request that begins a session."""
        return Open(timeline, self.id, self.rack, self.lease_ms, self.instance)

    @property
    def capacity(self) -> int:
        """Messages that are here at once: those that run, and as many that wait for their turn."""
        return 2 * self.concurrency * max(1, self.batch)
