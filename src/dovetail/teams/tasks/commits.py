"""Commits the snapshots of one partition without waiting for the answer.

A commit waits for the disk of a broker, and everything else in its task would wait with it. One is
in flight at a time. A failure costs one snapshot: the next one says the same and more.
"""

from contextlib import suppress

from dovetail.errors import DovetailError
from dovetail.kafka.client.client import KafkaClient, commit_request, refused_positions
from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.teams.chains.snapshot import Snapshot

#: An answer that takes longer is not waited for.
_ANSWER_S_MAX = 10.0


class Commits:
    """The commits of one group, on a connection of their own."""

    def __init__(self, client: KafkaClient, group: str) -> None:
        self._client, self._group = client, group
        self._connection: Connection | None = None
        self._asked: RequestHeader | None = None
        self._sent: Snapshot | None = None
        self._answer_by_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether one is on its way."""
        return self._asked is not None

    def fileno(self) -> int:
        """The socket that the answer comes on; -1 if none is awaited."""
        if self._connection is None or self._asked is None:
            return -1
        return self._connection.fileno()

    def send(self, snapshot: Snapshot, note: str, *, now_s: float) -> None:
        """Begins a commit; only to find the coordinator, the first time, is waited for."""
        assert not self.busy, "one at a time"
        request = commit_request(self._group, snapshot.positions(), snapshot.texts(note))
        try:
            if self._connection is None:
                self._connection = self._client.borrow_coordinator(self._group)
            self._asked = self._connection.send(ApiKey.OFFSET_COMMIT, request)
            self._sent, self._answer_by_s = snapshot, now_s + _ANSWER_S_MAX
        except DovetailError:
            self.close()

    def take(self, now_s: float, ready: set[int]) -> Snapshot | None:
        """The snapshot that is stored now, if one is."""
        if self._connection is None or self._asked is None:
            return None
        if self._connection.fileno() not in ready:
            if now_s > self._answer_by_s:
                self.close()
            return None
        asked, self._asked = self._asked, None
        sent, self._sent = self._sent, None
        try:
            answer = self._connection.receive(asked)
        except DovetailError:
            self.close()
            return None
        if refused_positions(answer):
            # Another broker coordinates the group by now, or it loads.
            self.close()
            return None
        return sent

    def close(self) -> None:
        """Gives up what is under way."""
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()
        self._connection = self._asked = self._sent = None
