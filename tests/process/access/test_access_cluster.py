"""A cluster whose nodes know each other by certificates, and nobody else."""

import socket
import ssl
import struct
from pathlib import Path

from confluent_kafka import Producer
from tests.cluster_processes import running_cluster
from tests.process.access.certificates import Authority

from dovetail.broker import private
from dovetail.broker.private import PrivateKey

DEADLINE_S = 30.0
PASSWORD = "for the cluster"


def hello() -> bytes:
    """The first request to a storage node, as nodes send it."""
    body = b"".join(private.encode_request(private.Hello(private.VERSION)))
    head = struct.pack("!hhih", PrivateKey.HELLO, private.VERSION, 1, 1) + b"x"
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
                line.sendall(hello())
                assert bool(line.recv(100)) is answered
