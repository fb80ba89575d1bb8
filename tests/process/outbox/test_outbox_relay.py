"""The relay as users run it: a process with signals, inside an application, on hot topics."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests import warm_python
from tests.conftest import NodeFactory
from tests.database_servers import postgres_of, running_postgres
from tests.outbox_kit import SECONDS_MAX, drain_all, new_topic, pending, read_all
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.errors import InvalidInput, InvalidSetting, NotFound, Unavailable, Uncertain
from dovetail.kafka.client.brokers import Brokers
from dovetail.outbox import Inbox, Message, Producer, start_relay
from dovetail.outbox.database import DatabaseDown, open_engine
from dovetail.outbox.pace import Pace
from dovetail.outbox.poller import advance, reset, source_of
from dovetail.outbox.publishing import insert
from dovetail.outbox.relay import Relay
from dovetail.outbox.schema import SCHEMA_VERSION, SLOTS, create_tables
from dovetail.outbox.shards import set_shards
from dovetail.outbox.status import read_status
from dovetail.outbox.worker import RelayOptions


def _publish(url: str, messages: list[Message]) -> None:
    with create_engine(url, poolclass=NullPool).begin() as connection:
        insert(connection, messages)


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def _relay(url: str, kafka: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    process = warm_python.Popen(
        [sys.executable, "-m", "dovetail", "relay", "-d", url, "-k", kafka, *arguments],
        env={**environment, "DOVETAIL_LOGGING_FORMAT": "json"},
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(SECONDS_MAX, process.kill)
    timer.start()
    try:
        with process:
            yield process
            process.kill()
    finally:
        timer.cancel()


def _line(process: subprocess.Popen[str], message: str) -> dict[str, object]:
    assert process.stderr is not None
    for text_line in process.stderr:
        line: dict[str, object] = json.loads(text_line)
        if line["message"] == message:
            return line
    raise AssertionError(f"the relay ended without {message!r}")


def test_the_first_signal_finishes_and_unlocks(kafka: str, postgres: str) -> None:
    """O9: exit code 0, every lock given back, metrics served meanwhile."""
    topic = new_topic(kafka)
    with _relay(postgres, kafka, "--metrics-port", "0") as process:
        port = _line(process, "metrics served")["port"]
        _line(process, "relay started")
        _publish(postgres, [Message(topic, b"x", key=b"k") for _ in range(3000)])
        engine = open_engine(postgres)
        _wait_until(lambda: pending(engine) == 0)
        metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert f'dovetail_outbox_sent_total{{topic="{topic}"}}' in metrics
        _publish(postgres, [Message(topic, b"x", key=b"k") for _ in range(20_000)])
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    status = read_status(engine).topics[0]
    assert all(shard.locked_by is None for shard in status.shards)
    assert len(read_all(kafka, topic)) == 23_000 - status.pending


def test_the_second_signal_ends_at_once(node_factory: NodeFactory, postgres: str) -> None:
    """O9: also while the broker does not answer; nothing is lost."""
    node = node_factory()
    topic = new_topic(node.bootstrap)
    with _relay(postgres, node.bootstrap) as process:
        _line(process, "relay started")
        _publish(postgres, [Message(topic, b"first", key=b"k")])
        _wait_until(lambda: pending(open_engine(postgres)) == 0)
        node.pause()
        _publish(postgres, [Message(topic, b"second", key=b"k")])
        _wait_until(lambda: _locked(postgres))
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 128 + signal.SIGINT
        node.resume()
    drain_all(postgres, node.bootstrap, RelayOptions(lock_ms=500))
    assert [record.value for record in read_all(node.bootstrap, topic)] == [b"first", b"second"]


def test_a_signal_that_another_thread_gets_stops_the_relay(kafka: str, postgres: str) -> None:
    """O9, R5: as happens behind SIGCONT, when the main thread does not run yet."""
    with _relay(postgres, kafka) as process:
        _line(process, "relay started")
        others = {int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()}
        thread = max(others - {process.pid})
        assert ctypes.CDLL(None).tgkill(process.pid, thread, signal.SIGTERM) == 0
        assert process.wait(SECONDS_MAX) == 0


def _locked(url: str) -> bool:
    return any(
        shard.locked_by for topic in read_status(open_engine(url)).topics for shard in topic.shards
    )


def test_a_relay_inside_an_application_is_woken_by_a_commit(kafka: str, postgres: str) -> None:
    """O4: with an idle time of minutes, messages leave at once: publishers notify."""
    topic = new_topic(kafka)
    options = RelayOptions(idle_ms=600_000)
    with Relay(open_engine(postgres), Brokers(kafka), options):
        for number in range(3):
            _publish(postgres, [Message(topic, str(number).encode(), key=b"k")])
            _wait_until(lambda: pending(open_engine(postgres)) == 0)
    assert len(read_all(kafka, topic)) == 3


def _sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a worker that expects to be notified waits, each time."""
    slept: list[float] = []
    next_ms = Pace.next_ms

    def noted(pace: Pace, *, asleep: bool) -> float:
        delay_ms = next_ms(pace, asleep=asleep)
        if asleep:
            slept.append(delay_ms)
        return delay_ms

    monkeypatch.setattr(Pace, "next_ms", noted)
    return slept


def test_a_relay_that_was_deaf_for_a_while_looks_when_it_hears_again(
    kafka: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O4, R5: its connection is killed; what is published before it listens again leaves then."""
    topic, engine = new_topic(kafka), open_engine(postgres)
    may_listen, follow = threading.Event(), Relay._follow
    may_listen.set()

    def follow_if_it_may(relay: Relay, raw: object) -> None:
        if may_listen.is_set():
            follow(relay, raw)

    monkeypatch.setattr(Relay, "_follow", follow_if_it_may)
    options, slept = RelayOptions(workers=1, idle_ms=600_000, retry_ms=50), _sleeps(monkeypatch)
    with Relay(open_engine(postgres), Brokers(kafka), options):
        _publish(postgres, [Message(topic, b"heard", key=b"k")])
        _wait_until(lambda: pending(engine) == 0)
        before = len(slept)
        _publish(postgres, [Message(topic, b"heard too", key=b"k")])
        _wait_until(lambda: pending(engine) == 0 and len(slept) > before)
        may_listen.clear()
        with engine.begin() as connection:
            killed = connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND query ILIKE 'LISTEN%'"
                )
            )
            assert len(killed.all()) == 1
        _publish(postgres, [Message(topic, b"not heard", key=b"k")])
        assert pending(engine) == 1
        may_listen.set()
        _wait_until(lambda: pending(engine) == 0)
    assert [record.value for record in read_all(kafka, topic)] == [
        b"heard",
        b"heard too",
        b"not heard",
    ]


def test_a_deaf_relay_looks_as_often_as_it_is_told(
    kafka: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O4: no `LISTEN` at all, and every worker asleep: never longer than `outbox.idle_ms`."""
    topic, engine, slept = new_topic(kafka), open_engine(postgres), _sleeps(monkeypatch)
    monkeypatch.setattr(Relay, "_follow", lambda *_: None)
    with Relay(open_engine(postgres), Brokers(kafka), RelayOptions(workers=1, idle_ms=300)):
        for number in range(3):
            before = len(slept)
            _wait_until(lambda before=before: len(slept) > before)  # type: ignore[misc]
            _publish(postgres, [Message(topic, str(number).encode(), key=b"k")])
            _wait_until(lambda: pending(engine) == 0)
    assert set(slept) == {300.0}
    assert len(read_all(kafka, topic)) == 3


def test_start_relay_as_the_source_has_it(kafka: str, database: str) -> None:
    """O4, O10: `start_relay(threads=n)` in the application's own process."""
    topic = new_topic(kafka)
    relay = start_relay(threads=2, database=database, bootstrap=kafka)
    _publish(database, [Message(topic, b"x", key=b"k", headers=(("h", b"v"), ("e", None)))])
    _wait_until(lambda: pending(open_engine(database)) == 0)
    relay.stop()
    found = read_all(kafka, topic)[0]
    assert (found.key, found.value, found.headers) == (b"k", b"x", (("h", b"v"), ("e", None)))


@pytest.mark.parametrize("kind", ["postgres", "maria"])
def test_a_hot_topic_is_shared_and_keys_stay_in_order(
    kind: str, kafka: str, new_database_of: Callable[[str], str]
) -> None:
    """O8: four shards, four workers; each key in one shard, in order, also when shards change."""
    url, topic = new_database_of(kind), new_topic(kafka, partitions=5)
    engine = open_engine(url)
    set_shards(engine, topic, 4)
    keys = [f"k{number}".encode() for number in range(40)]
    for at in range(5):
        _publish(url, [Message(topic, str(at).encode(), key=key) for key in keys])
    _publish(url, [Message(topic, b"none") for _ in range(40)])
    options = RelayOptions(workers=4, batch_messages_max=10)
    with Relay(open_engine(url), Brokers(kafka), options):
        _wait_until(lambda: pending(engine) == 0)
        _wait_until(lambda: not _locked(url))
    worked = [shard.sent for shard in read_status(engine).topics[0].shards]
    assert len(worked) == 4
    assert all(worked)
    set_shards(engine, topic, 2)
    _publish(url, [Message(topic, b"5", key=key) for key in keys])
    drain_all(url, kafka)
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for record in read_all(kafka, topic):
        by_key.setdefault(record.key, []).append(record.value)
    for key in keys:
        assert by_key[key] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_shards_are_not_changed_under_a_holder(postgres: str) -> None:
    """O8: two workers never have one key under different numbers."""
    engine = open_engine(postgres)
    set_shards(engine, "t", 2)
    with engine.begin() as connection:
        connection.execute(text("UPDATE kafka_topic_info SET locked_by = 'x' WHERE shard = 1"))
    with pytest.raises(Unavailable, match="shard 1 of 't' is locked by x"):
        set_shards(engine, "t", 4)
    with pytest.raises(InvalidInput, match="1 to 64"):
        set_shards(engine, "t", 65)


def test_compaction_sends_the_last_of_each_key(kafka: str, database: str) -> None:
    """O10: within a batch."""
    topic = new_topic(kafka)
    _publish(database, [Message(topic, str(n).encode(), key=b"k%d" % (n % 3)) for n in range(30)])
    drain_all(database, kafka, RelayOptions(compact_topics=frozenset({topic})))
    assert sorted(record.value or b"" for record in read_all(kafka, topic)) == [b"27", b"28", b"29"]


def test_rows_without_a_place_are_adopted(kafka: str, postgres: str) -> None:
    """O4: restored with triggers off, they are found and sent."""
    topic = new_topic(kafka)
    with create_engine(postgres, poolclass=NullPool).begin() as connection:
        connection.execute(text("SET session_replication_role = replica"))
        insert(connection, [Message(topic, b"restored")])
    with Relay(open_engine(postgres), Brokers(kafka)):
        _wait_until(lambda: pending(open_engine(postgres)) == 0)
    assert [record.value for record in read_all(kafka, topic)] == [b"restored"]


def test_a_table_is_backfilled_and_polled(kafka: str, database: str) -> None:
    """O11: every row once; then what changed, in order, and never what may still be committing."""
    topic = new_topic(kafka, partitions=1)
    engine = open_engine(database)
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE customers (id int PRIMARY KEY, name text, changed datetime)")
            if engine.dialect.name == "sqlite"
            else text(
                "CREATE TABLE customers (id int PRIMARY KEY, name text, changed timestamp(0))"
            )
        )
        moment = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
        for number in range(1, 2501):
            connection.execute(
                text("INSERT INTO customers VALUES (:id, 'n', :changed)"),
                {"id": number, "changed": moment.isoformat(" ")},
            )
    source = source_of(engine, "customers", topic=topic)
    assert [advance(engine, source) for _ in range(4)] == [1000, 1000, 500, 0]
    reset(engine, source)
    assert advance(engine, source) == 1000

    changes = source_of(engine, "customers", topic=topic, updated_at="changed", delay_ms=2000)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert advance(engine, changes, now=now) == 0
    polled = [advance(engine, changes, now=now + timedelta(seconds=3)) for _ in range(4)]
    assert polled == [1000, 1000, 500, 0]
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE customers SET name = 'new', changed = :changed WHERE id = 7"),
            {"changed": (moment + timedelta(seconds=10)).isoformat(" ")},
        )
    assert advance(engine, changes, now=now + timedelta(seconds=11)) == 0
    assert advance(engine, changes, now=now + timedelta(seconds=13)) == 1
    drain_all(database, kafka)
    records = read_all(kafka, topic)
    assert len(records) == 2500 + 1000 + 2500 + 1
    last = json.loads(records[-1].value or b"")
    assert (records[-1].key, last["name"]) == (b"7", "new")
    with pytest.raises(NotFound, match="no table"):
        source_of(engine, "nobody", topic=topic)
    with pytest.raises(InvalidInput, match="no column 'x'"):
        source_of(engine, "customers", topic=topic, updated_at="x")


@pytest.mark.parametrize("name", ["kafka", "kafka_async"])
def test_the_direct_backends(name: str, kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O1: `kafka` returns when it is stored, `kafka_async` soon stores it; ids are headers too."""
    monkeypatch.setenv("DOVETAIL_OUTBOX_KAFKA", kafka)
    topic = new_topic(kafka)
    producer = Producer(topic)
    made = [producer.message("x", key="k", partition_key="p") for _ in range(5)]
    ids = producer.publish_list(made, backend=name)
    if name == "kafka_async":
        assert producer.flush() == 0
    records = read_all(kafka, topic)
    assert [record.message_id for record in records] == ids
    assert len({record.partition for record in records}) == 1
    if name == "kafka":
        large = [producer.message("fits"), producer.message(b"x" * 2_000_000)]
        with pytest.raises(Uncertain, match="1 of 2 messages were not acknowledged"):
            producer.publish_list(large, backend=name)
        assert len(read_all(kafka, topic)) == 6


@pytest.mark.parametrize("column", ["binary", "date"])
def test_a_table_with_an_unusual_primary_key_is_read_to_its_end(
    kafka: str, database: str, topic: str, column: str
) -> None:
    """F15: binary keys leave as they are, and a cursor of any type finds its place again."""
    engine = open_engine(database)
    binary = {"postgresql": "bytea", "sqlite": "blob"}.get(engine.dialect.name, "varbinary(16)")
    kind, first = binary if column == "binary" else "date", date(2026, 1, 1)
    keys: list[Any] = (
        [b"\x00\xff%c%c" % divmod(number, 256) for number in range(1500)]
        if column == "binary"
        else [first + timedelta(days=number) for number in range(1500)]
    )
    with engine.begin() as connection:
        changed = "changed timestamp DEFAULT '2026-01-01'"
        connection.execute(text(f"CREATE TABLE odd (id {kind} PRIMARY KEY, {changed})"))
        connection.execute(
            text("INSERT INTO odd (id) VALUES (:id)"),
            [{"id": key if column == "binary" else key.isoformat()} for key in keys],
        )

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    backfill = source_of(engine, "odd", topic=topic)
    assert [advance(engine, backfill) for _ in range(3)] == [1000, 500, 0]
    poll = source_of(engine, "odd", topic=topic, updated_at="changed")
    assert [advance(engine, poll, now=moment) for _ in range(3)] == [1000, 500, 0]
    drain_all(database, kafka)
    found = Counter(record.key for record in read_all(kafka, topic))
    expected = keys if column == "binary" else [key.isoformat().encode() for key in keys]
    assert found == dict.fromkeys(expected, 2)


def test_a_poller_goes_by_the_clock_of_the_database(
    kafka: str, database: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F15: a poller whose own clock is a day ahead does not overtake open transactions."""
    engine = open_engine(database)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE timed (id int PRIMARY KEY, changed timestamp)"))
        soon = datetime.now(UTC).replace(tzinfo=None, microsecond=0) + timedelta(hours=1)
        connection.execute(text("INSERT INTO timed VALUES (1, :at)"), {"at": soon.isoformat(" ")})

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Ahead":
            return cls.fromtimestamp(time.time() + 86_400, tz)

    monkeypatch.setattr("dovetail.outbox.poller.datetime", Ahead)
    source = source_of(engine, "timed", topic=topic, updated_at="changed")
    assert advance(engine, source) == 0


@pytest.mark.parametrize("major", [13, 14, 15, 16, 17])
def test_the_outbox_works_on_an_older_postgresql(major: int, kafka: str, topic: str) -> None:
    """F81, O14: with shards, keys of any bytes and none; and the inbox. All others run on 18."""
    with running_postgres(programs=postgres_of(major)) as server:
        url = server.create_database().url
        engine = open_engine(url)
        create_tables(engine)
        set_shards(engine, topic, 4)
        keys = [None, b"", b"\x00\xff", b"k", *(b"%d" % number for number in range(60))]
        for value in (b"first", b"second"):
            _publish(url, [Message(topic, value, key=key) for key in keys])
        with engine.connect() as connection:
            slots = set(connection.execute(text("SELECT DISTINCT key, slot FROM kafka_messages")))
        keyed = [slot for key, slot in slots if key is not None]
        assert len(keyed) == len(keys) - 1
        assert all(0 <= slot < SLOTS for slot in keyed)
        assert len(set(keyed)) > SLOTS // 4

        drain_all(url, kafka)
        assert pending(engine) == 0
        records = read_all(kafka, topic)
        for key in keys[1:]:
            values = [record.value for record in records if record.key == key]
            assert values == [b"first", b"second"]
        for expected in (["a", "b"], []):
            with engine.begin() as connection:
                assert Inbox("test").new(connection, ["a", "b"]) == expected
        engine.dispose()


_EXITS = """
import os
from dovetail.outbox import Producer

producer = Producer({topic!r}, backend="kafka_async")
for number in range({count}):
    producer.publish("before", key=str(number))
if os.fork() == 0:
    producer.publish("in the child", key="child")
else:
    os.wait()
"""


def test_an_exit_sends_what_is_on_its_way(kafka: str, topic: str) -> None:
    """F6: `kafka_async` loses nothing at exit, in a process and in one that it forked."""
    environment = {**os.environ, "DOVETAIL_OUTBOX_KAFKA": kafka}
    script = _EXITS.format(topic=topic, count=300)
    warm_python.run(
        [sys.executable, "-c", script], env=environment, check=True, timeout=SECONDS_MAX
    )
    values = [record.value for record in read_all(kafka, topic)]
    assert (values.count(b"before"), values.count(b"in the child")) == (300, 1)


def test_a_producer_that_is_closed(kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F6: the end of a block sends everything, and nothing is taken after it."""
    monkeypatch.setenv("DOVETAIL_OUTBOX_KAFKA", kafka)
    with Producer(topic, backend="kafka_async") as producer:
        for number in range(100):
            producer.publish("x", key=str(number))
    assert len(read_all(kafka, topic)) == 100
    with pytest.raises(InvalidInput, match="closed"):
        producer.publish("late")


def test_the_command_line_from_tables_to_dead_letters(
    kafka: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O3, O6, O10, U4: migrate, status, dead list, show, replay, drop, shards, sql."""

    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["outbox", *arguments])
        assert done.exit_code == code, done.output
        return str(done.stdout)

    monkeypatch.setenv("DOVETAIL_OUTBOX_DATABASE", database)
    topic = new_topic(kafka, **{"max.message.bytes": "2000"})
    _publish(database, [Message(topic, b"x" * 5000, key=b"k"), Message(topic, b"y" * 5000)])
    assert json.loads(run("migrate", "--json")) == {
        "before": SCHEMA_VERSION,
        "after": SCHEMA_VERSION,
    }
    waiting = json.loads(run("status", "--json"))
    assert (waiting[0]["topic"], waiting[0]["pending"]) == (topic, 2)
    drain_all(database, kafka)
    listed = json.loads(run("dead", "list", "--json"))
    assert [dead["topic"] for dead in listed] == [topic, topic]
    shown = json.loads(run("dead", "show", str(listed[0]["id"]), "--json"))
    assert "MESSAGE_TOO_LARGE" in shown["reason"]
    assert json.loads(run("dead", "replay", str(listed[0]["id"]), "--json")) == {"replayed": 1}
    run("dead", "drop", str(listed[1]["id"]), code=2)
    assert json.loads(run("dead", "drop", str(listed[1]["id"]), "-y", "--json")) == {"dropped": 1}
    run("dead", "show", "999", code=3)
    assert pending(open_engine(database)) == 1
    assert "CREATE TABLE kafka_messages" in run("sql", "sqlite")


def test_the_first_hour_without_tables_or_database(tmp_path: Path) -> None:
    """U7: what is missing, and the command that makes it."""
    with pytest.raises(NotFound, match="dovetail outbox migrate"):
        start_relay(database=f"sqlite:///{tmp_path}/empty.db", bootstrap="127.0.0.1:1")
    nobody = "postgresql://nobody@127.0.0.1:1/nothing?connect_timeout=2"
    with pytest.raises(DatabaseDown, match="refused"):
        start_relay(database=nobody, bootstrap="127.0.0.1:1")
    with pytest.raises(InvalidSetting, match=r"outbox\.database is not set"):
        start_relay(bootstrap="127.0.0.1:1")
