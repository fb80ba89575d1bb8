"""What timelines do for daily use, on three brokers of which two die: order keys, messages in hand,
receiving by HTTP, changes by filter, a lead; outcomes of handlers, fairness, a pause, keys, a pace.
"""

import asyncio
import contextlib
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from tests.cluster_processes import ClusterProcesses, running_timelines
from tests.database_servers import PostgresServer

import dovetail
from dovetail.errors import DovetailError, NotFound
from dovetail.timeline import Dovetail, Draft, Message, Reject, Retry, TimelineConfig, Where

DEADLINE_S = 300.0
KEYS, PER_KEY = 4, 25
IN_HAND_MAX = 3
BY_HTTP = 80
FILTERED = 1_500
OF_EACH_FATE = 6
SHORT = 30
PACED, PACE_MAX = 20, 10

#: Those that all work needs, made before brokers die.
TIMELINES = {
    "ordered": TimelineConfig(in_hand_max=IN_HAND_MAX, attempts_max=100),
    "http": TimelineConfig(attempts_max=100),
    "filtered": TimelineConfig(),
    "letters": TimelineConfig(),
    "fates": TimelineConfig(attempts_max=100, backoff_ms=50, dead_to="timeline:letters"),
    "shared": TimelineConfig(attempts_max=100),
    "operated": TimelineConfig(attempts_max=100, pace_max=PACE_MAX),
}

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


class Fates:
    """Handlers that do with a message what its body says."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self.done: set[bytes] = set()
        self.over = threading.Event()

    def decide(self, message: Message) -> bool:
        """Whether to hang now. Raises what the handler is to raise."""
        fate, again = message.body.split()[0], message.body in self.seen
        self.seen.add(message.body)
        if fate == b"again" and not again:
            raise Retry("200ms")
        if fate == b"never":
            raise Reject("no such customer")
        if fate == b"last":
            raise ValueError("cannot be done")
        return fate == b"hang" and not again

    async def one(self, message: Message) -> None:
        if self.decide(message):
            await asyncio.Event().wait()
        self.done.add(message.body)

    def several(self, messages: list[Message]) -> list[Exception | None]:
        """A plain function, in a thread."""
        outcomes: list[Exception | None] = []
        for message in messages:
            try:
                if self.decide(message):
                    self.over.wait(DEADLINE_S)
                    return [None] * len(messages)  # Its time was over long ago.
                self.done.add(message.body)
                outcomes.append(None)
            except (Retry, Reject, ValueError) as error:
                outcomes.append(error)
        return outcomes


async def handled(d: Dovetail, other: Dovetail) -> None:
    """What hangs goes on, what is rejected is a dead letter, and each of those arrives once."""
    fates, timeline, letters = Fates(), d.timeline("fates"), d.timeline("letters")
    d.consumer("fates", lease="5s", concurrency=4, timeout="1s")(fates.one)
    other.consumer("fates", lease="5s", concurrency=2, batch=3, timeout="1s")(fates.several)
    expected: dict[str, set[bytes]] = defaultdict(set)
    for number in range(OF_EACH_FATE):
        for fate in ("done", "hang", "again", "never", "last"):
            body = f"{fate} {number}".encode()
            draft = Draft(body, delay=f"{number}s", attempts=1 if fate == "last" else None)
            await patiently(lambda draft=draft: timeline.schedule_many([draft]))  # type: ignore[misc]
            expected[fate].add(body)
    dead = expected["never"] | expected["last"]
    try:
        while not await is_empty(d, "fates"):
            await asyncio.sleep(0.1)
        while (await patiently(letters.describe)).counts.due < len(dead):
            await asyncio.sleep(0.1)
    finally:
        fates.over.set()
    assert fates.done == expected["done"] | expected["hang"] | expected["again"]
    found = await patiently(lambda: letters.peek(1_000))
    assert Counter(each.body for each in found) == Counter(dead)


async def shared(d: Dovetail, other: Dovetail) -> None:
    """Nothing waits for a long job to end, wherever that runs: it ends when all else is done."""
    timeline, short, all_done = d.timeline("shared"), set[bytes](), asyncio.Event()
    long = asyncio.Semaphore(0)

    async def handle(message: Message) -> None:
        if message.body == b"long":
            long.release()
            await all_done.wait()
            return
        short.add(message.body)
        if len(short) == SHORT:
            all_done.set()

    for each in (d, d, other, other):
        each.consumer("shared", lease="5s", concurrency=1)(handle)
    await patiently(lambda: timeline.schedule_many([Draft(b"long"), Draft(b"long")]))
    for _ in range(2):
        await long.acquire()
    drafts = [Draft(b"%d" % number, delay=0.2 * number) for number in range(SHORT)]
    await patiently(lambda: timeline.schedule_many(drafts))
    await all_done.wait()
    while not await is_empty(d, "shared"):
        await asyncio.sleep(0.1)


async def paused_everywhere(cluster: ClusterProcesses, timeline: str) -> None:
    """Returns when each broker has said that the timeline is paused; also one that is away now."""
    async with httpx.AsyncClient(timeout=10) as client:
        for name in cluster.brokers:
            url = f"http://127.0.0.1:{cluster.http_port(name)}/v1/timelines/{timeline}"
            while True:
                try:
                    if (await client.get(url)).json()["config"]["paused"]:
                        break
                except (httpx.HTTPError, ValueError, KeyError):
                    pass
                await asyncio.sleep(0.1)


async def operated(d: Dovetail, other: Dovetail, cluster: ClusterProcesses) -> None:
    """A pause, a schedule that is put again and again, keys that replace, a pace, and a purge."""
    timeline, seen = d.timeline("operated"), list[bytes]()

    async def handle(message: Message) -> None:
        seen.append(message.body)

    other.consumer("operated", lease="5s")(handle)
    await patiently(timeline.pause)
    await paused_everywhere(cluster, "operated")
    drafts = [Draft(b"%d" % number) for number in range(PACED)]
    await patiently(lambda: timeline.schedule_many([*drafts, Draft(b"too late", ttl="100ms")]))
    fires_ms = set()
    for number, each in enumerate((d, other, d, other)):
        putting = each.timeline("operated")
        body = b"version %d" % number
        await patiently(
            lambda put=putting, body=body: put.schedule(body, key="k", on_taken="replace")  # type: ignore[misc]
        )
        await patiently(lambda put=putting: put.put_schedule("hourly", b"tick", every="1h"))  # type: ignore[misc]
        (schedule,) = await patiently(timeline.schedules)
        fires_ms.add(schedule.next_ms)
        await asyncio.sleep(1)
    assert len(fires_ms) == 1
    assert not seen

    began_s = asyncio.get_running_loop().time()
    await patiently(timeline.resume)
    while not await is_empty(d, "operated"):
        await asyncio.sleep(0.1)
    took_s = asyncio.get_running_loop().time() - began_s
    assert set(seen) == {b"version 3", *(draft.body for draft in drafts)}
    assert took_s > (PACED - PACE_MAX) / PACE_MAX
    (late,) = await patiently(timeline.dead)
    assert late.body == b"too late"
    await patiently(lambda: timeline.schedule_many([Draft(b"", delay="1h")] * 50))
    await patiently(timeline.purge)
    assert await is_empty(d, "operated")
    with contextlib.suppress(NotFound):  # The answer to the first attempt was lost.
        await patiently(lambda: timeline.drop_schedule("hourly"))
    assert await patiently(timeline.schedules) == []


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
    """B21, B22, B23, B24, B25, B26, B27, S13, R2: all at once, while one broker dies and then
    another one."""
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
            for name, config in TIMELINES.items():
                await d.timeline(name).create(config)
            leading = [group.create_task(led(each, terms, stop)) for each in (d, other)]
            work = [ordered(d), by_http(d, cluster), filtered(d), kill(cluster)]
            work += [handled(d, other), shared(d, other), operated(d, other, cluster)]
            for each in [group.create_task(one) for one in work]:
                await each
            stop.set()
            for task in leading:
                await task
        assert len(terms) > 1
        assert terms == sorted(set(terms))
        assert "met a defect" not in cluster.log()
