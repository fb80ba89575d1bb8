"""Records and their order: one idempotent producer, six partitions, all faults of a cluster.

And poison: batches of garbage for the partitions that are counted, and bytes that are no frames.
"""

import contextlib
import random
import socket
from collections.abc import Callable, Mapping, Sequence

from tests.cluster_processes import ClusterProcesses
from tests.fuzz.hostile_client import batch, forged, framed, produce_request
from tests.process.checker import check_all
from tests.process.cluster_faults import FAULTS, PARTITIONS, Trial
from tests.soak.part import Heal

from dovetail.errors import DovetailError
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode

_GOOD = batch()
#: Sound by its checksum, and no records in it.
GARBAGE = forged(_GOOD[:61] + b"\xff" * (len(_GOOD) - 61))


class LogPart:
    """The cluster itself."""

    name = "log"

    def __init__(self, cluster: ClusterProcesses, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._trial = Trial(cluster, "soak", rng)

    def faults(self) -> Sequence[Callable[[], Heal]]:
        def of(fault: Callable[[Trial], Heal]) -> Callable[[], Heal]:
            def harm() -> Heal:
                return fault(self._trial)

            harm.__name__ = fault.__name__
            return harm

        return [*(of(fault) for fault in FAULTS), self.send_garbage, self.send_garbage]

    def send_garbage(self) -> Heal:
        """Refused everywhere; nothing of it may be read by anybody."""
        for name in self._cluster.brokers:
            with contextlib.suppress(OSError):
                made = socket.create_connection(self._cluster.address(name), timeout=5)
                with made:
                    made.sendall(framed(self._rng.randbytes(self._rng.randint(0, 2000))))
        client = KafkaClient(Brokers(self._cluster.bootstrap))
        with contextlib.closing(client):
            for number in range(PARTITIONS):
                self._refused(client, number)
        return lambda: None

    def _refused(self, client: KafkaClient, number: int) -> None:
        request = produce_request(self._trial.topic, GARBAGE, partition=number)
        try:
            answer = client.borrow((self._trial.topic, number)).call(ApiKey.PRODUCE, request)
        except DovetailError as error:
            # The partition changes hands; nobody took it, which is counted in the end.
            assert error.retriable, error
            return
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        moved = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert code in (ErrorCode.INVALID_RECORD, *moved), code

    def done(self) -> int:
        return self._trial.workload.acknowledged_count

    def pids(self) -> Mapping[str, int]:
        return {name: node.pid for name, node in self._cluster.nodes.items() if node.running}

    def finish(self) -> None:
        self._cluster.mend()
        self._trial.workload.finish()

    def judge(self) -> str:
        assert self._trial.workload.errors == []
        read = check_all(self._trial.workload, self._cluster.bootstrap)
        for line in self._cluster.log().splitlines():
            # The driver of PostgreSQL tells of each attempt to reach a database that is away.
            if '"component": "asyncpg' not in line:
                assert not any(word in line for word in ("met a defect", "Traceback")), line
        return f"{self.done()} acknowledged, {read} read"

    def end(self) -> None:
        """The cluster ends with its own block."""
