"""A cluster on this machine, started as `dovetail cluster start` does, measured from outside."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient

from bench.client import STALL_S_MAX
from dovetail.cli.local_cluster import processes
from dovetail.cli.local_cluster.folder import ClusterFolder
from dovetail.cli.local_cluster.plan import BROKER_ID_BASE, Plan, Planned, Wish
from dovetail.cli.local_cluster.starting import start_cluster
from dovetail.settings import CoordinationSettings

#: What is measured after a crash is held against this.
LEASE_S = CoordinationSettings().lease_ms / 1000


class LocalCluster:
    """etcd, storage nodes and brokers; a context manager that kills them at the end."""

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        storage: int = 3,
        etcd_members: int = 1,
        assignments: Sequence[str] = (),
    ) -> None:
        self._folder = ClusterFolder(folder)
        self._wish = Wish(
            brokers=brokers,
            storage=storage,
            etcd_members=etcd_members,
            # A database beside it would take its share of the processors.
            assignments=("timeline.enabled=false", *assignments),
        )
        self.plan: Plan | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._kill_all()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._kill_all()

    def start(self) -> None:
        """Starts whatever does not run; returns when it is ready."""
        self.plan = start_cluster(self._folder, self._wish, port=0, on_step=lambda _: None)
        self._wish = Wish(assignments=self._wish.assignments)

    @property
    def bootstrap(self) -> str:
        assert self.plan is not None
        return self.plan.bootstrap

    def storage(self) -> list[Planned]:
        assert self.plan is not None
        return self.plan.of_kind("storage")

    def kill(self, name: str) -> None:
        """kill -9; returns when it is dead."""
        processes.kill(name, processes.find(self._folder)[name])

    def stop(self, name: str) -> None:
        """A clean stop; returns when it has ended."""
        processes.stop({name: processes.find(self._folder)[name]})

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds that each process has used, user and system."""
        found = {}
        for name, process in processes.find(self._folder).items():
            times = process.cpu_times()
            found[name] = float(times.user + times.system)
        return found

    def owner(self, topic: str, partition: int) -> str:
        """The name of the broker that leads a partition, as clients are told."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        known = admin.list_topics(topic, timeout=STALL_S_MAX).topics[topic]
        return f"broker-{known.partitions[partition].leader - BROKER_ID_BASE}"

    def _kill_all(self) -> None:
        for name, process in processes.find(self._folder).items():
            processes.kill(name, process)
