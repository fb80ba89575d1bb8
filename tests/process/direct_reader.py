"""A reader that asks one broker and no other, whoever leads, and notes every answer that is old.

Old is an end below what was acknowledged before the question was sent, by whichever broker, and
"out of range" for a position up to there: a consumer would jump at that. To refuse is no lie.
"""

import threading
from typing import Any

from tests.process.checker import Workload

from dovetail.errors import Unavailable
from dovetail.kafka.client.connection import Connection
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode

_LATEST = -1
_PAUSE_S = 0.002


def ask_end(connection: Connection, topic: str, partition: int) -> tuple[ErrorCode, int]:
    """ListOffsets for the latest one."""
    wanted = m.ListOffsetsRequestPartition(partition_index=partition, timestamp=_LATEST)
    request = m.ListOffsetsRequest(
        replica_id=-1, topics=(m.ListOffsetsRequestTopic(name=topic, partitions=(wanted,)),)
    )
    one = connection.call(ApiKey.LIST_OFFSETS, request).topics[0].partitions[0]
    return ErrorCode(one.error_code), one.offset


def fetch_request(topic: str, partition: int, offset: int, *, wait_ms: int) -> m.FetchRequest:
    """A Fetch that waits so long for a byte."""
    wanted = m.FetchRequestPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=1000
    )
    return m.FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1000,
        topics=(m.FetchRequestTopic(topic=topic, partitions=(wanted,)),),
    )


def fetched_end(answer: Any) -> tuple[ErrorCode, int]:
    """What a Fetch of one partition says of its end."""
    one = answer.responses[0].partitions[0]
    return ErrorCode(one.error_code), one.high_watermark


class DirectReader:
    """Asks about partition 0 in a thread, from `start` to `finish`."""

    def __init__(self, address: tuple[str, int], topic: str, workload: Workload) -> None:
        self._connection = Connection(address, client_id="direct", timeout_s=30)
        self._topic = topic
        self._workload = workload
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.told = 0
        self.refused = 0
        self.sent_away = 0
        self.old: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the broker neither answers nor hangs up"
        self._connection.close()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            least = len(self._workload.acknowledged[0])
            try:
                self._judge("ListOffsets", least, ask_end(self._connection, self._topic, 0))
                least = len(self._workload.acknowledged[0])
                request = fetch_request(self._topic, 0, least, wait_ms=0)
                answer = self._connection.call(ApiKey.FETCH, request)
                self._judge(f"Fetch at {least}", least, fetched_end(answer))
            except Unavailable:
                self.sent_away += 1

    def _judge(self, asked: str, least: int, found: tuple[ErrorCode, int]) -> None:
        code, end = found
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.refused += 1
        elif code is ErrorCode.NONE and end >= least:
            self.told += 1
        else:
            self.old.append(f"{asked}: {code.name}, end {end}; {least} were acknowledged")
