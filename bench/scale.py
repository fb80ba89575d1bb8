"""What grows with partitions, topics, groups, clients and timelines, at three sizes each.

    python -m bench.scale [--quick] [--only partitions] [--sizes 1000 3000 10000] [--folder FOLDER]

Counted is the processor time of one node (`dovetail up`), which other work on the machine changes
little, and its memory. "next" is what one more costs when there are so many. Nothing is compared
with a rule: the growth from column to column is the finding, and docs/scale.md holds it.
"""

import argparse
import asyncio
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import uvloop
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.cases.clients import CONNECTIONS_MAX, idle_memory_mb, raise_files
from bench.client import STALL_S_MAX
from bench.node import Node
from dovetail.timeline.client import connect

#: One column each.
SIZES: Mapping[str, Sequence[int]] = {
    "partitions": (1000, 3000, 10_000),
    "topics": (300, 1000, 3000),
    "groups": (100, 300, 1000),
    "clients": (1000, 3000, 10_000),
    "timelines": (10, 30, 100),
}
QUICK: Mapping[str, Sequence[int]] = dict.fromkeys(SIZES, (10, 20, 40))
#: Partitions of one topic, where their number is the question.
_PER_TOPIC = 1000
#: Topics in one request.
_TOGETHER = 50
#: So many of the last ones are "next".
_NEXT = 10

#: A node at rest uses less than this part of a core for so long.
_AT_REST, _REST_S = 0.05, 1.0

Figures = dict[str, float]


class _Spent:
    """Processor seconds of a node since this was made."""

    def __init__(self, node: Node) -> None:
        self._node, self._before = node, node.cpu_s()

    @property
    def seconds(self) -> float:
        return self._node.cpu_s() - self._before


def _admin(node: Node) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})


def _create(admin: AdminClient, names: Sequence[str], partitions: int) -> None:
    for at in range(0, len(names), _TOGETHER):
        asked = [NewTopic(name, partitions, -1) for name in names[at : at + _TOGETHER]]
        for made in admin.create_topics(asked, request_timeout=STALL_S_MAX).values():
            made.result(STALL_S_MAX)


def _restarted(node: Node, found: Figures) -> None:
    """Start after kill -9; then Metadata about everything and the page of metrics, twice each."""
    node.kill()
    node.start()
    found["start, s of processor"] = node.cpu_s()
    found["memory then, MB"] = node.memory_mb()
    asks: dict[str, Callable[[], object]] = {
        "Metadata": lambda: _admin(node).list_topics(timeout=STALL_S_MAX),
        "metrics page": lambda: urllib.request.urlopen(f"{node.http}/metrics").read(),
    }
    _await_rest(node)
    for what, ask in asks.items():
        for when, times in (("first", 1), ("again", _NEXT)):
            spent = _Spent(node)
            for _ in range(times):
                ask()
            found[f"{what}, {when}, ms of processor"] = 1000 * spent.seconds / times


def _await_rest(node: Node) -> None:
    """Returns when what a start leaves to do in the background is done."""
    deadline = time.monotonic() + STALL_S_MAX
    while time.monotonic() < deadline:
        spent = _Spent(node)
        time.sleep(_REST_S)
        if spent.seconds < _REST_S * _AT_REST:
            return


def partitions(size: int, folder: Path) -> Figures:
    found: Figures = {}
    with Node(folder) as node:
        spent = _Spent(node)
        admin, (whole, rest) = _admin(node), divmod(size, _PER_TOPIC)
        _create(admin, [f"t{at}" for at in range(whole)], _PER_TOPIC)
        if rest:
            _create(admin, ["rest"], rest)
        found["creation, ms of processor each"] = 1000 * spent.seconds / size
        _touch(node, [(f"t{at}", _PER_TOPIC) for at in range(whole)] + [("rest", rest)])
        _restarted(node, found)
    return found


def _touch(node: Node, topics: Sequence[tuple[str, int]]) -> None:
    """A record in each partition, so that each has a ledger with something in it."""
    sender = Producer({"bootstrap.servers": node.bootstrap, "acks": "all", "log_level": 0})
    for topic, count in topics:
        for number in range(count):
            sender.produce(topic, b"x", partition=number)
        sender.poll(0)
    if sender.flush(STALL_S_MAX):
        raise RuntimeError("records without an answer")


def topics(size: int, folder: Path) -> Figures:
    found: Figures = {}
    with Node(folder) as node:
        names = [f"t{at}" for at in range(size)]
        admin = _admin(node)
        _create(admin, names[:-_NEXT], 1)
        spent = _Spent(node)
        for name in names[-_NEXT:]:
            _create(admin, [name], 1)
        found["creation of the next, ms of processor"] = 1000 * spent.seconds / _NEXT
        _restarted(node, found)
        spent, admin = _Spent(node), _admin(node)
        for gone in admin.delete_topics(names[:_NEXT], request_timeout=STALL_S_MAX).values():
            gone.result(STALL_S_MAX)
        found["deletion of one, ms of processor"] = 1000 * spent.seconds / _NEXT
    return found


def groups(size: int, folder: Path) -> Figures:
    found: Figures = {}
    with Node(folder) as node:
        admin = _admin(node)
        _create(admin, ["read"], 1)
        spent = _Spent(node)
        for at in range(size):
            offsets = [ConsumerGroupTopicPartitions(f"g{at}", [TopicPartition("read", 0, 0)])]
            for committed in admin.alter_consumer_group_offsets(offsets).values():
                committed.result(STALL_S_MAX)
        found["first commit of each, ms of processor"] = 1000 * spent.seconds / size
        _restarted(node, found)
    return found


def clients(size: int, folder: Path) -> Figures:
    raise_files(2 * size + 1000)
    with Node(folder, {"DOVETAIL_KAFKA_CONNECTIONS_MAX": CONNECTIONS_MAX}) as node:
        spent = _Spent(node)
        more_mb = uvloop.run(idle_memory_mb(node, size))
        return {
            "idle connection, kB each": 1000 * more_mb / size,
            "connect and one request, ms of processor": 1000 * spent.seconds / size,
        }


def timelines(size: int, folder: Path) -> Figures:
    found: Figures = {}
    with Node(folder) as node:
        spent = _Spent(node)
        asyncio.run(_create_timelines(node.bootstrap, size))
        found["creation, ms of processor each"] = 1000 * spent.seconds / size
        node.kill()
        node.start()
        found["start, s of processor"] = node.cpu_s()
        found["memory then, MB"] = node.memory_mb()
    return found


async def _create_timelines(bootstrap: str, count: int) -> None:
    async with connect(bootstrap) as node:
        for at in range(count):
            await node.timeline(f"line{at}").create()


CASES: Mapping[str, Callable[[int, Path], Figures]] = {
    "partitions": partitions,
    "topics": topics,
    "groups": groups,
    "clients": clients,
    "timelines": timelines,
}


def _print(name: str, sizes: Sequence[int], columns: Sequence[Figures]) -> None:
    print(f"\n| {name} | " + " | ".join(f"{size:,}" for size in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for what in columns[0]:
        print(f"| {what} | " + " | ".join(f"{found[what]:.3g}" for found in columns) + " |")
    sys.stdout.flush()


def main() -> int:
    """Measures, prints tables of Markdown."""
    parser = argparse.ArgumentParser(prog="bench.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small: does it run at all")
    parser.add_argument("--only", choices=CASES, action="append", help="this one; may be repeated")
    parser.add_argument("--sizes", type=int, nargs="+", help="other sizes, for each of them")
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    for name in given.only or CASES:
        sizes = given.sizes or (QUICK if given.quick else SIZES)[name]
        columns = []
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="dovetail-scale-", dir=given.folder) as folder:
                columns.append(CASES[name](size, Path(folder) / "node"))
        _print(name, sizes, columns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
