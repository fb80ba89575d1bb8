"""What timelines do for daily use, on three brokers of which two die: order keys, messages in hand,
receiving by HTTP, changes by filter, and a lead.
"""

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from tests.cluster_processes import ClusterProcesses, running_timelines
from tests.database_servers import PostgresServer

import dovetail
from dovetail.errors import DovetailError
from dovetail.timeline import Dovetail, Draft, Message, TimelineConfig, Where

DEADLINE_S = 300.0
KEYS, PER_KEY = 4, 25
IN_HAND_MAX = 3
BY_HTTP = 80
FILTERED = 1_500

Result = TypeVar("Result")


async def patiently(work: Callable[[], Awaitable[Result]]) -> Result:
    """For as long as brokers are away."""
    while True:
        try:
            return await work()
        except DovetailError as error:
            assert error.retriable, error


async def is_empty(d: Dovetail, timeline: str) -> bool:
    described = await patiently(d.timeline(timeline).describe)
    counts = described.counts
    return counts.waiting + counts.due + counts.leased == 0


class Ordered:
    """What consumers saw of order keys."""

    def __init__(self) -> None:
        self.in_hand: Counter[str] = Counter()
        self.most = 0
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.trouble: list[str] = []

    async def handle(self, message: Message) -> None:
        key, _, number = message.body.decode().partition(" ")
        self.in_hand[key] += 1
        self.most = max(self.most, self.in_hand.total())
        if self.in_hand[key] > 1:
            self.trouble.append(f"two of {key} at once")
        # One whose end was lost with its broker comes again.
        if int(number) not in self.seen[key]:
            self.seen[key].append(int(number))
        try:
            await asyncio.sleep(0.03)
        finally:
            self.in_hand[key] -= 1


async def ordered(d: Dovetail) -> None:
    """One at a time of a key, in order, and never more in hand than the timeline says."""
    found, timeline = Ordered(), d.timeline("ordered")
    await timeline.create(TimelineConfig(in_hand_max=IN_HAND_MAX, attempts_max=100))
    for _ in range(3):
        d.consumer("ordered", lease="5s", concurrency=4)(found.handle)
    for number in range(PER_KEY):
        drafts = [
            Draft(f"{key} {number}".encode(), delay=0.3, order_key=str(key)) for key in range(KEYS)
        ]
        await patiently(lambda drafts=drafts: timeline.schedule_many(drafts))  # type: ignore[misc]
        await asyncio.sleep(0.2)
    while not await is_empty(d, "ordered"):
        await asyncio.sleep(0.1)
    assert {key: seen == list(range(PER_KEY)) for key, seen in found.seen.items()} == {
        str(key): True for key in range(KEYS)
    }, found.seen
    assert not found.trouble
    assert found.most <= IN_HAND_MAX
    assert (await d.timeline("ordered").describe()).counts.dead == 0


async def by_http(d: Dovetail, cluster: ClusterProcesses) -> None:
    """Whichever broker answers: each message is finished, and none by two."""
    await d.timeline("http").create(TimelineConfig(attempts_max=100))
    await d.timeline("http").schedule_many([Draft(b"x") for _ in range(BY_HTTP)])
    done: Counter[int] = Counter()
    urls = itertools.cycle([f"http://127.0.0.1:{cluster.http_port(n)}" for n in cluster.brokers])
    async with httpx.AsyncClient(timeout=10) as client:
        while not await is_empty(d, "http"):
            path = f"{next(urls)}/v1/timelines/http"
            try:
                asked = {"limit": 5, "wait_ms": 200, "lease_ms": 4_000, "consumer": "any"}
                found = (await client.post(f"{path}/receive", json=asked)).json()["messages"]
                leases = [{"id": each["id"], "version": each["version"]} for each in found]
                if not leases:
                    continue
                answer = await client.post(f"{path}/done", json={"leases": leases})
                outcomes = answer.json()["outcomes"]
            except (httpx.HTTPError, ValueError, KeyError):
                await asyncio.sleep(0.1)
                continue
            done.update(
                each["id"] for each, said in zip(found, outcomes, strict=True) if said == "ok"
            )
            await asyncio.sleep(0.1)
    assert set(done.values()) == {1}


async def filtered(d: Dovetail) -> None:
    """Goes on from the last page when a broker dies; what does not fit stays."""
    timeline = d.timeline("filtered")
    await timeline.create()
    drafts = [Draft(b"", delay="1h", key=f"{'ab'[n % 2]}/{n}") for n in range(FILTERED)]
    await patiently(lambda: timeline.schedule_many(drafts))
    after = 0

    async def cancel() -> None:
        nonlocal after
        async for page in timeline.select("cancel", Where(key_prefix="a/"), after=after):
            after = page.after
            await asyncio.sleep(3)

    await patiently(cancel)
    left = await patiently(lambda: timeline.preview(Where()))
    rest = await patiently(lambda: timeline.preview(Where(key_prefix="b/")))
    assert (left.matched, rest.matched) == (FILTERED // 2, FILTERED // 2)


async def led(d: Dovetail, terms: list[int], stop: asyncio.Event) -> None:
    """Leads again and again; two never do at a time."""
    while not stop.is_set():
        try:
            async with d.lead("cluster", lease="3s") as lead:
                terms.append(lead.term)
                for _ in range(20):
                    if not lead.valid or stop.is_set():
                        break
                    assert terms[-1] == lead.term, "another one leads while this one surely does"
                    await asyncio.sleep(0.05)
        except DovetailError as error:
            assert error.retriable, error


async def kill(cluster: ClusterProcesses) -> None:
    """One after the other, each started again."""
    for name in cluster.brokers[:2]:
        await asyncio.sleep(2)
        await asyncio.to_thread(cluster.kill, name)
        await asyncio.sleep(2)
        await asyncio.to_thread(cluster.restart, name)


@pytest.mark.timeout(int(2 * DEADLINE_S))
async def test_daily_use_survives_the_death_of_brokers(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """B23, B24, B25, B27, S13, R2: all at once, while one broker dies and then another one."""
    dsn = postgres_server.create_database().dsn
    with running_timelines(tmp_path / "cluster", dsn) as cluster:
        terms: list[int] = []
        stop = asyncio.Event()
        async with (
            asyncio.timeout(DEADLINE_S),
            dovetail.connect(cluster.bootstrap) as d,
            dovetail.connect(cluster.bootstrap, client_id="other") as other,
            asyncio.TaskGroup() as group,
        ):
            leading = [group.create_task(led(each, terms, stop)) for each in (d, other)]
            work = [ordered(d), by_http(d, cluster), filtered(d), kill(cluster)]
            for each in [group.create_task(one) for one in work]:
                await each
            stop.set()
            for task in leading:
                await task
        assert len(terms) > 1
        assert terms == sorted(set(terms))
        assert "met a defect" not in cluster.log()
