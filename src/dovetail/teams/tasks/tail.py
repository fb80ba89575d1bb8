"""Follows a partition: one request at a time, without blocking.

A transient failure (a leader that moved, a broker that restarts, silence) is retried after a pause;
one that does not pass in the client's time is raised.
"""

from dovetail.errors import Unavailable
from dovetail.kafka.client.client import KafkaClient, Partition, name_of
from dovetail.spark.fetching import Fetched, Reader

#: The broker answers when there is something; else so late.
_POLL_WAIT_MS = 1_000
_PAUSE_S = 0.1


class Tail:
    """Reads what is committed of a partition, from a position on."""

    def __init__(self, client: KafkaClient, place: Partition, *, position: int = 0) -> None:
        self._client, self._place = client, place
        self._reader = Reader(client, place, committed=True)
        #: The next offset to be read.
        self.position = position
        #: When it asks again, after something went wrong.
        self.retry_s = 0.0
        self._answer_by_s = 0.0
        self._failing_since_s: float | None = None

    def fileno(self) -> int:
        """The socket on which an answer comes; -1 if none is awaited."""
        return self._reader.fileno()

    def take(self, now_s: float, ready: set[int]) -> Fetched | None:
        """What has come, if anything. Raises what does not pass, `Unavailable` among it."""
        asked = self._reader.fileno()
        if asked < 0:
            return None
        try:
            if asked in ready:
                # Partitions share a tail; the next must not wait for what is asked from here on.
                ready.discard(asked)
                fetched = self._reader.take(self.position)
                self._failing_since_s = None
                if fetched.batches:
                    self.position = fetched.batches[-1].offset_end
                return fetched
            if now_s > self._answer_by_s:
                raise Unavailable(f"{name_of(self._place)}: no answer in time")
        except Unavailable as error:
            self._failed(now_s, error)
        return None

    def ask(self, now_s: float) -> None:
        """Asks for what comes next, unless it has. Raises as `take` does."""
        if self._reader.fileno() >= 0 or now_s < self.retry_s:
            return
        try:
            self._reader.ask(self.position, wait_ms=_POLL_WAIT_MS)
            self._answer_by_s = now_s + self._client.request_s
            if self._reader.fileno() < 0:
                raise Unavailable(f"{name_of(self._place)}: no connection to its leader")
        except Unavailable as error:
            self._failed(now_s, error)

    def close(self) -> None:
        """Gives its connection back."""
        self._reader.close()

    def drop(self) -> None:
        """Closes its connection, answer or not."""
        self._reader.drop()

    def _failed(self, now_s: float, error: Unavailable) -> None:
        self._reader.drop()
        self._client.forget_leaders()
        self._failing_since_s = self._failing_since_s or now_s
        if now_s - self._failing_since_s > self._client.timeout_s:
            raise error
        self.retry_s = now_s + _PAUSE_S
