"""Storage nodes of a cluster under load: one dies for good, one is damaged, one is drained."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests import warm_python
from tests.cluster_processes import ClusterProcesses, running_cluster, wait_until
from tests.process.checker import Workload, check_all

from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.storage.repair.sweeping import read_chains

PARTITIONS = 3
Result = TypeVar("Result")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    with running_cluster(
        tmp_path,
        brokers=2,
        storage=5,
        storage_repair_after_ms="2s",
        storage_scrub_bytes_per_second="64MiB",
        log_ledger_bytes_max="64KiB",
    ) as made:
        yield made


def asked(cluster: ClusterProcesses, ask: Callable[[EtcdCoordinator], Awaitable[Result]]) -> Result:
    """What the coordination service answers."""

    async def run() -> Result:
        endpoints = tuple(member.endpoint for member in cluster.etcd.values())
        # Patient: it is the test that asks, on a machine that has other work.
        settings = EtcdSettings(endpoints, attempt_timeout_ms=10_000, request_timeout_ms=30_000)
        coordinator = await EtcdCoordinator.open(settings)
        try:
            return await ask(coordinator)
        finally:
            await coordinator.close()

    return asyncio.run(run())


def nodes_named(cluster: ClusterProcesses) -> set[int]:
    """The storage nodes that chains name."""
    chains = asked(cluster, read_chains)
    return {n for record in chains for info in record.ledgers for n in info.placement.nodes}


def storage(cluster: ClusterProcesses, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`dovetail storage ...`, as an operator runs it."""
    endpoints = ",".join(member.endpoint for member in cluster.etcd.values())
    command = [sys.executable, "-m", "dovetail", "storage", *arguments, "--etcd", endpoints]
    return warm_python.run(command, capture_output=True, text=True, check=False, timeout=60)


def state_of(cluster: ClusterProcesses, number: int) -> str:
    """The state of a storage node, as the command line lists it."""
    listed = json.loads(storage(cluster, "list", "--json").stdout)
    return str(next(node["state"] for node in listed if node["node"] == number))


def damage(folder: Path) -> None:
    """Changes a byte in the middle of the largest segment, and takes its index."""
    segment = max(folder.rglob("*.segment"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    data = bytearray(segment.read_bytes())
    data[len(data.rstrip(b"\0")) // 2] ^= 1
    segment.write_bytes(data)
    segment.with_suffix(".index").unlink(missing_ok=True)


def flip_a_byte(folder: Path) -> None:
    """Changes a byte of an old entry under the hands of the node that runs."""
    segment = max(folder.rglob("*.segment"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))
    with segment.open("r+b") as file:
        place = len(file.read().rstrip(b"\0")) // 4
        file.seek(place)
        changed = file.read(1)[0] ^ 1
        file.seek(place)
        file.write(bytes([changed]))


def test_storage_nodes_are_replaced_repaired_and_drained(cluster: ClusterProcesses) -> None:
    """L10, R2: under load, with nothing lost, and each time until every copy is where it should.

    A byte that changes on a disk is found by the node itself, and replaced from its peers.
    """
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(30)
    workload = Workload(cluster.bootstrap, "t", partitions=PARTITIONS)
    workload.start()
    workload.wait_for(2000)

    cluster.kill("storage-1")
    wait_until("node 1 is replaced", lambda: 1 not in nodes_named(cluster))
    workload.wait_for(workload.acknowledged_count + 500)

    cluster.kill("storage-2")
    damage(cluster.nodes["storage-2"].data_dir)
    cluster.launch("storage-2")
    cluster.await_ready("storage-2")  # It is not, as long as it is damaged.
    assert "damaged on disk" in cluster.log("storage-2")
    assert "deleting damaged segments" in cluster.log("storage-2")
    workload.wait_for(workload.acknowledged_count + 500)

    flip_a_byte(cluster.nodes["storage-4"].data_dir)
    wait_until(
        "node 4 finds what its disk has changed",
        lambda: "the disk has changed what was stored" in cluster.log("storage-4"),
    )
    wait_until(
        "node 4 has it from its peers",
        lambda: "deleting damaged segments" in cluster.log("storage-4"),
    )
    cluster.await_ready("storage-4")
    workload.wait_for(workload.acknowledged_count + 500)

    refused = storage(cluster, "remove", "3")
    assert refused.returncode == 2
    assert "drain it first" in refused.stderr
    assert storage(cluster, "drain", "3").returncode == 0
    wait_until("chains name node 3 no more", lambda: 3 not in nodes_named(cluster))
    wait_until("node 3 is drained", lambda: state_of(cluster, 3) == "drained")
    assert storage(cluster, "remove", "3").returncode == 0
    cluster.stop("storage-3")
    workload.wait_for(workload.acknowledged_count + 500)
    workload.finish()
    assert workload.errors == []
    assert check_all(workload, cluster.bootstrap) == workload.acknowledged_count
    assert "Traceback" not in cluster.log()
