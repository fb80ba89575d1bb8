"""Faults of brokers in a cluster of processes: a clock that is set wrong (libfaketime), and the
death of the master of a deletion.

`DELETED_MESSAGES` sets how many messages the deleted timeline has (default 20,000; `make soak`
deletes a million).
"""

import asyncio
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster_processes import ClusterProcesses, running_cluster
from tests.database_servers import PostgresServer

import dovetail
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import TopicExists, TopicUnknown, Unavailable
from dovetail.timeline import Message, frames
from dovetail.timeline.client.link import NetworkLink
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.message import NewMessage

DELETED = int(os.environ.get("DELETED_MESSAGES", "20000"))
DEADLINE_S = 60.0
LEASE_S = 2
#: Where Debian's package faketime is, installed or unpacked by `scripts/system-packages`.
ROOTS = (Path("/usr/lib"), Path(".venv/system/usr/lib").absolute())


@pytest.fixture(scope="module")
def dsn(postgres_server: PostgresServer) -> str:
    return postgres_server.create_database().dsn


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer, dsn: str
) -> Iterator[ClusterProcesses]:
    with running_cluster(
        tmp_path_factory.mktemp("faults"),
        brokers=3,
        storage=1,
        network="proxies",
        log_ensemble="1",
        log_write_quorum="1",
        log_ack_quorum="1",
        coordination_lease_ms=f"{LEASE_S}s",
        timeline_store="postgres",
        timeline_dsn=dsn,
    ) as running:
        yield running


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


def address_of(cluster: ClusterProcesses, name: str) -> str:
    return cluster.bootstrap.split(",")[cluster.brokers.index(name)]


@contextmanager
def faked_clock(path: Path) -> Iterator[None]:
    """Processes that are started inside have a wall clock that is shifted by what the file says."""
    found = [each for root in ROOTS for each in root.glob("*/faketime/libfaketime.so.1")]
    if not found:
        if os.environ.get("CI") == "true":
            pytest.fail("no libfaketime; install Debian's package faketime")
        pytest.skip("no libfaketime; install Debian's package faketime")
    set_clock(path, 0)
    changes = {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME_TIMESTAMP_FILE": str(path),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            patch.setenv(name, value)
        yield


def set_clock(path: Path, shift_s: int) -> None:
    """In one step, so that nobody reads half of it."""
    other = path.with_suffix(".new")
    other.write_text(f"{shift_s:+d}s\n")
    other.replace(path)


@asynccontextmanager
async def raw_consumer(address: str, timeline: str) -> Any:
    """A consumer that asks and does not report, so nobody tells it to go elsewhere."""
    link = NetworkLink(address, client_id="raw")

    async def take(wait_ms: int) -> list[Any]:
        request = frames.Consume(opened.session, 10, wait_ms)
        return (await link.ask(request, frames.Pushed, changes=False)).messages

    try:
        request = frames.Open(timeline, "raw", "", 5_000)
        opened = await link.ask(request, frames.Opened, changes=False)
        yield take
    finally:
        await link.close()


@pytest.mark.timeout(300)
async def test_a_broker_whose_clock_is_set_wrong_stops_pushing_and_says_so(
    cluster: ClusterProcesses, tmp_path: Path
) -> None:
    """B15, B2, B7, R2: 30 s ahead: nothing is pushed, nothing early, dated writes are refused; said
    in `/readyz`, the metrics and every broker's list; clients go elsewhere; it ends by itself."""
    clock = tmp_path / "clock"
    cluster.kill("broker-3")
    with faked_clock(clock):
        await asyncio.to_thread(cluster.restart, "broker-3")
    wrong = address_of(cluster, "broker-3")
    early: list[float] = []
    handled: list[int] = []

    async def handle(message: Message) -> None:
        handled.append(message.id)
        if time.time() * 1000 < message.due_ms:
            early.append(message.due_ms - time.time() * 1000)

    async with (
        dovetail.connect(address_of(cluster, "broker-1")) as good,
        dovetail.connect(wrong) as bad,
        asyncio.timeout(3 * DEADLINE_S),
    ):
        await good.timeline("drift").create(TimelineConfig(window_ms=100))
        await good.timeline("alone").create(TimelineConfig(window_ms=100))
        await until(lambda: "drift" in scrape(cluster, "broker-3", "timeline_channels"))
        bad.consumer("drift", lease="20s", id="mover")(handle)
        now = await good.timeline("drift").schedule(b"now")
        await until(lambda: handled == [now.id])
        # By the wrong clock these are due at once.
        for seconds in (4, 7, 25):
            await good.timeline("drift").schedule(b"later", delay=seconds)
            await good.timeline("alone").schedule(b"later", delay=seconds)
        set_clock(clock, 30)
        await until(lambda: not cluster.ready("broker-3")[0])
        async with raw_consumer(wrong, "alone") as take:
            assert await take(1_000) == []
            assert any("clock" in reason for reason in cluster.ready("broker-3")[1])
            # With a delay it would compare clocks first, and be told of a better broker.
            with pytest.raises(Unavailable, match="writes no times"):
                await bad.timeline("alone").move(1, at=time.time() + 60)
            await until(lambda: _drift_told(cluster))
            async with asyncio.timeout(DEADLINE_S):
                while not await _listed(good, "broker-3", "degraded", "ahead of storage"):
                    await asyncio.sleep(0.05)
                while len(handled) < 3:
                    await asyncio.sleep(0.05)
            assert not early, f"handled {early} ms early"
            set_clock(clock, 0)
            await until(lambda: cluster.ready("broker-3")[0])
            assert await take(10_000)
        async with asyncio.timeout(DEADLINE_S):
            while not await _listed(good, "broker-3", "healthy", ""):
                await asyncio.sleep(0.05)
    assert not early, f"handled {early} ms early"
    assert '"pushing": false' in cluster.log("broker-3")


def scrape(cluster: ClusterProcesses, name: str, series: str) -> str:
    """The lines of a series."""
    port = cluster._listeners[name][1].listen_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return "\n".join(line for line in text.splitlines() if line.startswith(f"dovetail_{series}"))


def _drift_told(cluster: ClusterProcesses) -> bool:
    drifts = scrape(cluster, "broker-3", "timeline_clock_drifts{")
    return (
        'timeline_degradations{type="drift"} 1.0' in scrape(cluster, "broker-3", "timeline_degr")
        and 'target="storage"} 1.0' in drifts
        and 'target="sync"} 1.0' in drifts
        and 'target="broker"} 2.0' in drifts
        and 'target="broker"} 1.0' in scrape(cluster, "broker-1", "timeline_clock_drifts{")
    )


async def _listed(d: dovetail.timeline.Dovetail, name: str, condition: str, reason: str) -> bool:
    found = {broker.name: broker for broker in await d.brokers()}.get(name)
    return (
        found is not None
        and found.condition == condition
        and any(reason in text for text in [*found.reasons, ""])
        and found.latency_ms is not None
    )


@pytest.mark.timeout(int(300 + DELETED / 1_000))
async def test_a_deletion_goes_on_when_its_master_dies_half_way(
    cluster: ClusterProcesses, dsn: str
) -> None:
    """B4: the command answers before anything is removed, clients are told, the name is refused
    while the storage is being removed, and works again after that, by a successor of the master."""
    import asyncpg

    first, second = address_of(cluster, "broker-1"), address_of(cluster, "broker-2")
    async with dovetail.connect(second) as d, dovetail.connect(first) as doomed:
        timeline = d.timeline("large")
        await timeline.create()
        await _fill(timeline, DELETED)
        assert (await timeline.describe()).counts.waiting == DELETED
        d.consumer("large")(lambda message: None)
        told = asyncio.create_task(d.run())
        async with _locked(dsn, asyncpg) as release:
            await doomed.timeline("large").delete()
            with pytest.raises(TopicUnknown):
                async with asyncio.timeout(DEADLINE_S):
                    await told
            with pytest.raises(TopicUnknown):
                await timeline.schedule(b"x")
            # The tables are still read by somebody, so the master waits for them, and dies.
            assert await _master_of(cluster, "large") == "broker-1"
            await asyncio.to_thread(cluster.kill, "broker-1")
            with pytest.raises(TopicExists, match="still being deleted"):
                await timeline.create()
            await release()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await timeline.create()
                    break
                except TopicExists:
                    await asyncio.sleep(0.1)
        assert (await timeline.describe()).counts.waiting == 0
    await asyncio.to_thread(cluster.restart, "broker-1")


async def _fill(timeline: dovetail.timeline.Timeline, count: int) -> None:
    later_ms = int(time.time() * 1000) + 10**8
    for start in range(0, count, 10_000):
        sizes = [1_000] * (min(10_000, count - start) // 1_000)
        await asyncio.gather(
            *(timeline.insert([NewMessage(later_ms, b"x" * 100)] * size) for size in sizes)
        )


@asynccontextmanager
async def _locked(dsn: str, asyncpg: Any) -> Any:
    """Somebody reads the largest timeline's tables, as a backup does."""
    connection = await asyncpg.connect(dsn)
    try:
        table = await connection.fetchval(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'dovetail' "
            "AND tablename ~ '^t[0-9]+_messages$' "
            "ORDER BY pg_total_relation_size('dovetail.' || tablename) DESC LIMIT 1"
        )
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"LOCK TABLE dovetail.{table} IN ACCESS SHARE MODE")
        yield transaction.rollback
    finally:
        await connection.close()


async def _master_of(cluster: ClusterProcesses, timeline: str) -> str:
    endpoints = tuple(member.endpoint for member in cluster.etcd.values())
    settings = EtcdSettings(endpoints, attempt_timeout_ms=10_000, request_timeout_ms=30_000)
    async with (
        await EtcdCoordinator.open(settings) as coordinator,
        asyncio.timeout(DEADLINE_S),
    ):
        while True:
            found = await coordinator.get(f"/timelines/masters/{timeline}")
            if found is not None:
                return found.value.decode()
            await asyncio.sleep(0.05)
