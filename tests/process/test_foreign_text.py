"""R6: foreign text through every public entry, on real servers.

Each value comes out as it went in, or is refused at once and clearly; and afterwards everything
works as before.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.foreign_values import (
    NASTY_TEXTS,
    WORST,
    datas,
    each_of,
    error_of,
    foreign,
    texts,
)
from tests.loop_thread import LoopThread
from tests.outbox_kit import a_worker, new_database, new_topic, pending, read_all

from dovetail import connect
from dovetail.errors import InvalidInput, NotFound, TopicExists
from dovetail.node.node import Endpoints, Node
from dovetail.outbox import Producer
from dovetail.outbox.database import open_engine
from dovetail.settings import Flag, load_settings
from dovetail.timeline.client import Dovetail, Timeline
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.client.message import Message
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import decode_headers

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")

#: An answer or a refusal comes at once; this is for a busy machine.
AT_ONCE_S = 20.0


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.close()


@contextmanager
def _running(loop: LoopThread, folder: Path, **settings: object) -> Iterator[Endpoints]:
    given = {"node.data_dir": folder, "kafka.port": 0, "http.enabled": False, **settings}
    flags = [Flag(name, value, name) for name, value in given.items()]
    node = Node(load_settings(flags=flags, environment={}, folder=folder))
    loop.run(node.__aenter__(), 60)
    try:
        yield node.endpoints
    finally:
        loop.run(node.__aexit__(), 60)


# Timelines


class Client:
    """A client of timelines, whatever is behind it."""

    def __init__(self, loop: LoopThread, client: Dovetail, address: str) -> None:
        self.client = client
        #: Of the node; empty if there is none.
        self.address = address
        self.raised: Exception = ValueError()
        self._loop = loop

    async def consume(self) -> None:
        """Has a handler of the timeline `failing` raise what `raised` says."""

        @self.client.consumer("failing")
        async def handle(message: Message) -> None:
            raise self.raised

    def run(self, work: "Coroutine[Any, Any, Any]") -> Any:
        return self._loop.run(work, AT_ONCE_S)

    def taken(self, work: "Callable[[], Coroutine[Any, Any, Any]]") -> Any:
        """What the call returns; None if it is refused, which must be clear and at once."""
        try:
            return self.run(work())
        except InvalidInput as error:
            assert str(error).encode(), "a refusal that cannot be shown"
            return None

    def works(self) -> None:
        """Everything is as before."""
        timeline = self.client.timeline("plain")
        (shown,) = self.run(timeline.look_up(self.run(timeline.schedule(b"x", delay="1h")).id))
        assert shown.body == b"x"


@pytest.fixture(scope="module", params=["sqlite", "postgres", "fake"])
def client(
    request: pytest.FixtureRequest, loop: LoopThread, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    if request.param == "fake":
        making = fake_dovetail(timelines=["plain"])
        fake = loop.run(making.__aenter__(), 60)
        yield Client(loop, fake, "")
        loop.run(making.__aexit__(None, None, None), 60)
        return

    settings: dict[str, object] = {}
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        settings = {"timeline.store": "postgres", "timeline.dsn": server.create_database().dsn}
    with _running(loop, tmp_path_factory.mktemp("node"), **settings) as at:
        dovetail = connect(at.kafka)
        loop.run(dovetail.__aenter__(), 60)
        loop.run(dovetail.timeline("plain").create(), 60)
        loop.run(dovetail.timeline("failing").create(TimelineConfig(attempts_max=1)), 60)
        made = Client(loop, dovetail, at.kafka)
        loop.run(made.consume(), 60)
        yield made
        loop.run(dovetail.__aexit__(None, None, None), 60)


@foreign
@each_of(NASTY_TEXTS, key="k", header="h", body=b"b", value=b"v")
@given(key=texts | st.none(), header=texts, body=datas, value=datas)
def test_a_message_of_a_timeline(
    client: Client, body: bytes, key: str | None, header: str, value: bytes
) -> None:
    """R6: body, key and headers of a message come out as they went in, or are refused."""
    timeline = client.client.timeline("plain")
    headers = {header: value}
    stored = client.taken(lambda: timeline.schedule(body, delay="1h", key=key, headers=headers))
    if stored is not None:
        (shown,) = client.run(timeline.look_up(stored.id))
        assert (shown.body, shown.key) == (body, key)
        assert decode_headers(shown.headers) == ((header, value),)
        if key is not None:
            assert client.run(timeline.look_up_key(key)).id == stored.id
        client.run(timeline.cancel(stored.id))
    elif key is not None:
        assert client.taken(lambda: timeline.look_up_key(key)) is None
    client.works()


@foreign
@each_of(NASTY_TEXTS, name="n")
@given(name=texts)
def test_names_around_a_timeline(client: Client, name: str) -> None:
    """R6: names of timelines and schedules, and ids of consumers."""
    dovetail = client.client
    if client.taken(lambda: _create(dovetail.timeline(name))) is not None:
        raise AssertionError("`create` returns nothing")
    listed = [each for each, state in client.run(dovetail.timelines()) if state == "ready"]
    assert set(listed) - {"plain", "failing"} <= {name}
    if name in listed and name not in ("plain", "failing"):
        client.run(dovetail.timeline(name).delete())

    plain = dovetail.timeline("plain")
    client.taken(lambda: plain.put_schedule(name, b"x", every="1h"))
    names = [each.name for each in client.run(plain.schedules())]
    assert names in ([], [name])
    with suppress(NotFound):
        client.taken(lambda: plain.drop_schedule(name))
    assert client.run(plain.schedules()) == []
    client.works()


async def _create(timeline: Timeline) -> None:
    """Creates it once the one of that name, which an example before deleted, is gone (B4)."""
    while True:
        try:
            return await timeline.create()
        except TopicExists as error:
            if "being deleted" not in str(error):
                raise
        await asyncio.sleep(0.01)


@foreign
@each_of(NASTY_TEXTS, text="t")
@given(text=texts)
def test_what_a_handler_raises(client: Client, text: str) -> None:
    """R6: any exception makes a dead letter, with a reason that can be read."""
    if not client.address:
        return  # Its clock stands still; its handlers are those of the real client.
    client.raised = error_of(text)
    client.run(_fail_once(client.client, type(client.raised).__name__))
    client.works()


async def _fail_once(dovetail: Dovetail, kind: str) -> None:
    timeline = dovetail.timeline("failing")
    await timeline.schedule(b"x")
    while not (dead := await timeline.dead()):
        await asyncio.sleep(0.01)
    assert dead[0].reason.startswith(kind)
    await timeline.drop_dead(dead[0].id)


@foreign
@each_of(NASTY_TEXTS, name="n")
@given(name=texts)
def test_ids_of_clients_and_consumers(client: Client, name: str) -> None:
    """R6: what a process calls itself."""
    if not client.address:
        return

    async def call_itself() -> None:
        async with connect(client.address, client_id=name) as dovetail:
            await dovetail.timelines()
            await dovetail.timeline("plain").schedule(b"x", delay="1h")

    async def consume() -> None:
        async with connect(client.address) as dovetail:
            dovetail.consumer("plain", id=name, stop="0s")(print)
            while dovetail.consumers[0].signals is None:
                await asyncio.sleep(0.01)
                assert dovetail.health()[0], dovetail.health()

    client.taken(call_itself)
    client.taken(consume)
    client.works()


# The outbox


@pytest.fixture(scope="module")
def node(loop: LoopThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    with _running(loop, tmp_path_factory.mktemp("node")) as at:
        yield at


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_database(request.param, request.getfixturevalue, tmp_path_factory.mktemp("outbox"))


@foreign
@each_of(WORST, payload="p", key="k", header="h", value="v")
@given(payload=datas | texts, key=datas | texts | st.none(), header=texts, value=datas | texts)
def test_a_message_of_the_outbox(
    database: str, node: Endpoints, payload: Any, key: Any, header: str, value: Any
) -> None:
    """R6: payload, key and headers arrive in Kafka as they were published, or are refused."""
    topic = new_topic(node.kafka, partitions=1)
    engine = open_engine(database)
    try:
        with engine.begin() as connection:
            Producer(topic).publish(
                payload, key=key, headers={header: value}, on=connection, backend="db"
            )
    except InvalidInput as error:
        assert str(error).encode(), "a refusal that cannot be shown"
        assert pending(engine) == 0
        return
    finally:
        engine.dispose()

    with a_worker(database, node.kafka) as worker:
        while worker.work_once():
            pass
    (record,) = read_all(node.kafka, topic)
    assert record.value == _as_bytes(payload)
    assert record.key == _as_bytes(key)
    assert (header, _as_bytes(value)) in record.headers


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def other_ways(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, Callable[[str, Any, Any], None]]]]:
    """A database, and ways to publish there by what is not a plain connection."""
    url = new_database(request.param, request.getfixturevalue, tmp_path_factory.mktemp("ways"))
    from django.conf import settings

    if not settings.configured:
        settings.configure(USE_TZ=True, DATABASES={})
    from django.db.utils import ConnectionHandler

    parts = make_url(url)
    kinds = {"sqlite": "sqlite3", "postgres": "postgresql"}
    place = {
        "ENGINE": f"django.db.backends.{kinds[request.param]}",
        "NAME": parts.database,
        "HOST": parts.host or "",
        "PORT": parts.port or "",
        "USER": parts.username or "",
    }
    django = ConnectionHandler({"default": place})["default"]

    def by_django(topic: str, payload: Any, key: Any) -> None:
        Producer(topic).publish(payload, key=key, on=django, backend="db")

    def by_async_session(topic: str, payload: Any, key: Any) -> None:
        async def publish() -> None:
            engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
            async with AsyncSession(engine) as session:
                await Producer(topic, backend="db").publish_async(payload, key=key, on=session)
                await session.commit()
            await engine.dispose()

        asyncio.run(publish())

    yield url, {"django": by_django, "async": by_async_session}
    django.close()


@pytest.mark.parametrize("way", ["django", "async"])
@foreign
@each_of(WORST, payload="p", key="k")
@given(payload=datas | texts, key=datas | texts | st.none())
def test_a_message_by_other_ways_into_the_outbox(
    other_ways: tuple[str, dict[str, Callable[[str, Any, Any], None]]],
    way: str,
    payload: Any,
    key: Any,
) -> None:
    """R6: through Django and an async session it is stored as it was given, or refused."""
    url, ways = other_ways
    engine = open_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM kafka_messages"))
    try:
        ways[way]("t", payload, key)
    except InvalidInput as error:
        assert str(error).encode(), "a refusal that cannot be shown"
        assert pending(engine) == 0
        return
    finally:
        engine.dispose()
    with engine.begin() as connection:
        (row,) = connection.execute(text("SELECT key, payload FROM kafka_messages"))
    assert tuple(None if one is None else bytes(one) for one in row) == (
        _as_bytes(key),
        _as_bytes(payload),
    )
    engine.dispose()


def _as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
