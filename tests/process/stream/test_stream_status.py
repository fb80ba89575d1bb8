"""`dovetail stream status` against a log that real members write."""

import asyncio
import json
import queue
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests import warm_python
from tests.conftest import RunningNode
from tests.etcd_server import free_ports

from dovetail.election import KafkaSharedLog, MemberName, Term
from dovetail.election.fold import Claim, Register, Report
from dovetail.election.identifiers import Incarnation
from dovetail.stream import (
    Algorithm,
    BlockingLeadership,
    BlockingStream,
    StreamSettings,
    Takeover,
)
from dovetail.stream.dead_letters import KafkaDeadLetters
from dovetail.stream.retrying import Failing
from dovetail.stream.source import Event

A, B = MemberName("http://a:8080/x"), MemberName("http://b:8080/x")
A1, B1 = Incarnation("a1"), Incarnation("b1")


def dovetail(node: RunningNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail", "stream", "status", "-b", node.bootstrap]
    return warm_python.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def log_topic(node: RunningNode) -> str:
    """Two members, one of which leads under the second term and is two events behind."""
    topic, log_topic = f"events-{uuid.uuid4().hex}", f"shared-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(5):
        producer.produce(topic, b"%d" % number)
    producer.flush(60)
    asyncio.run(_write(node, topic, log_topic))
    return log_topic


async def _write(node: RunningNode, topic: str, log_topic: str) -> None:
    log = KafkaSharedLog(node.bootstrap, topic=log_topic, environment="prod", timeout_ms=5_000)
    await log.open(lambda _: None)
    for record in (
        Register(A, A1, {0: 0}, topic),
        Register(B, B1, {0: 0}, topic),
        Claim(Term(1), A, A1),
        Claim(Term(2), B, B1),
        Report(Term(2), B, B1, 1, {0: 3}),
    ):
        await log.append(record)
    await log.close()


def test_status_for_programs(node: RunningNode, log_topic: str) -> None:
    """S11, U4: members, leader, term, lag and the last elections."""
    done = dovetail(node, "--log", log_topic, "--environment", "prod", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["leader"], facts["term"]) == (B, 2)
    assert [(m["member"], m["counted"], m["leads"]) for m in facts["members"]] == [
        (A, True, False),
        (B, True, True),
    ]
    assert facts["positions"] == [{"partition": 0, "committed": 3, "end": 5, "lag": 2}]
    assert [(e["term"], e["leader"]) for e in facts["elections"]] == [(2, B), (1, A)]


def test_status_for_people(node: RunningNode, log_topic: str) -> None:
    """S11, U4: the same in tables."""
    done = dovetail(node, "--log", log_topic, "--environment", "prod")
    assert done.returncode == 0, done.stderr
    for text in (A, B, "prod", "election of term"):
        assert text in done.stdout


def test_what_is_not_there_is_said(node: RunningNode, log_topic: str) -> None:
    """U7: no log is named, no such log, nobody of that name; and nothing is created."""
    assert "coordination_stream_id" in dovetail(node).stderr
    unknown = dovetail(node, "--log", "nothing-here")
    assert (unknown.returncode, "no topic 'nothing-here'" in unknown.stderr) == (3, True)
    nobody = dovetail(node, "--log", log_topic, "--environment", "test")
    assert (nobody.returncode, "no environment 'test'" in nobody.stderr) == (3, True)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    assert "nothing-here" not in admin.list_topics(timeout=10).topics


def test_a_replica_without_asyncio_on_a_real_topic(node: RunningNode, tmp_path: Path) -> None:
    """S13: the blocking facade; the handler's leadership confirms by the shared log."""
    topic = f"events-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    found: queue.Queue[tuple[bytes, int]] = queue.Queue()

    def answer(event: Event, leadership: BlockingLeadership) -> None:
        leadership.confirm()
        found.put((event.value, leadership.term))

    settings = StreamSettings(
        coordination_stream_id=f"shared-{uuid.uuid4().hex}",
        endpoint_host_and_port=f"127.0.0.1:{free_ports(1)[0]}",
        shared_secret="0123456789abcdef",
        algorithm=Algorithm.MAJORITY,
        takeover=Takeover.RESUME,
        vote_path=tmp_path / "vote",
    )
    with BlockingStream.on_kafka(node.bootstrap, topic, answer, settings) as stream:
        producer.produce(topic, b"x")
        producer.flush(60)
        value, term = found.get(timeout=60)
        assert (value, term) == (b"x", stream.status().term)


def test_an_event_that_just_fits_its_topic_fits_the_dead_letters(node: RunningNode) -> None:
    """R8: with less of the reason, or none; a stream would stand still behind it for ever."""
    topic = f"events-{uuid.uuid4().hex}.dead"
    values = [
        bytes([at]) * size for at, size in enumerate((900_000, 999_000, 1_040_000, 1_048_400))
    ]

    async def set_aside() -> None:
        letters = KafkaDeadLetters(node.bootstrap, topic, timeout_ms=60_000)
        for at, value in enumerate(values):
            failing = Failing(Event(0, at, value), 0.0, attempts=3)
            failing.reason, failing.traceback = "too bad", "line\n" * 2_000
            await letters.put(failing, source="events")
        await letters.close()

    asyncio.run(set_aside())
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Message] = []
    while len(found) < len(values):
        found += consumer.consume(1, timeout=60)
    consumer.close()

    assert [record.value() for record in found] == values
    told = [dict(record.headers() or ()) for record in found]
    assert [each["dovetail-source-place"] for each in told] == [b"0:%d" % at for at in range(4)]
    assert told[0]["dovetail-reason"] == b"too bad"
    assert told[0]["dovetail-traceback"] == ("line\n" * 800).encode()
