"""Records and their order: one idempotent producer, six partitions, all faults of a cluster."""

import random
from collections.abc import Callable, Mapping, Sequence

from tests.cluster_processes import ClusterProcesses
from tests.process.checker import check_all
from tests.process.cluster_faults import FAULTS, Trial
from tests.soak.part import Heal


class LogPart:
    """The cluster itself."""

    name = "log"

    def __init__(self, cluster: ClusterProcesses, rng: random.Random) -> None:
        self._cluster = cluster
        self._trial = Trial(cluster, "soak", rng)

    def faults(self) -> Sequence[Callable[[], Heal]]:
        def of(fault: Callable[[Trial], Heal]) -> Callable[[], Heal]:
            def harm() -> Heal:
                return fault(self._trial)

            harm.__name__ = fault.__name__
            return harm

        return [of(fault) for fault in FAULTS]

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
        log = self._cluster.log()
        for word in ("met a defect", "Traceback"):
            at = log.find(word)
            assert at < 0, log[max(0, at - 500) : at + 3000]
        return f"{self.done()} acknowledged, {read} read"

    def end(self) -> None:
        """The cluster ends with its own block."""
