"""A node that starts before etcd does."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningNode
from tests.etcd_server import EtcdCluster, free_ports

from dovetail.errors import CoordinationDown
from dovetail.node import serving
from dovetail.node.node import Node
from dovetail.settings import load_settings

WAIT_SECONDS_MAX = 60.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """One member that does not run yet."""
    cluster = EtcdCluster(tmp_path / "etcd", size=1)
    yield cluster
    cluster.kill()


@pytest.fixture
def waiting(tmp_path: Path, etcd: EtcdCluster) -> Iterator[RunningNode]:
    """A node that was started while etcd is away, and has noticed."""
    (http_port,) = free_ports(1)
    settings = {
        "coordination_kind": "etcd",
        "coordination_endpoints": etcd.endpoints[0],
        "http_port": str(http_port),
    }
    node = RunningNode(tmp_path / "node", settings)
    node.http_url = f"http://127.0.0.1:{http_port}"
    node.launch()
    try:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while "cannot reach etcd" not in node.log():
            assert time.monotonic() < deadline, node.log()
            time.sleep(0.05)
        yield node
    finally:
        node.kill()


def _readiness(node: RunningNode) -> Any:
    try:
        with urllib.request.urlopen(f"{node.http_url}/readyz", timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def test_a_node_waits_for_etcd_and_says_so(waiting: RunningNode, etcd: EtcdCluster) -> None:
    """F37: a node that starts while etcd is away is alive, names the reason, and serves later."""
    assert "waiting for etcd" in str(_readiness(waiting))
    etcd.start()
    waiting.wait_ready()
    assert "waiting for etcd" not in str(_readiness(waiting))
    assert waiting.stop() == 0


def test_sigterm_ends_a_node_that_waits_for_etcd(waiting: RunningNode) -> None:
    """F37: waiting for etcd does not keep a node from stopping when it is asked to."""
    assert waiting.stop() == 0
    assert "stopped before it was ready" in waiting.log()


def test_a_start_that_loses_etcd_half_way_begins_anew(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F37: whatever the first attempt had opened, files and ports, is free for the next."""
    etcd.start()
    (port,) = free_ports(1)
    monkeypatch.setenv("DOVETAIL_NODE_DATA_DIR", str(tmp_path / "node"))
    monkeypatch.setenv("DOVETAIL_COORDINATION_KIND", "etcd")
    monkeypatch.setenv("DOVETAIL_COORDINATION_ENDPOINTS", etcd.endpoints[0])
    monkeypatch.setenv("DOVETAIL_KAFKA_PORT", str(port))
    monkeypatch.setattr(serving, "RESTART_S", 0.01)
    attempts = []
    register = Node._register

    async def half_way(self: Node, *given: Any) -> None:
        attempts.append(self)
        if len(attempts) == 1:
            raise CoordinationDown("etcd did not answer within 5 s")
        await register(self, *given)

    monkeypatch.setattr(Node, "_register", half_way)

    async def start() -> str:
        node = await serving._start(load_settings(), None)
        kafka = node.endpoints.kafka
        await node.__aexit__()
        return kafka

    assert asyncio.run(start()).endswith(f":{port}")
    assert len(attempts) == 2
