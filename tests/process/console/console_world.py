"""A node with real data of every kind that the console shows, for the browser tests.

Topics with JSON, text, bytes and nothing; a group that is behind and one with a member; a timeline
with messages that wait and that died, and a consumer; a shared stream; a pipeline that tells of
itself, with a dead letter of a team; an outbox with a message that waits and one that died.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import text
from tests.conftest import RunningNode
from tests.outbox_kit import drain_all

from dovetail.election import KafkaSharedLog, MemberName, Term
from dovetail.election.fold import Claim, Register, Report
from dovetail.election.identifiers import Incarnation
from dovetail.outbox import Producer as OutboxProducer
from dovetail.outbox.database import open_engine
from dovetail.outbox.schema import create_tables
from dovetail.timeline.client import Message
from dovetail.timeline.client.blocking import BlockingDovetail, connect_blocking
from dovetail.timeline.config import TimelineConfig

#: Nothing here takes so long unless it hangs.
SECONDS_MAX = 60.0

LONG_TOPIC = "a-topic.whose-name-goes-on-and-on." + "for-quite-a-while." * 6 + "v2"
TOPICS = {"orders": 3, "blobs": 1, "notes": 1, "vacant": 1, "messages": 1, LONG_TOPIC: 1}
ORDERS = 60
#: What the group has read of each partition of `orders`.
COMMITTED = 5
MEMBER_A, MEMBER_B = MemberName("http://10.0.0.7:8080/x"), MemberName("http://10.0.0.8:8080/x")
TEAM_INPUT, TEAM_DEAD = "shop.price.input", "shop.price.dead"


@dataclass(slots=True)
class ConsoleWorld:
    """The node, and what its clients have seen."""

    node: RunningNode
    client: BlockingDovetail
    producer: Producer
    outbox_url: str
    #: Until it is set, the timeline's handler fails on messages that begin with "poison".
    mended: threading.Event = field(default_factory=threading.Event)
    handled: list[bytes] = field(default_factory=list)

    def end_of(self, topic: str) -> int:
        """The sum of the ends of all partitions of a topic."""
        consumer = Consumer({"bootstrap.servers": self.node.bootstrap, "group.id": "ends"})
        try:
            found = consumer.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
            places = [TopicPartition(topic, number) for number in found]
            return sum(consumer.get_watermark_offsets(place)[1] for place in places)
        finally:
            consumer.close()

    def committed(self, group: str, topic: str) -> list[int]:
        """The positions of a group in a topic."""
        consumer = Consumer({"bootstrap.servers": self.node.bootstrap, "group.id": group})
        try:
            places = [TopicPartition(topic, number) for number in range(TOPICS[topic])]
            return [place.offset for place in consumer.committed(places, timeout=SECONDS_MAX)]
        finally:
            consumer.close()

    def topics(self) -> set[str]:
        """The names of all topics."""
        return set(AdminClient({"bootstrap.servers": self.node.bootstrap}).list_topics(None).topics)

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Waits until something holds that no signal tells."""
        deadline = time.monotonic() + SECONDS_MAX
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.02)


@contextmanager
def a_world(node: RunningNode, outbox_url: str) -> Iterator[ConsoleWorld]:
    """Fills the node; its clients stay connected until the end."""
    # Its last words, when the node is gone, are nobody's business.
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 0, "log_level": 0})
    with connect_blocking(node.bootstrap) as client:
        world = ConsoleWorld(node, client, producer, outbox_url)
        _fill_topics(world)
        _fill_timeline(world)
        with ThreadPoolExecutor(1) as aside:  # a browser's loop may run in this thread
            aside.submit(lambda: asyncio.run(_fill_stream(node.bootstrap))).result(SECONDS_MAX)
        _fill_outbox(world)
        member = _join(world)
        try:
            yield world
        finally:
            member.close()


def _fill_topics(world: ConsoleWorld) -> None:
    admin = AdminClient({"bootstrap.servers": world.node.bootstrap})
    wanted = TOPICS | {TEAM_INPUT: 1, TEAM_DEAD: 1, "dovetail.pipelines": 1, "shop.cancels": 1}
    made = admin.create_topics([NewTopic(name, count) for name, count in wanted.items()])
    for done in made.values():
        done.result(SECONDS_MAX)
    for number in range(ORDERS):
        order = {"order": number, "customer": f"c-{number % 7}", "items": [{"sku": "A", "n": 2}]}
        world.producer.produce(
            "orders",
            json.dumps(order),
            key=f"c-{number % 7}",
            partition=number % 3,
            headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        )
    world.producer.produce("blobs", bytes(range(256)))
    world.producer.produce("blobs", None, key="gone")
    world.producer.produce("notes", "<img src=x onerror=alert(1)> is text, and stays text")
    world.producer.produce("messages", "an event")
    world.producer.produce(LONG_TOPIC, "word " * 400, key="k" * 300)
    world.producer.produce(
        TEAM_DEAD,
        json.dumps({"order": 7}),
        key="order-7",
        headers={
            "dovetail-kind": "exception",
            "dovetail-reason": "ZeroDivisionError: division by zero",
            "dovetail-attempts": "3",
            "dovetail-traceback": "Traceback (most recent call last):\n  ZeroDivisionError",
        },
    )
    tell_pipeline(world, rate=12.5)
    world.producer.flush(SECONDS_MAX)
    places = [TopicPartition("orders", number, COMMITTED) for number in range(TOPICS["orders"])]
    billing = Consumer({"bootstrap.servers": world.node.bootstrap, "group.id": "billing"})
    billing.commit(offsets=places, asynchronous=False)
    billing.close()


def tell_pipeline(world: ConsoleWorld, *, rate: float) -> None:
    """What a driver writes about its pipeline."""
    now_ms = int(time.time() * 1000)
    teams = [
        {
            "team": team,
            "state": state,
            "workers": 2,
            "input": f"shop.{team}.input",
            "results": f"shop.{team}.results",
            "dead": f"shop.{team}.dead",
            "lag": lag,
            "jobs_per_s": rate if state == "working" else 0.0,
            "batch": 17,
            "batch_ms": 320,
            "failures": 2 if state == "failing" else 0,
            "dead_letters": 1 if team == "price" else 0,
            "jobs": [{"id": "order-7", "part": 0.4, "text": "<i>pricing</i>"}]
            if team == "price"
            else [],
            "last_error": "the results topic refuses the rows" if state == "failing" else "",
        }
        for team, state, lag in (
            ("parse", "working", 0),
            ("price", "working", 12),
            ("ship", "idle", 0),
            ("refund", "failing", 40),
            ("tell-the-customer-by-mail", "working", 3),
        )
    ]
    edges = [("parse", "price"), ("price", "ship"), ("price", "refund")]
    edges += [("ship", "tell-the-customer-by-mail"), ("refund", "parse")]
    document = {
        "format": 1,
        "pipeline": "shop",
        "state": "running",
        "driver": "driver-1:4711",
        "term": 3,
        "started_ms": now_ms - 60_000,
        "at_ms": now_ms,
        "edges": [{"from": one, "to": other, "how": "pipe"} for one, other in edges],
        "teams": teams,
    }
    world.producer.produce("dovetail.pipelines", json.dumps(document), key="shop")
    world.producer.flush(SECONDS_MAX)


def _fill_timeline(world: ConsoleWorld) -> None:
    reminders = world.client.timeline("reminders")
    reminders.create(TimelineConfig(attempts_max=1))
    for number in range(12):
        reminders.schedule(
            b'{"invoice": %d}' % number, delay=f"{20 + 3 * number}m", key=f"k-{number}"
        )
    for number in range(40):
        reminders.schedule(b"soon", delay=f"{30 + number % 25}s")
    for number in range(3):
        reminders.schedule(b"poison %d" % number, delay="0s", key=f"poison-{number}")
    reminders.put_schedule("nightly", b"report", cron="0 3 * * *", zone="UTC")
    world.client.timeline("spare").create()

    @world.client.consumer("reminders", lease="30s", id="worker-1")
    def handle(message: Message) -> None:
        if message.body.startswith(b"poison") and not world.mended.is_set():
            raise ValueError("the customer has no address")
        world.handled.append(message.body)

    world.wait("three dead letters", lambda: len(reminders.dead()) == 3)


async def _fill_stream(bootstrap: str) -> None:
    log = KafkaSharedLog(bootstrap, topic="bots", environment="prod", timeout_ms=5_000)
    await log.open(lambda _: None)
    first, second = Incarnation("a1"), Incarnation("b1")
    for record in (
        Register(MEMBER_A, first, {0: 0}, "messages"),
        Register(MEMBER_B, second, {0: 0}, "messages"),
        Claim(Term(1), MEMBER_A, first),
        Claim(Term(2), MEMBER_B, second),
        Report(Term(2), MEMBER_B, second, 1, {0: 0}),
    ):
        await log.append(record)
    await log.close()


def new_outbox(folder: Path) -> str:
    """The address of a new database with the outbox's tables."""
    url = f"sqlite:///{folder / 'shop.db'}"
    create_tables(open_engine(url))
    return url


def _fill_outbox(world: ConsoleWorld) -> None:
    engine = open_engine(world.outbox_url)
    outbox = OutboxProducer("notes", backend="db")
    with engine.begin() as connection:
        outbox.publish({"sent": True}, on=connection)
    drain_all(world.outbox_url, world.node.bootstrap)
    with engine.begin() as connection:
        outbox.publish({"waits": True}, key="w", on=connection)
        connection.execute(
            text(
                "INSERT INTO kafka_dead_messages"
                " (topic, payload, message_id, created_at, reason, attempts)"
                " SELECT topic, payload, 'dead-1', created_at, 'the message is too large', 1"
                " FROM kafka_messages LIMIT 1"
            )
        )
    engine.dispose()


def _join(world: ConsoleWorld) -> Consumer:
    """A member of the group `readers`, which stays."""
    assigned = threading.Event()
    member = Consumer(
        {
            "bootstrap.servers": world.node.bootstrap,
            "group.id": "readers",
            "client.id": "reader-1",
            "max.poll.interval.ms": 3_600_000,
        }
    )
    member.subscribe(["notes"], on_assign=lambda *_: assigned.set())
    deadline = time.monotonic() + SECONDS_MAX
    while not assigned.is_set():
        assert time.monotonic() < deadline, "the group was never dealt"
        member.poll(0.1)
    return member
