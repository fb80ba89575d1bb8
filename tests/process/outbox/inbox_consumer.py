"""A consumer that writes one row for each message, and dies by itself at a chosen step.

    python -m tests.process.outbox.inbox_consumer SOURCE DATABASE BOOTSTRAP NAME STEP COUNT

SOURCE is `kafka` (a topic and a group), `timeline` or `stream` (a shared stream). It sends itself
SIGKILL the COUNT-th time that it comes to STEP, which is in the middle of the transaction, after
its commit, or after the message was acknowledged. With the inbox switched off in the environment
(INBOX=off) it writes its rows without asking, which shows that the test would see doubles.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from dovetail import connect_blocking
from dovetail.outbox import Inbox
from dovetail.stream import Event, Leadership, SharedStream, StreamSettings, Takeover

STEPS = ("in the transaction", "after the commit", "acknowledged")
#: The consumer ends when it has seen nothing for so long; a kill ends it sooner.
QUIET_S = 60.0

Step = Callable[[str], None]


def die_at(step: str, count: int) -> Step:
    left = count

    def on_step(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return on_step


def make_effect(engine: Engine, on_step: Step) -> Callable[[Any, bytes], None]:
    """Writes a row in the transaction of the inbox."""
    inbox = Inbox("test")

    def effect(message: Any, value: bytes) -> None:
        with engine.begin() as connection, inbox.once(connection, message) as first:
            if first or os.environ.get("INBOX") == "off":
                connection.execute(
                    text("INSERT INTO effects (value) VALUES (:value)"), {"value": value.decode()}
                )
            on_step(STEPS[0])
        on_step(STEPS[1])

    return effect


def consume_topic(
    bootstrap: str, name: str, effect: Callable[[Any, bytes], None], on_step: Step
) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # The next process is the same member: nobody waits until the dead one is missed.
            "group.instance.id": "consumer",
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.subscribe([name])
    while True:
        message = consumer.poll(QUIET_S)
        assert message is not None
        if message.error() is None:
            effect(message, message.value())
            consumer.commit(message, asynchronous=False)
            on_step(STEPS[2])


def consume_timeline(
    bootstrap: str, name: str, effect: Callable[[Any, bytes], None], on_step: Step
) -> None:
    with connect_blocking(bootstrap) as client:

        @client.consumer(name, lease="1s", concurrency=1, prefetch=0)
        def handle(message: Any) -> None:
            effect(message, message.body)
            on_step(STEPS[2])

        client.run()


def stream_settings(name: str, port: int, vote_path: Path) -> StreamSettings:
    return StreamSettings(
        coordination_stream_id=f"{name}-log",
        endpoint_host_and_port=f"127.0.0.1:{port}",
        shared_secret="0123456789abcdef0123456789abcdef",
        takeover=Takeover.RESUME,
        timeout_ms=500,
        vote_path=vote_path,
        batch_events_max=5,
    )


def consume_stream(
    bootstrap: str, name: str, effect: Callable[[Any, bytes], None], on_step: Step
) -> None:
    settings = stream_settings(
        name, int(os.environ["STREAM_PORT"]), Path(os.environ["STREAM_VOTE"])
    )

    def handle(event: Event, _: Leadership) -> None:
        effect(event, event.value)
        on_step(STEPS[2])

    async def serve() -> None:
        async with SharedStream.on_kafka(bootstrap, name, handle, settings):
            await asyncio.sleep(QUIET_S)

    asyncio.run(serve())


SOURCES = {"kafka": consume_topic, "timeline": consume_timeline, "stream": consume_stream}


def main() -> None:
    source, database, bootstrap, name, step, count = sys.argv[1:]
    on_step = die_at(step, int(count))
    effect = make_effect(create_engine(database, poolclass=NullPool), on_step)
    SOURCES[source](bootstrap, name, effect, on_step)


if __name__ == "__main__":
    main()
