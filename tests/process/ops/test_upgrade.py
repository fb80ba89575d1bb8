"""Two versions of the code: what an older one has stored, the newer one serves.

`UPGRADE_FROM` names the older commit (`make soak` has one); without it there is nothing to compare.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests import conftest
from tests.cluster_processes import running_cluster
from tests.conftest import RunningNode
from tests.process.checker import Workload, check_all

import dovetail

ROOT = Path(__file__).parents[3]
OLD = os.environ.get("UPGRADE_FROM", "")
PARTITIONS = 3
DUE = ("--in", "1h", "--key", "ada")
SETTINGS = {"storage_segment_bytes": "65536", "log_ledger_bytes_max": "16384"}


@pytest.fixture
def old_source(tmp_path: Path) -> Iterator[Path]:
    """The sources of the older commit, with the compiled parts of today."""
    if not OLD:
        pytest.skip("UPGRADE_FROM names no commit")
    folder = tmp_path / "old"
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", OLD, "src"], cwd=ROOT, check=True, capture_output=True
    )
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    yield folder / "src"
    shutil.rmtree(folder)


def started(node: RunningNode, source: Path | None, patch: pytest.MonkeyPatch) -> None:
    """Starts the node with the code in this folder; None: today's."""
    with patch.context() as inside:
        if source is not None:
            inside.setenv("PYTHONPATH", str(source))
            # A warm process has today's code in memory.
            inside.setattr(conftest.warm_python, "Popen", subprocess.Popen)
        node.start()


def test_what_the_older_version_stored_is_served(
    old_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: killed under the older code and started with this one, and clients live on."""
    node = RunningNode(tmp_path / "node", SETTINGS)
    started(node, old_source, monkeypatch)
    try:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("kept", PARTITIONS, 1)])["kept"].result(30)
        load = Workload(node.bootstrap, "kept", partitions=PARTITIONS)
        load.start()
        load.wait_for(1_000)
        # Clients are upgraded last (docs/upgrade.md).
        old = os.environ | {"PYTHONPATH": str(old_source)}
        for words in (("create", "reminders"), ("schedule", "reminders", "call Ada", *DUE)):
            command = [sys.executable, "-m", "dovetail", "timeline", *words, "-b", node.bootstrap]
            subprocess.run(command, env=old, cwd=tmp_path, check=True, timeout=60)
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "billing"})
        consumer.commit(offsets=[TopicPartition("kept", 1, 77)], asynchronous=False)

        # The producer goes on with its ids and sequence numbers, over the change of versions.
        node.kill()
        started(node, None, monkeypatch)
        load.wait_for(load.acknowledged_count + 500)
        load.finish()
        assert load.errors == []
        check_all(load, node.bootstrap)

        (found,) = consumer.committed([TopicPartition("kept", 1)], timeout=30)
        assert found.offset == 77
        consumer.close()
        assert asyncio.run(_body_of_reminder(node.bootstrap)) == b"call Ada"
    finally:
        node.kill()


async def _body_of_reminder(bootstrap: str) -> bytes:
    async with dovetail.connect(bootstrap) as client:
        shown = await client.timeline("reminders").look_up_key("ada")
        assert shown is not None
        return shown.body


def test_a_cluster_is_upgraded_node_by_node(
    old_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: storage nodes first, then brokers, as docs/upgrade.md says, while a producer writes; old
    and new ones serve side by side, and nothing acknowledged is lost or doubled."""
    with contextlib.ExitStack() as stack:
        with monkeypatch.context() as inside:
            inside.setenv("PYTHONPATH", str(old_source))
            inside.setattr(conftest.warm_python, "Popen", subprocess.Popen)
            cluster = stack.enter_context(running_cluster(tmp_path / "cluster"))
        assert b"PYTHONPATH=" + bytes(old_source) in _environment(cluster.nodes["broker-1"].pid)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("kept", PARTITIONS)])["kept"].result(60)
        load = Workload(cluster.bootstrap, "kept", partitions=PARTITIONS)
        load.start()
        load.wait_for(500)

        for name in (*cluster.storage, *cluster.brokers):
            assert cluster.stop(name) == 0
            cluster.restart(name)
            assert b"PYTHONPATH=" + bytes(old_source) not in _environment(cluster.nodes[name].pid)
            load.wait_for(load.acknowledged_count + 200)
        load.finish()
        assert load.errors == []
        check_all(load, cluster.bootstrap)


def _environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
