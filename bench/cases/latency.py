"""Time from `produce` to the consumer's hands at 1000 messages a second, beside the disk's sync.

Producer (linger.ms=0, acks=all) and consumer (all defaults) are two threads of one process, so one
clock stamps both ends. The stamp travels in the message.
"""

import struct
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import client, disk
from bench.node import Node
from bench.run import Run, percentile
from bench.table import Line

_RATE = 1000
_BYTES = 100
_WARM = 500
_ALLOWED_MS = 3.0
_STAMP = struct.Struct(">q")


def measure(run: Run) -> list[Line]:
    messages = run.sized(10_000, quick=3_000)
    sync_ms, best = float("inf"), (float("inf"), float("inf"))
    for at in range(run.rounds):
        sync_ms = min(sync_ms, disk.sync_ms(run.folder))
        with Node(run.folder / f"latency-{at}") as node:
            run.step(f"{messages:,} messages at {_RATE} a second")
            found = latencies(node.bootstrap, messages)[_WARM:]
        best = min(best, (percentile(found, 50), percentile(found, 99)))
    return [
        Line(
            "d latency",
            f"p50 at {_RATE} messages/s",
            best[0],
            "ms",
            f"sync of this disk ({sync_ms:.2f} ms) + {_ALLOWED_MS:g} ms",
            sync_ms + _ALLOWED_MS,
            ratio_max=1.0,
        ),
        Line(
            "d latency",
            f"p99 at {_RATE} messages/s",
            best[1],
            "ms",
            "sync of this disk (p50)",
            sync_ms,
        ),
    ]


def latencies(bootstrap: str, messages: int) -> list[float]:
    """Milliseconds of each message, in order of arrival."""
    topic = client.create_topic(bootstrap, "latency")
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "latency"})
    reader.assign([TopicPartition(topic, 0, 0)])
    sending = threading.Thread(target=_send, args=(bootstrap, topic, messages))
    sending.start()
    found: list[float] = []
    deadline = time.monotonic() + messages / _RATE + client.STALL_S_MAX
    while len(found) < messages and time.monotonic() < deadline:
        message = reader.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise client.NotDelivered(str(message.error()))
        sent_ns = _STAMP.unpack_from(message.value() or b"")[0]
        found.append((time.perf_counter_ns() - sent_ns) / 1e6)
    sending.join()
    reader.close()
    if len(found) < messages:
        raise client.NotDelivered(f"{len(found)} of {messages} messages arrived")
    return found


def _send(bootstrap: str, topic: str, messages: int) -> None:
    sender = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    sender.list_topics(topic, timeout=client.STALL_S_MAX)
    rest = b"x" * (_BYTES - _STAMP.size)
    begun = time.perf_counter()
    for at in range(messages):
        early = begun + at / _RATE - time.perf_counter()
        if early > 0:
            time.sleep(early)
        sender.produce(topic, _STAMP.pack(time.perf_counter_ns()) + rest)
        sender.poll(0)
    sender.flush(client.STALL_S_MAX)
