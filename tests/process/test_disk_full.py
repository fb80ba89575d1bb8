"""A node whose disk is full."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import RunningNode
from tests.process.checker import read_all

VALUE_BYTES = 50_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], check=False
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("a small disk cannot be mounted here; the simulations cover a full one")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(bootstrap: str, topic: str, *, most: int) -> tuple[int, list[KafkaError]]:
    """Produces one by one until something fails; returns how many were acknowledged."""
    failures: list[KafkaError] = []
    acknowledged = 0

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failures.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "message.timeout.ms": 3000, "retries": 2, "log_level": 0}
    )
    for number in range(most):
        value = number.to_bytes(8, "big") * (VALUE_BYTES // 8)
        producer.produce(topic, value, on_delivery=on_delivery)
        producer.flush(20)
        if failures:
            break
    return acknowledged, failures


def test_a_full_disk_refuses_writes_and_loses_nothing(small_disk: Path) -> None:
    """L6: refused with a retriable error, and `/readyz` says why; reads go on; deleting a topic
    makes room again."""
    node = RunningNode(
        small_disk / "data",
        {"storage_segment_bytes": "4MiB", "storage_disk_free_bytes_min": "2MiB"},
    )
    node.start()
    try:
        admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
        for name in ("kept", "filler"):
            admin.create_topics([NewTopic(name, 1)])[name].result(30)
        kept, failures = fill(node.bootstrap, "kept", most=20)
        assert (kept, failures) == (20, [])
        filled, failures = fill(node.bootstrap, "filler", most=3000)
        assert failures, "the disk was never full"
        assert filled > 100
        answer = httpx.get(f"{node.http_url}/readyz", timeout=30)
        assert answer.status_code == 503
        assert "disk is full" in answer.json()["reasons"][0]
        assert [offset for offset, _ in read_all(node.bootstrap, "kept", 0)] == list(range(20))
        assert len(read_all(node.bootstrap, "filler", 0)) >= filled
        node.kill()
        node.start()
        assert len(read_all(node.bootstrap, "kept", 0)) == 20
        assert len(read_all(node.bootstrap, "filler", 0)) >= filled
        admin.delete_topics(["filler"], request_timeout=30)["filler"].result(60)
        again, failures = fill(node.bootstrap, "kept", most=20)
        assert (again, failures) == (20, [])
        assert len(read_all(node.bootstrap, "kept", 0)) == 40
    finally:
        node.kill()
