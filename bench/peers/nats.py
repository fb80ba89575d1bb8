"""NATS JetStream on file storage.

Servers from 2.10 on can sync before they acknowledge (`sync_interval: always`). Debian's 2.9
cannot: it acknowledges what the system's memory holds and syncs once in a minute or two. There the
store's folder gets the attribute S (`chattr +S`), with which the file system itself makes every
write synchronous: equal durability by other means. Where that is not to be had either, only the
weaker setting is measured, and the line says so.
"""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from bench.client import Span
from bench.peers.server import find_program, free_port, running

#: Unacknowledged messages at a time; the client's rate does not grow beyond.
IN_FLIGHT = 1000
#: Messages of one pull, acknowledged by their last.
FETCH = 500
_STREAM = _SUBJECT = "bench"


class Sync(Enum):
    """When the server syncs, in the words of the table."""

    ALWAYS = "sync always"
    FOLDER = "synced (chattr +S)"
    #: Weaker than ours.
    INTERVAL = "WEAKER: unsynced"


def strongest() -> Sync:
    """The strongest setting that the server here has by itself. Raises `PeerMissing`."""
    program = find_program("nats-server")
    found = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    version = found.stdout.rpartition("v")[2].strip()
    major, minor = (int(part) for part in version.split(".")[:2])
    return Sync.ALWAYS if (major, minor) >= (2, 10) else Sync.FOLDER


@contextmanager
def server(folder: Path, sync: Sync) -> Iterator[str]:
    """The address of a fresh server. Raises `PeerMissing`, or `OSError` if S cannot be set."""
    program = find_program("nats-server")
    store = folder / "store"
    store.mkdir(parents=True)
    if sync is Sync.FOLDER:
        made = subprocess.run(
            ["chattr", "+S", str(store)], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise OSError(f"chattr +S: {made.stderr.strip()}")
    port = free_port()
    always = "sync_interval: always" if sync is Sync.ALWAYS else ""
    config = folder / "server.conf"
    config.write_text(
        f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{store}"\n{always}\n}}\n'
    )
    command = [program, "--config", str(config)]
    with running(command, port=port, log_path=folder / "server.log"):
        yield f"nats://127.0.0.1:{port}"


def produce(address: str, *, messages: int, message_bytes: int, in_flight: int) -> Span:
    """From the first message to the last acknowledgement; `in_flight` 1 waits for each."""
    return asyncio.run(_produce(address, messages, b"x" * message_bytes, in_flight))


async def _produce(address: str, messages: int, value: bytes, in_flight: int) -> Span:
    client = await nats.connect(address)
    stream = client.jetstream(publish_async_max_pending=in_flight, timeout=60)
    await stream.add_stream(
        StreamConfig(name=_STREAM, subjects=[_SUBJECT], storage=StorageType.FILE)
    )
    started = time.perf_counter()
    if in_flight == 1:
        for _ in range(messages):
            await stream.publish(_SUBJECT, value)
    else:
        acknowledged = [
            await stream.publish_async(_SUBJECT, value, wait_stall=60) for _ in range(messages)
        ]
        await asyncio.gather(*acknowledged)
    ended = time.perf_counter()
    await client.close()
    return Span(started, ended)


def consume(address: str, *, messages: int) -> Span:
    """Pulls all messages and acknowledges each pull by its last message."""
    return asyncio.run(_consume(address, messages))


async def _consume(address: str, messages: int) -> Span:
    client = await nats.connect(address)
    config = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=100_000)
    reader = await client.jetstream().pull_subscribe(_SUBJECT, durable="readers", config=config)
    started = time.perf_counter()
    seen = 0
    while seen < messages:
        found = await reader.fetch(FETCH, timeout=10)
        seen += len(found)
        await found[-1].ack_sync()
    ended = time.perf_counter()
    await client.close()
    return Span(started, ended)
