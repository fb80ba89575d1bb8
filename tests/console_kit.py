"""What the tests of the HTTP API share: a node with something of everything, and its client."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import text
from tests.conftest import RunningNode

from dovetail.election.fold import Claim, Register, Report, encode_record
from dovetail.election.identifiers import Incarnation, MemberName, Term
from dovetail.outbox.database import open_engine
from dovetail.outbox.schema import create_tables
from dovetail.timeline.client import connect
from dovetail.timeline.config import TimelineConfig

#: Far above what anything here needs on a machine that does other work too.
WAIT_SECONDS_MAX = 60.0

TOKEN = "correct-horse-battery-staple"


class Site:
    """A node and its API."""

    def __init__(self, node: RunningNode, client: httpx.Client) -> None:
        self.node = node
        self.client = client

    def get(self, path: str, **query: Any) -> Any:
        """The document at a path, which must be there."""
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """A change."""
        if body is None:
            return self.client.request(method, path)
        return self.client.request(method, path, json=body)

    def refused(self, status: int, method: str, path: str, body: Any = None) -> str:
        """The text of an error that must come."""
        answer = self.send(method, path, body)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"kind", "message", "retriable"}
        return str(error["message"])

    def produce(self, topic: str, *values: bytes, key: bytes | None = None, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": self.node.bootstrap})
        for value in values:
            producer.produce(topic, value, key=key, **more)
        assert producer.flush(WAIT_SECONDS_MAX) == 0

    def make_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.bootstrap})
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, partitions, config=settings)
        admin.create_topics([new])[name].result(WAIT_SECONDS_MAX)


def wait_for(what: str, look: Callable[[], Any]) -> Any:
    """The first result that is true."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not (found := look()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)
    return found


def fill(site: Site) -> None:
    site.make_topic("orders", 2)
    for number in range(20):
        site.produce(
            "orders",
            b'{"order": %d}' % number,
            key=b"k%d" % (number % 4),
            headers=[("trace", b"t%d" % number)],
            partition=number % 2,
            timestamp=1_700_000_000_000 + number * 1000,
        )
    _fill_stream(site)


def _fill_stream(site: Site) -> None:
    site.make_topic("bots", retention_ms="-1", retention_bytes="-1")
    ann, ben = MemberName("ann:1"), MemberName("ben:1")
    records = [
        Register(ann, Incarnation("a1"), {0: 0, 1: 0}, "orders"),
        Register(ben, Incarnation("b1")),
        Claim(Term(1), ben, Incarnation("b1")),
        Claim(Term(2), ann, Incarnation("a1")),
        Report(Term(2), ann, Incarnation("a1"), 0, {0: 4, 1: 5}),
    ]
    for record in records:
        site.produce("bots", encode_record(record), key=b"prod")


def fill_outbox(url: str) -> None:
    engine = open_engine(url)
    create_tables(engine)
    with engine.begin() as connection:
        for number in range(3):
            connection.execute(
                text(
                    "INSERT INTO kafka_messages (topic, payload, message_id) "
                    "VALUES ('invoices', :payload, :id)"
                ),
                {"payload": b"waits %d" % number, "id": f"m{number}"},
            )
        for number in range(3):
            connection.execute(
                text(
                    "INSERT INTO kafka_dead_messages "
                    "(id, topic, payload, message_id, reason, attempts, created_at) VALUES "
                    "(:n, 'invoices', :payload, :id, 'too large', 1, CURRENT_TIMESTAMP)"
                ),
                {"n": 100 + number, "payload": b"dead %d" % number, "id": f"d{number}"},
            )
    engine.dispose()


def make_dead_letters(bootstrap: str, timeline: str, bodies: list[bytes]) -> None:
    """Has a consumer fail at these messages for the last time."""

    async def work() -> None:
        async with connect(bootstrap, client_id="test") as client:
            found = client.timeline(timeline)
            await found.create(TimelineConfig(attempts_max=1, window_ms=100))
            for body in bodies:
                await found.schedule(body, headers={"h": b"v"})

            async def fail(_: object) -> None:
                raise ValueError("card refused")

            client.consumer(timeline, concurrency=4)(fail)
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while (await found.describe()).counts.dead < len(bodies):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(work())
