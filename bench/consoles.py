"""What open consoles cost the clients of a node with many topics and groups.

    python -m bench.consoles [--topics 1000] [--groups 500] [--consoles 10] [--seconds 20]

A producer sends one record after the other and waits for each. Its longest wait is taken without a
console and with so many live pages (the documents that pages of a browser watch, over real HTTP),
in turns, so that other work on the machine meets both. Then each page's documents are asked for
once more. Exit code 1 if the longest wait with consoles is more than twice that without, or a
document takes a second.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.client import STALL_S_MAX
from bench.node import Node

#: What the pages watch, one after the other for the consoles.
PAGES = (
    "watch=overview&watch=history",
    "watch=topics?limit=100",
    "watch=groups?limit=100",
    "watch=groups?limit=100%26sort=-lag",
    "watch=topic:t7",
    "watch=group:g7&watch=lag:g7",
    "watch=clients?limit=100",
    "watch=timelines",
    "watch=dead",
    "watch=access",
)
DOCUMENTS = (
    "overview",
    "history",
    "topics?limit=100&sort=-records",
    "topics/t7",
    "groups?limit=100&sort=-lag",
    "groups/g7",
    "clients",
    "timelines",
    "dead",
    "streams",
    "pipelines",
    "outbox",
    "access",
    "audit",
)
ROUNDS = 3
RATIO_MAX = 2.0
PAGE_S_MAX = 1.0


@dataclass(slots=True)
class Waits:
    """How long each record took, in milliseconds."""

    all_ms: list[float] = field(default_factory=list)

    @property
    def longest_ms(self) -> float:
        return max(self.all_ms)

    @property
    def told(self) -> str:
        """The figures in one line."""
        cuts = statistics.quantiles(self.all_ms, n=100)
        return (
            f"{len(self.all_ms):,} records: median {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, "
            f"longest {self.longest_ms:.1f} ms"
        )


def produce(bootstrap: str, seconds: float, waits: Waits) -> None:
    """One record after the other, over all topics that are warm."""
    sender = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    sender.produce("t0", b"first")
    sender.flush(STALL_S_MAX)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.perf_counter()
        sender.produce("t0", b"x" * 100)
        if sender.flush(STALL_S_MAX):
            raise RuntimeError("a record without an answer")
        waits.all_ms.append(1000 * (time.perf_counter() - begun))


@asynccontextmanager
async def consoles(http: str, count: int) -> AsyncIterator[None]:
    """So many live pages; each has had its first documents when this begins."""
    ready = [asyncio.Event() for _ in range(count)]

    async def watch(client: httpx.AsyncClient, number: int) -> None:
        page = PAGES[number % len(PAGES)]
        async with client.stream("GET", f"{http}/v1/live?{page}") as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("event: ") and "hello" not in line:
                    ready[number].set()

    async with httpx.AsyncClient(timeout=None) as client:
        tasks = [asyncio.create_task(watch(client, number)) for number in range(count)]
        await asyncio.wait_for(asyncio.gather(*(one.wait() for one in ready)), STALL_S_MAX)
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def fill(bootstrap: str, topics: int, groups: int) -> None:
    """Topics with a record each, and groups with positions in some of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for at in range(0, topics, 50):
        asked = [NewTopic(f"t{number}", 1) for number in range(at, min(topics, at + 50))]
        for made in admin.create_topics(asked, request_timeout=STALL_S_MAX).values():
            made.result(STALL_S_MAX)
    sender = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(topics):
        sender.produce(f"t{number}", b"x")
        sender.poll(0)
    sender.flush(STALL_S_MAX)
    for number in range(groups):
        member = Consumer({"bootstrap.servers": bootstrap, "group.id": f"g{number}"})
        places = [TopicPartition(f"t{(number + step) % topics}", 0, 0) for step in range(5)]
        member.commit(offsets=places, asynchronous=False)
        member.close()


async def measure(node: Node, count: int, seconds: float) -> tuple[Waits, Waits, dict[str, float]]:
    """Waits without and with consoles, and the seconds of each document."""
    without, beside = Waits(), Waits()
    for _ in range(ROUNDS):
        await asyncio.to_thread(produce, node.bootstrap, seconds / ROUNDS, without)
        async with consoles(node.http, count):
            await asyncio.to_thread(produce, node.bootstrap, seconds / ROUNDS, beside)
    taken: dict[str, float] = {}
    async with httpx.AsyncClient(timeout=STALL_S_MAX) as client, consoles(node.http, count):
        for document in DOCUMENTS:
            begun = time.perf_counter()
            (await client.get(f"{node.http}/v1/{document}")).raise_for_status()
            taken[document] = time.perf_counter() - begun
    return without, beside, taken


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the figures; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--consoles", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, Node(Path(folder) / "node") as node:
        fill(node.bootstrap, asked.topics, asked.groups)
        found = asyncio.run(measure(node, asked.consoles, asked.seconds))
    without, beside, taken = found
    ratio = beside.longest_ms / without.longest_ms
    slowest = max(taken, key=taken.__getitem__)
    print(f"{asked.topics:,} topics, {asked.groups:,} groups, {asked.consoles} consoles")
    print(f"without consoles  {without.told}")
    print(f"with consoles     {beside.told}")
    print(f"longest wait      {ratio:.2f} times that without (at most {RATIO_MAX:g})")
    print(f"slowest document  {slowest}, {1000 * taken[slowest]:.0f} ms (at most a second)")
    return int(ratio > RATIO_MAX or taken[slowest] > PAGE_S_MAX)


if __name__ == "__main__":
    sys.exit(main())
