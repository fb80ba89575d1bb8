"""Delayed jobs: through a timeline, on a real node, without Spark."""

import asyncio
import threading
import time
import uuid
from collections import Counter
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import RunningNode
from tests.process.teams.attempts import read

from dovetail import connect_blocking
from dovetail.errors import TopicUnknown, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.teams import Pipeline, Team, create_topics, delays
from dovetail.teams.connectors import Connector, ConnectorKind
from dovetail.teams.delays import Courier
from dovetail.teams.envelope import NOT_BEFORE, TO, JobId
from dovetail.teams.graph import delays_topic


def test_a_delay_travels_with_the_forward() -> None:
    """T12: `after` is told for every job that a connector makes."""
    spray = Connector(ConnectorKind.SPRAY, "b", after_ms=900_000)
    assert [one.after_ms for one in spray.forward(JobId("a"), [1, 2])] == [900_000, 900_000]


def test_a_courier_that_hangs_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R5, T7: the driver goes on without it, and says so."""
    monkeypatch.setattr(delays, "_STOP_S_MAX", 0.05)
    carries, over = threading.Event(), threading.Event()

    async def hang(_: Courier) -> None:
        carries.set()
        await asyncio.to_thread(over.wait)

    monkeypatch.setattr(Courier, "_carry", hang)
    courier = Courier("p", Brokers("127.0.0.1:1"))
    courier.start()
    carries.wait()
    with caplog.at_level("ERROR"):
        courier.stop()
    assert "delayed jobs are still being carried" in caplog.text
    over.set()
    courier.stop()


def test_delayed_jobs_reach_their_team_when_they_are_due(node: RunningNode) -> None:
    """T12: not before, not lost by a courier that is replaced, headers kept."""
    a, b = Team("a", int), Team("b", int)
    a.pipe_to(b, after="15m")
    pipeline = Pipeline(f"d{uuid.uuid4().hex[:8]}", a, b)
    create_topics(pipeline, node.bootstrap)
    target = pipeline.topics("b").input
    due_ms = time.time_ns() // 1_000_000 + 1_500
    producer = Producer({"bootstrap.servers": node.bootstrap})
    for number in range(20):
        producer.produce(
            delays_topic(pipeline.name),
            key=f"w{number}",
            value=b"7",
            headers=[
                (NOT_BEFORE, b"%d" % (due_ms + 20 * number)),
                (TO, target.encode()),
                ("dovetail-parent", b"p"),
            ],
        )
    assert producer.flush(30) == 0
    first = Courier(pipeline.name, Brokers(node.bootstrap))
    first.start()
    first.stop()
    courier = Courier(pipeline.name, Brokers(node.bootstrap))
    courier.start()
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([target])
    found: dict[bytes, int] = {}
    deadline = time.monotonic() + 30
    while len(found) < 20 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            assert message.headers() == [("dovetail-parent", b"p")]
            assert message.value() == b"7"
            found[message.key()] = message.timestamp()[1]
    until_empty(node, pipeline.name)
    courier.stop()
    consumer.close()
    assert set(found) == {b"w%d" % number for number in range(20)}
    assert len(list(read(node, target))) == 20, "each once"
    early = {k: ms for k, ms in found.items() if ms < due_ms + 20 * int(k[1:])}
    assert not early


def until_empty(node: RunningNode, pipeline: str, *, but: int = 0) -> None:
    """Returns when the timeline of a pipeline holds no more messages; none comes from it then."""
    with connect_blocking(node.bootstrap) as client:
        timeline, deadline = client.timeline(f"{pipeline}-delays"), time.monotonic() + 60
        while (counts := timeline.describe().counts).waiting + counts.due + counts.leased > but:
            assert time.monotonic() < deadline, counts
            time.sleep(0.02)


def test_a_job_at_the_limit_reaches_its_team_and_one_beyond_it_brings_none_again(
    node: RunningNode,
) -> None:
    """T12, T5, R8: a megabyte is more than librdkafka sends by default. What a topic never takes is
    tried again, and all that was due with it is written once."""
    a, b, c = Team("a", int), Team("b", int), Team("c", int)
    a.pipe_to(b, after="15m")
    a.pipe_to(c, after="15m")
    pipeline = Pipeline(f"d{uuid.uuid4().hex[:8]}", a, b, c)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    small = NewTopic(pipeline.topics("c").input, 1, config={"max.message.bytes": "2000"})
    admin.create_topics([small])[small.topic].result(30)
    create_topics(pipeline, node.bootstrap)
    producer = Producer({"bootstrap.servers": node.bootstrap, "message.max.bytes": 2_000_000})
    due_ms = time.time_ns() // 1_000_000 + 1_000
    target = pipeline.topics("b").input
    jobs = [(target, b"7"), (target, b"7" * 1_020_000), (small.topic, b"7" * 5_000)]
    for number, (topic, value) in enumerate([*jobs, *jobs[:1] * 10]):
        headers = [(NOT_BEFORE, b"%d" % due_ms), (TO, topic.encode())]
        producer.produce(
            delays_topic(pipeline.name), key=f"w{number}", value=value, headers=headers
        )
    assert producer.flush(30) == 0

    courier = Courier(pipeline.name, Brokers(node.bootstrap))
    courier.start()
    with connect_blocking(node.bootstrap) as client:
        deadline, attempts = time.monotonic() + 60, 0
        while attempts < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            with suppress(TopicUnknown, Unavailable):  # It is only being made.
                shown = client.timeline(f"{pipeline.name}-delays").peek(100)
                attempts = max((one.attempts for one in shown), default=0)
    until_empty(node, pipeline.name, but=1)
    courier.stop()
    keys = Counter(key for key, _, _ in read(node, target))
    assert keys == Counter(b"w%d" % number for number in range(len(jobs) + 10) if number != 2)
