"""`dovetail stream status` against a log that real members write."""

import asyncio
import json
import subprocess
import sys
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import RunningNode

from dovetail.election import KafkaSharedLog, MemberName, Term
from dovetail.election.fold import Claim, Register, Report
from dovetail.election.identifiers import Incarnation

A, B = MemberName("http://a:8080/x"), MemberName("http://b:8080/x")
A1, B1 = Incarnation("a1"), Incarnation("b1")


def dovetail(node: RunningNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail", "stream", "status", "-b", node.bootstrap]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def log_topic(node: RunningNode) -> str:
    """Two members, one of which leads under the second term and is two events behind."""
    topic, log_topic = f"events-{uuid.uuid4().hex}", f"shared-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(10)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(5):
        producer.produce(topic, b"%d" % number)
    producer.flush(10)
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
