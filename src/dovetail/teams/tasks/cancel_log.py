"""Follows the cancels of a pipeline for one task: first all that exist, then new ones."""

from dovetail.kafka.client.client import EARLIEST, LATEST, KafkaClient
from dovetail.spark.fetching import Fetched, fetch
from dovetail.spark.objects import found_in
from dovetail.teams.cancelling import Cancels
from dovetail.teams.graph import cancels_topic
from dovetail.teams.tasks.tail import Tail


class CancelLog:
    """Follows the topic of cancels. The partitions of a task share one."""

    def __init__(self, client: KafkaClient, pipeline: str) -> None:
        """Reads all that is there. Raises `Unavailable`, and `TopicUnknown`."""
        self._place = (cancels_topic(pipeline), 0)
        self.cancels = Cancels()
        #: How many it has read; whoever has seen fewer looks through its jobs again.
        self.count = 0
        start = client.offsets({self._place: EARLIEST})[self._place]
        end = client.offsets({self._place: LATEST})[self._place]
        for fetched in fetch(client, self._place, start, end, committed=True):
            self._note(fetched, start)
        self._tail = Tail(client, self._place, position=end)

    def fileno(self) -> int:
        """What to wait for; -1: nothing."""
        return self._tail.fileno()

    @property
    def due_s(self) -> float | None:
        """When to call `step` at the latest."""
        return None if self._tail.fileno() >= 0 else self._tail.retry_s

    def step(self, now_s: float, ready: set[int]) -> None:
        """Takes what has come. Called by each partition of the task: the first one does it."""
        position = self._tail.position
        fetched = self._tail.take(now_s, ready)
        if fetched is not None:
            self._note(fetched, position)
        self._tail.ask(now_s)

    def close(self) -> None:
        """Leaves the topic."""
        self._tail.close()

    def _note(self, fetched: Fetched, position: int) -> None:
        if not fetched.batches:
            return
        for one in found_in(fetched.batches, self._place, offset_min=position):
            if one.key is not None:
                reason = (one.value or b"").decode(errors="replace")
                self.cancels.note(one.key, at_ms=one.at_ms, reason=reason)
                self.count += 1
