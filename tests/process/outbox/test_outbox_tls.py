"""The outbox and a node that takes nobody without a certificate; compressed batches."""

import ssl
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from tests.conftest import RunningNode, running_node
from tests.outbox_kit import SECONDS_MAX, new_database, pending
from tests.process.access.certificates import Authority, Certificate

from dovetail.errors import DovetailError
from dovetail.outbox import Message, Producer
from dovetail.outbox.database import open_engine
from dovetail.outbox.publishing import insert
from dovetail.outbox.relay import relay_of
from dovetail.settings import Flag, Settings, load_settings
from dovetail.timeline.client.blocking import connect_blocking

#: What stands in a segment as it is, unless it was compressed.
VALUE = b"as it is " * 50
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Guarded:
    """A node, and what its clients show."""

    node: RunningNode
    folder: Path
    authority: Authority
    client: Certificate

    def settings(self, database: str, *, certificate: bool = True, codec: str = "none") -> Settings:
        given = {
            "outbox.database": database,
            "outbox.kafka": self.node.bootstrap,
            "outbox.timelines": self.node.bootstrap,
            "outbox.security_protocol": "ssl",
            "outbox.ssl_ca_file": self.authority.file,
            "outbox.compression": codec,
            "outbox.delivery_ms": "5s",
        }
        if certificate:
            given["outbox.ssl_certificate_file"] = self.client.certificate
            given["outbox.ssl_key_file"] = self.client.key
        return load_settings(flags=[Flag(name, text, name) for name, text in given.items()])

    def librdkafka(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.node.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": self.authority.file,
            "ssl.certificate.location": self.client.certificate,
            "ssl.key.location": self.client.key,
        }

    def new_topic(self) -> str:
        name = f"outbox-{uuid.uuid4().hex[:10]}"
        admin = AdminClient(self.librdkafka())
        admin.create_topics([NewTopic(name, 1)])[name].result(SECONDS_MAX)
        return name

    def values(self, topic: str, count: int) -> list[bytes | None]:
        consumer = Consumer({**self.librdkafka(), "group.id": topic})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes | None] = []
        while len(found) < count:
            found += [each.value() for each in consumer.consume(count, SECONDS_MAX)]
        consumer.close()
        return found


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder)
    files = authority.issue("node-1")
    settings = {
        "security_tls_certificate": files.certificate,
        "security_tls_key": files.key,
        "security_tls_ca": authority.file,
        "security_tls_clients": "required",
    }
    with running_node(folder / "data", settings) as node:
        yield Guarded(node, folder / "data", authority, authority.issue("shop"))


@pytest.mark.parametrize("codec", CODECS)
def test_a_relay_shows_its_certificate_and_compresses(
    guarded: Guarded, tmp_path: Path, codec: str
) -> None:
    """O14: to topics and to timelines; what it sends arrives, and is stored as it was sent."""
    database = new_database("sqlite", lambda name: None, tmp_path)
    topic, marked = guarded.new_topic(), f"{codec} ".encode() + VALUE
    tls = ssl.create_default_context(cafile=guarded.authority.file)
    tls.load_cert_chain(guarded.client.certificate, guarded.client.key)
    with connect_blocking(guarded.node.bootstrap, tls=tls) as d:
        d.timeline(topic).create()
        with create_engine(database, poolclass=NullPool).begin() as connection:
            insert(connection, [Message(topic, marked)] * 50)
            Producer().schedule(topic, {"n": 1}, on=connection, due="1h")
        relay = relay_of(guarded.settings(database, codec=codec)).start()
        assert guarded.values(topic, 50) == [marked] * 50
        engine, deadline = open_engine(database), time.monotonic() + SECONDS_MAX
        while pending(engine):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        relay.stop()
        assert [each.body for each in d.timeline(topic).peek()] == [b'{"n":1}']

    stored = b"".join(path.read_bytes() for path in guarded.folder.glob("ledgers/*.segment"))
    assert (stored.count(marked) >= 50) == (codec == "none")


@pytest.mark.parametrize("certificate", [True, False])
def test_a_direct_producer_shows_its_certificate(
    guarded: Guarded, tmp_path: Path, certificate: bool
) -> None:
    """O14: and one that has none is told so."""
    topic = guarded.new_topic()
    settings = guarded.settings("sqlite://", certificate=certificate, codec="zstd")
    producer = Producer(topic, backend="kafka", settings=settings)
    if certificate:
        producer.publish({"n": 1})
        producer.close()
        assert guarded.values(topic, 1) == [b'{"n":1}']
    else:
        with pytest.raises(DovetailError):
            producer.publish({"n": 1})
