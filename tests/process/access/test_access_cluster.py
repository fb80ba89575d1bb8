"""A cluster whose nodes know each other by certificates, and nobody else."""

import asyncio
import socket
import ssl
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.cluster_processes import running_cluster
from tests.conftest import RunningNode
from tests.etcd_server import running_cluster as running_etcd
from tests.process.access.certificates import Authority

from dovetail.cli.doctor.services import gather_etcd
from dovetail.clock import SystemClock
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import CoordinationDown
from dovetail.storage.calls import CALLS, ListLedgers
from dovetail.timeline.clocks import DatedService
from dovetail.timeline.engine.drift import Drift, Target
from dovetail.wire.calls import VERSION, encode_request

DEADLINE_S = 60.0
PASSWORD = "for the cluster"


def list_ledgers() -> bytes:
    """The first request to a storage node, as nodes send it."""
    body = b"".join(encode_request(ListLedgers()))
    head = struct.pack("!hhih", CALLS.key(ListLedgers), VERSION, 1, 1) + b"x"
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def test_nodes_show_certificates_and_clients_log_in(tmp_path: Path) -> None:
    """R4: records go through brokers and storage nodes over TLS; storage answers nodes alone."""
    authority = Authority(tmp_path)
    node, stranger = authority.issue("node"), authority.issue("stranger")
    (tmp_path / "password").write_text(PASSWORD)
    with running_cluster(
        tmp_path,
        brokers=2,
        network="proxies",
        security_tls_certificate=node.certificate,
        security_tls_key=node.key,
        security_tls_ca=authority.file,
        security_nodes="node",
        security_login="scram-sha-512",
        security_authorize="true",
        security_admin_password_file=str(tmp_path / "password"),
    ) as cluster:
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": authority.file,
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "admin",
                "sasl.password": PASSWORD,
                "log_level": 0,
            }
        )
        outcomes: list[object] = []
        for at in range(100):
            producer.produce("orders", f"{at}", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(DEADLINE_S) == 0
        assert outcomes == [None] * 100
        host, port = cluster.address("storage-1")
        for files, answered in ((node, True), (stranger, False)):
            tls = ssl.create_default_context(cafile=authority.file)
            tls.load_cert_chain(files.certificate, files.key)
            with (
                socket.create_connection((host, port), DEADLINE_S) as raw,
                tls.wrap_socket(raw, server_hostname=host) as line,
            ):
                line.sendall(list_ledgers())
                assert bool(line.recv(100)) is answered


async def test_the_way_to_etcd_is_encrypted(tmp_path: Path) -> None:
    """R4, B15: certificates on both sides; who shows none, or trusts others, is not served."""
    authority = Authority(tmp_path)
    etcd, ours = authority.issue("etcd"), authority.issue("dovetail")
    flags = (
        f"--cert-file={etcd.certificate}",
        f"--key-file={etcd.key}",
        "--client-cert-auth",
        f"--trusted-ca-file={authority.file}",
    )
    with running_etcd(tmp_path / "etcd", flags=flags) as members:
        settings = EtcdSettings(
            tuple(f"https://{endpoint}" for endpoint in members.endpoints),
            tls_ca=authority.file,
            tls_certificate=ours.certificate,
            tls_key=ours.key,
        )
        node = RunningNode(
            tmp_path / "node",
            {
                "coordination_kind": "etcd",
                "coordination_endpoints": ",".join(settings.endpoints),
                "coordination_tls_ca": settings.tls_ca,
                "coordination_tls_certificate": settings.tls_certificate,
                "coordination_tls_key": settings.tls_key,
            },
        )
        try:
            await asyncio.to_thread(node.start)
            outcomes: list[object] = []
            producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
            producer.produce("orders", b"1", on_delivery=lambda error, _: outcomes.append(error))
            assert await asyncio.to_thread(producer.flush, DEADLINE_S) == 0
            assert outcomes == [None]
        finally:
            node.kill()
        async with await EtcdCoordinator.open(settings) as coordinator:
            assert (await coordinator.range("")).items
        (tmp_path / "other").mkdir()
        other = Authority(tmp_path / "other").file
        for refused in (
            replace(settings, tls_certificate="", tls_key=""),
            replace(settings, tls_ca=other),
        ):
            with pytest.raises(CoordinationDown, match="over TLS"):
                await EtcdCoordinator.open(refused)
        [found] = gather_etcd(settings, limit_s=DEADLINE_S)
        assert found.version
        drift = Drift(threshold_ms=1_000, fresh_ms=60_000)
        dated = DatedService(
            settings.addresses, clock=SystemClock(), drift=drift, tls=settings.tls()
        )
        await dated.ask()
        assert drift.offsets(Target.COORDINATION, now_ms=SystemClock().wall_ms())
