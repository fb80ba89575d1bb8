"""Messages with a due time, published inside a transaction: in their timeline once, or never."""

import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from tests.outbox_kit import SECONDS_MAX, a_worker, drain_all, new_topic, pending, read_all
from tests.process.outbox.relay_process import LOCK_MS, relay_processes

from dovetail import connect_blocking
from dovetail.outbox import MESSAGE_ID_HEADER, Producer
from dovetail.outbox.database import open_engine
from dovetail.outbox.dead import list_dead
from dovetail.outbox.message import DUE_HEADER
from dovetail.outbox.status import read_status
from dovetail.outbox.worker import STEP_NAMES, RelayOptions
from dovetail.timeline import TimelineConfig
from dovetail.timeline.client.blocking import BlockingDovetail
from dovetail.timeline.message import Shown, decode_headers

MESSAGES = 45
OPTIONS = RelayOptions(lock_ms=LOCK_MS, batch_messages_max=10, retry_ms=50, retry_ms_max=200)
PRODUCER = Producer("none", backend="db")


@pytest.fixture
def client(kafka: str) -> Iterator[BlockingDovetail]:
    """A client of the node that holds the timelines."""
    with connect_blocking(kafka) as found:
        yield found


@pytest.fixture
def timeline(client: BlockingDovetail) -> str:
    """A new timeline."""
    return _new_timeline(client)


def _new_timeline(client: BlockingDovetail, config: TimelineConfig | None = None) -> str:
    name = f"outbox-{uuid.uuid4().hex[:10]}"
    client.timeline(name).create(config or TimelineConfig(window_ms=100))
    return name


def _schedule(url: str, timeline: str, **given: object) -> list[str]:
    messages = [PRODUCER.timed(timeline, str(number), **given) for number in range(MESSAGES)]
    with create_engine(url, poolclass=NullPool).begin() as connection:
        return PRODUCER.publish_list(messages, on=connection)


def _id_of(shown: Shown) -> str:
    return dict(decode_headers(shown.headers))[MESSAGE_ID_HEADER].decode()


def test_a_message_is_in_its_timeline_exactly_if_the_transaction_commits(
    database: str, kafka: str, client: BlockingDovetail, timeline: str
) -> None:
    """O12: due two hours after it was published, with key, headers and priority."""
    engine = create_engine(database, poolclass=NullPool)
    with Session(engine) as session:
        PRODUCER.schedule(timeline, "never", due="2h", on=session)
        session.rollback()
        ids = [
            PRODUCER.schedule(
                timeline,
                {"order": 7},
                due="2h",
                key="order-7",
                order_key="customer-1",
                headers={"source": "shop"},
                priority=3,
                on=session,
            ),
            PRODUCER.schedule(timeline, b"at", due=datetime(2030, 1, 1, tzinfo=UTC), on=session),
        ]
        before_ms = time.time() * 1000
        session.commit()
    drain_all(database, kafka)

    shop, at = client.timeline(timeline).peek(10)
    assert [_id_of(shop), _id_of(at)] == ids
    assert (shop.body, shop.key, shop.priority) == (b'{"order":7}', "order-7", 3)
    assert shop.order_key == "customer-1"
    assert dict(decode_headers(shop.headers))["source"] == b"shop"
    assert abs(shop.due_ms - before_ms - 7_200_000) < SECONDS_MAX * 1000
    assert at.due_ms == datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1000
    assert pending(engine) == 0


@contextmanager
def _handled(client: BlockingDovetail, timeline: str) -> Iterator[Counter[str]]:
    """What a consumer handles meanwhile, by message id."""
    found: Counter[str] = Counter()

    @client.consumer(timeline, lease="5s", concurrency=50)
    def handle(message: object) -> None:
        headers = dict(message.headers)  # type: ignore[attr-defined]
        found[headers[MESSAGE_ID_HEADER].decode()] += 1

    yield found


STEPS = [f"{when} {step}" for step in STEP_NAMES if step != "load" for when in ("before", "after")]
FEW = ["after submit", "before record", "after record"]


@pytest.mark.parametrize(
    ("kind", "steps"), [("postgres", STEPS), ("maria", FEW), ("sqlite", FEW)], ids=str
)
def test_kill_minus_nine_at_each_step(
    kind: str,
    steps: list[str],
    kafka: str,
    client: BlockingDovetail,
    new_database_of: Callable[[str], str],
) -> None:
    """O12: a message is handled once, although it was done when the relay sends it again."""
    places = [(step, new_database_of(kind), _new_timeline(client)) for step in steps]
    ids = [_schedule(url, timeline) for _, url, timeline in places]
    jobs = [
        (url, kafka, "KILL", step, 1 if step.split()[1] in {"lock", "finish"} else 2)
        for step, url, _ in places
    ]
    with relay_processes(jobs) as (_, ends):
        assert ends() == [-signal.SIGKILL] * len(places)

    for (step, url, timeline), published in zip(places, ids, strict=True):
        with _handled(client, timeline) as handled:
            described = client.timeline(timeline).describe()
            stored = described.counts.due + described.counts.leased + described.counts.waiting
            _wait_until(lambda handled=handled, stored=stored: len(handled) >= stored)
            drain_all(url, kafka, OPTIONS)
            # Nothing more is on its way then: what was stored twice would be handled twice.
            _wait_until(lambda timeline=timeline: _is_empty(client, timeline))
        assert handled == Counter(published), step


def _is_empty(client: BlockingDovetail, timeline: str) -> bool:
    counts = client.timeline(timeline).describe().counts
    return not (counts.waiting or counts.due or counts.leased)


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_timeline_refuses_is_set_aside(
    postgres: str, kafka: str, client: BlockingDovetail
) -> None:
    """O6, O12: each with its reason; its neighbours are stored, and none twice."""
    small = TimelineConfig(body_bytes_max=1_000, ahead_ms_max=86_400_000)
    timeline = _new_timeline(client, small)
    engine = create_engine(postgres, poolclass=NullPool)
    with engine.begin() as connection:
        for payload, due in (("a", "1h"), ("x" * 2_000, "1h"), ("far", "30d"), ("b", "2h")):
            PRODUCER.schedule(timeline, payload, due=due, on=connection)
        for headers in ('[["dovetail-due", "soon"]]', '[["dovetail-priority", "77"]]'):
            connection.execute(
                text(
                    "INSERT INTO kafka_messages (topic, headers, payload) "
                    "VALUES (:topic, :headers, :payload)"
                ),
                {"topic": f"timeline:{timeline}", "headers": headers, "payload": b"other"},
            )
    drain_all(postgres, kafka)

    assert [shown.body for shown in client.timeline(timeline).peek(10)] == [b"a", b"b"]
    reasons = [dead.reason for dead in reversed(list_dead(engine))]
    for reason, word in zip(
        reasons,
        ("body_bytes_max", "ahead_ms_max", "number of milliseconds", "0 to 9"),
        strict=True,
    ):
        assert word in reason


def test_a_name_that_no_timeline_can_have_is_set_aside(
    postgres: str, kafka: str, client: BlockingDovetail
) -> None:
    """O6, O12: a row of another writer was sent again and again, for ever."""
    engine = create_engine(postgres, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(
            text("INSERT INTO kafka_messages (topic, payload) VALUES ('timeline:a b', 'x')")
        )
    drain_all(postgres, kafka)
    (dead,) = list_dead(engine)
    assert "'a b' cannot name a timeline" in dead.reason


@pytest.mark.parametrize("name", ["a b", "", "..", "\u00e9"])
def test_a_name_that_no_topic_can_have_is_set_aside(postgres: str, kafka: str, name: str) -> None:
    """O6: as above, of a topic; the next one is sent."""
    engine, good = create_engine(postgres, poolclass=NullPool), f"good-{uuid.uuid4().hex[:8]}"
    with engine.begin() as connection:
        for topic in (name, good):
            connection.execute(
                text("INSERT INTO kafka_messages (topic, payload) VALUES (:topic, 'x')"),
                {"topic": topic},
            )
    drain_all(postgres, kafka)
    (dead,) = list_dead(engine)
    assert "cannot name a topic" in dead.reason


def test_a_timeline_that_is_not_there_yet(
    postgres: str, kafka: str, client: BlockingDovetail
) -> None:
    """O12: the reason says what to do, and the message arrives when it is done."""
    timeline = f"later-{uuid.uuid4().hex[:10]}"
    (message_id, *_) = _schedule(postgres, timeline, due="1h")
    with a_worker(postgres, kafka, OPTIONS) as worker:
        worker.work_once()
    (shard,) = read_status(open_engine(postgres)).topics[0].shards
    assert f"dovetail timeline create {timeline}" in (shard.error or "")

    client.timeline(timeline).create()
    drain_all(postgres, kafka, OPTIONS)
    assert _id_of(client.timeline(timeline).peek(1)[0]) == message_id
    assert client.timeline(timeline).describe().counts.waiting == MESSAGES


def test_a_topic_that_takes_no_due_records(postgres: str, kafka: str) -> None:
    """O12: what is due later is never sent early: it is set aside, and its neighbours go."""
    topic = new_topic(kafka, partitions=1)
    producer = Producer(topic, backend="db")
    engine = create_engine(postgres, poolclass=NullPool)
    with engine.begin() as connection:
        producer.publish("now", on=connection)
        producer.publish("later", due=timedelta(hours=2), on=connection)
        producer.publish("now too", on=connection)
    drain_all(postgres, kafka)
    assert [record.value for record in read_all(kafka, topic)] == [b"now", b"now too"]
    (dead,) = list_dead(engine)
    assert "dovetail.due=true" in dead.reason
    assert DUE_HEADER not in (dead.headers or "")


def test_a_topic_that_takes_due_records(kafka: str, new_database_of: Callable[[str], str]) -> None:
    """O12, K11: each is read once, not before it is due, though the relay is killed."""
    places = [
        (step, new_database_of("postgres"), new_topic(kafka, **{"dovetail.due": "true"}))
        for step in FEW
    ]
    ids, published_s = [], time.time()
    for _, url, topic in places:
        producer = Producer(topic, backend="db")
        messages = [
            producer.message(str(number), key=f"k{number % 5}", due="3s")
            for number in range(MESSAGES)
        ]
        with create_engine(url, poolclass=NullPool).begin() as connection:
            ids.append(producer.publish_list(messages, on=connection))
    with relay_processes([(url, kafka, "KILL", step, 2) for step, url, _ in places]) as (_, ends):
        assert ends() == [-signal.SIGKILL] * len(places)

    for (step, url, topic), published in zip(places, ids, strict=True):
        drain_all(url, kafka, OPTIONS)
        early = read_all(kafka, topic)
        assert not early or time.time() >= published_s + 3, step
        _wait_until(lambda topic=topic: len(read_all(kafka, topic)) >= MESSAGES)
        found = [record.message_id for record in read_all(kafka, topic)]
        assert sorted(found) == sorted(published), step
        assert list_dead(open_engine(url)) == []
