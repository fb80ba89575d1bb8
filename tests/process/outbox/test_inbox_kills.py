"""The inbox under kill -9: the effect of each message is there once, whenever its consumer dies."""

import asyncio
import os
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests import warm_python
from tests.etcd_server import free_ports
from tests.outbox_kit import SECONDS_MAX, new_topic
from tests.process.outbox.inbox_consumer import STEPS, stream_settings

from dovetail import connect_blocking
from dovetail.stream import SharedStream
from dovetail.timeline import Draft, TimelineConfig

ROOT = Path(__file__).parents[3]
MESSAGES = 24


def _published(source: str, kafka: str) -> str:
    if source == "timeline":
        name = f"inbox-{uuid.uuid4().hex[:10]}"
        with connect_blocking(kafka) as client:
            client.timeline(name).create(TimelineConfig(window_ms=100))
            client.timeline(name).schedule_many(
                [Draft(str(number).encode()) for number in range(MESSAGES)]
            )
        return name
    name = new_topic(kafka, partitions=1)
    if source == "stream":
        # A stream is handled from where it was when its first replica started.
        asyncio.run(_start_once(kafka, name))
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(MESSAGES):
        producer.produce(name, str(number).encode())
    assert producer.flush(SECONDS_MAX) == 0
    return name


async def _start_once(kafka: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = stream_settings(name, free_ports(1)[0], Path(folder) / "vote")
        async with SharedStream.on_kafka(kafka, name, print, settings):
            pass


def _effects(url: str) -> Counter[str]:
    with create_engine(url, poolclass=NullPool).connect() as connection:
        return Counter(connection.execute(text("SELECT value FROM effects")).scalars())


def _run(
    source: str, url: str, kafka: str, folder: Path, *, name: str, inbox: str = "on"
) -> Counter[str]:
    """Consumers one after the other, each of which dies somewhere, until all is there."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text("CREATE TABLE effects (value varchar(20))"))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "STREAM_PORT": str(free_ports(1)[0]),
        "STREAM_VOTE": str(folder / "vote"),
        "INBOX": inbox,
    }
    for number, step in enumerate([*STEPS, "never"]):
        process = warm_python.Popen(
            [
                sys.executable,
                "-m",
                "tests.process.outbox.inbox_consumer",
                *(source, url, kafka, name, step, str(2 + number)),
            ],
            cwd=ROOT,
            env=environment,
        )
        try:
            if step == "never":
                deadline = time.monotonic() + SECONDS_MAX
                while len(_effects(url)) < MESSAGES:
                    assert process.poll() is None
                    assert time.monotonic() < deadline, _effects(url)
                    time.sleep(0.05)
            else:
                assert process.wait(SECONDS_MAX) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()
    return _effects(url)


ALL = Counter(str(number) for number in range(MESSAGES))


@pytest.mark.parametrize("kind", ["postgres", "maria", "sqlite"])
def test_a_consumer_of_a_topic_dies(
    kind: str, kafka: str, new_database_of: Callable[[str], str], tmp_path: Path
) -> None:
    """O13: in the transaction, after its commit, and after its position was committed."""
    name = _published("kafka", kafka)
    assert _run("kafka", new_database_of(kind), kafka, tmp_path, name=name) == ALL


def test_a_handler_of_a_timeline_dies(kafka: str, postgres: str, tmp_path: Path) -> None:
    """O13: the message comes again when its lease ends, and has no second effect."""
    name = _published("timeline", kafka)
    assert _run("timeline", postgres, kafka, tmp_path, name=name) == ALL


def test_a_handler_of_a_shared_stream_dies(kafka: str, postgres: str, tmp_path: Path) -> None:
    """O13: the next leader resumes where the last one committed, and doubles nothing."""
    name = _published("stream", kafka)
    assert _run("stream", postgres, kafka, tmp_path, name=name) == ALL


def test_without_the_inbox_there_are_doubles(kafka: str, postgres: str, tmp_path: Path) -> None:
    """O13: so the tests above would see them."""
    name = _published("kafka", kafka)
    found = _run("kafka", postgres, kafka, tmp_path, name=name, inbox="off")
    assert set(found) == set(ALL)
    assert found != ALL
