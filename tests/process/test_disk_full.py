"""A node whose disk is full."""

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


def test_a_timeline_that_fills_the_disk_can_be_emptied(small_disk: Path) -> None:
    """B6, L6: messages are refused while there is room to lease and delete those that are there,
    and to delete a topic, and producers that try again do not hold that up; before, nothing could
    be leased any more, nor anything deleted."""
    node = RunningNode(
        small_disk / "data",
        {"storage_segment_bytes": "4MiB", "storage_disk_free_bytes_min": "8MiB"},
    )
    node.start()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    large = {"body": "x" * 10 * VALUE_BYTES}
    producers = ThreadPoolExecutor(8)
    drained = threading.Event()
    try:
        with httpx.Client(base_url=node.http_url, timeout=60) as http:

            def store_patiently(_: int) -> None:
                while not drained.is_set():
                    answer = http.post("/v1/timelines/r/messages", json=large)
                    assert answer.status_code in (201, 503, 404)  # 404 once it is deleted.

            admin.create_topics([NewTopic("t", 1)])["t"].result(30)
            http.post("/v1/timelines", json={"timeline": "r"}).raise_for_status()
            stored = 0
            while not http.get("/readyz").json()["reasons"]:
                assert http.post("/v1/timelines/r/messages", json=large).status_code == 201
                stored += 1
            assert "disk is full" in http.get("/readyz").json()["reasons"][0]
            assert stored > 40

            node.kill()
            node.start()
            storing = producers.map(store_patiently, range(8))
            handled = 0
            while handled < stored:
                received = http.post("/v1/timelines/r/receive", json={"limit": 5, "wait_ms": 5000})
                leases = [
                    {"id": message["id"], "version": message["version"]}
                    for message in received.json()["messages"]
                ]
                assert leases, f"{handled} of {stored} were handled"
                done = http.post("/v1/timelines/r/done", json={"leases": leases})
                assert set(done.json()["outcomes"]) == {"ok"}
                handled += len(leases)

            admin.delete_topics(["t"], request_timeout=30)["t"].result(60)
            drained.set()
            assert http.delete("/v1/timelines/r").is_success
            list(storing)
            assert http.post("/v1/timelines", json={"timeline": "s"}).is_success
            answer = http.post("/v1/timelines/s/messages", json={"body": "again"})
            assert answer.status_code == 201
    finally:
        drained.set()
        node.kill()
        producers.shutdown()
