"""How a consumer works, as its user says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer works. `batch` above 0: the handler gets lists of up to so many."""

    lease_ms: int = 30_000
    concurrency: int = 16
    batch: int = 0
    rack: str = ""
    id: str = ""
    stop_ms: int = 30_000

    @property
    def capacity(self) -> int:
        """Messages that are here at once: those that run, and as many that wait for their turn."""
        return 2 * self.concurrency * max(1, self.batch)
