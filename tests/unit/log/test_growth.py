"""F60, F6b: what is done for one topic or partition does not grow with how many there are.

Counted are the lines of this program that the event loop's thread runs, which a busy machine does
not change. Four times as many may cost four times as much, and little more.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tests.unit.log.conftest import Bench

import dovetail
from dovetail.errors import NotOwner
from dovetail.log.partition import Partition

_FEW, _MANY = 40, 160
#: Beside the number itself: room for groups that fall otherwise, and for the start of a page.
_MORE = 1.3
_OURS = str(Path(dovetail.__file__).parent)


async def _lines(work: Callable[[], Awaitable[object]]) -> int:
    """How many lines of ours `work` runs, and what it sets off."""
    count = 0

    def within(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return within

    def called(frame: FrameType, _: str, __: Any) -> Any:
        return within if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    sys.settrace(called)
    try:
        await work()
    finally:
        sys.settrace(before)
    return count


async def _grown(bench: Bench, topics: int) -> None:
    done = len(bench.log.topics())
    for at in range(done, topics):
        await bench.log.create_topic(f"t{at}", partitions=1)


def _served(bench: Bench, count: int) -> bool:
    return len(bench.log.partitions()) == count


async def test_a_start_is_linear_in_partitions(bench: Bench) -> None:
    """F60: after a crash, with a record in each of them."""
    counts = []
    for partitions in (_FEW, _MANY):
        name = f"t{partitions}"
        await bench.log.create_topic(name, partitions=partitions)
        for number in range(partitions):
            await bench.send(bench.log.partition(name, number), b"x")
        await bench.stop(crash=True)
        counts.append(await _lines(bench.start))
        assert len(bench.log.partitions()) == sum((_FEW, _MANY)[: len(counts)])
    assert counts[1] < counts[0] * (_FEW + _MANY) / _FEW * _MORE


async def test_a_topic_costs_the_same_among_few_and_among_many(bench: Bench) -> None:
    """F6b: to create one, and to delete one."""
    created, deleted = [], []
    for topics in (_FEW, _MANY):
        await _grown(bench, topics)
        created.append(await _lines(lambda: bench.log.create_topic("more", partitions=1)))

        async def delete() -> None:
            await bench.log.delete_topic("more")
            await bench.log.deletions_done()

        deleted.append(await _lines(delete))
    assert created[1] < created[0] * _MORE
    assert deleted[1] < deleted[0] * _MORE


async def test_losing_everything_is_linear(bench: Bench) -> None:
    """F60: a broker whose lease has ended loses all of its partitions at once."""
    counts = []
    for topics in (_FEW, _MANY):
        await _grown(bench, topics)
        partitions = bench.log.partitions()
        assert len(partitions) == topics

        async def lose(lost: list[Partition]) -> None:
            for partition in lost:
                bench.log.owned.lost(partition, NotOwner("another's"))
            await asyncio.sleep(0)

        counts.append(await _lines(partial(lose, partitions)))
        back = partial(_served, bench, topics)
        assert await bench.log.owned.settled(back, timeout_ms=30_000)
    assert counts[1] < counts[0] * _MANY / _FEW * _MORE
