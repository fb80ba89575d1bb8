"""Timelines in a cluster of processes: three brokers on etcd and PostgreSQL, ten consumers that
come, go, die by kill -9, hang beyond their leases and wake; brokers killed and paused.

`CLUSTER_MESSAGES` sets how many messages are sent (default 900; `make soak` sends 100,000).
"""

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from tests.cluster_processes import WAIT_SECONDS_MAX, ClusterProcesses, running_timelines
from tests.database_servers import PostgresServer
from tests.process.timeline.consumer_books import Consumers, check

import dovetail
from dovetail.errors import DovetailError
from dovetail.timeline import Dovetail, Draft, Timeline
from dovetail.timeline.config import TimelineConfig

MESSAGES = int(os.environ.get("CLUSTER_MESSAGES", "900"))
CONSUMERS = 10
#: Messages of one request, and the pause behind it.
BATCH = 30 if MESSAGES < 10_000 else 60
PAUSE_S = 0.1
DEADLINE_S = 120.0 + MESSAGES / 50
#: Longer than a lease of a consumer, and than that of a broker at etcd.
HANG_S = 4.0


@pytest.mark.timeout(int(2 * DEADLINE_S + 120))
async def test_three_brokers_and_consumers_that_die_hang_and_wake(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """B1, B2, B5, B6, B7, B11, B13, B16, R2: each message handled, none while another's lease was
    live, none early, attempts in order; also when brokers are killed and paused. In the end all
    of them are back on the list of brokers."""
    seed = int(os.environ.get("CLUSTER_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed={seed}")
    rng = random.Random(seed)
    dsn = postgres_server.create_database().dsn
    with running_timelines(tmp_path / "cluster", dsn) as cluster:
        consumers = Consumers(tmp_path, cluster.bootstrap.split(","), timeline="work", rng=rng)
        try:
            async with asyncio.timeout(DEADLINE_S), dovetail.connect(cluster.bootstrap) as d:
                sent = await _play(d, cluster, consumers)
                # A key that was sent again after its message was done makes another one.
                assert len(sent) >= MESSAGES
                while not sent <= consumers.handled():
                    await asyncio.sleep(0.2)
                await _until_empty(d)
                await _until_listed(d, cluster)
        finally:
            consumers.end()
        print(check(consumers))
        assert "met a defect" not in cluster.log()


async def _play(d: Dovetail, cluster: ClusterProcesses, consumers: Consumers) -> set[int]:
    sent: set[int] = set()
    timeline = d.timeline("work")
    await timeline.create(TimelineConfig(window_ms=300, overtake_ms=200, attempts_max=100))
    for _ in range(CONSUMERS):
        consumers.come()
    producing = asyncio.Event()

    async def produce() -> None:
        for start in range(0, MESSAGES, BATCH):
            drafts = [
                Draft(b"x", delay=consumers.rng.choice([0, 0.2, 1, 3]), key=str(number))
                for number in range(start, min(start + BATCH, MESSAGES))
            ]
            sent.update(await _schedule(timeline, drafts))
            await asyncio.sleep(PAUSE_S)
        producing.set()

    async def trouble() -> None:
        turn = 0
        while not len(consumers.handled()) > MESSAGES // 20:
            await asyncio.sleep(0.05)
        while not (turn and producing.is_set()):
            await _trouble_once(cluster, consumers, broker=f"broker-{turn % 3 + 1}", turn=turn)
            turn += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(trouble())
    return sent


async def _schedule(timeline: Timeline, drafts: list[Draft]) -> set[int]:
    """For as long as it takes: on a busy machine, a broker may be away for a minute."""
    while True:
        try:
            return {item.id for item in await timeline.schedule_many(drafts)}
        except DovetailError as error:
            assert error.retriable, error


async def _trouble_once(
    cluster: ClusterProcesses, consumers: Consumers, *, broker: str, turn: int
) -> None:
    """One of everything: a death, a return under the same id, a goodbye, a hang; and a broker that
    dies while another one stands still."""
    other = f"broker-{(turn + 1) % 3 + 1}"
    dead = await asyncio.to_thread(consumers.kill)
    await asyncio.to_thread(consumers.kill)
    hanging = await asyncio.to_thread(consumers.hang)
    await asyncio.to_thread(cluster.kill, broker)
    consumers.come()
    consumers.come(dead)
    await asyncio.to_thread(consumers.go)
    consumers.come()
    await asyncio.to_thread(cluster.pause, other)
    await asyncio.sleep(HANG_S)
    consumers.wake(hanging)
    await asyncio.to_thread(cluster.resume, other)
    await asyncio.to_thread(_supervise, cluster, broker)


def _supervise(cluster: ClusterProcesses, broker: str) -> None:
    """Starts it again, as a supervisor does: one that finds no etcd at its start ends by itself."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            cluster.restart(broker)
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            cluster.kill(broker)


async def _until_empty(d: Dovetail) -> None:
    """What was handled and whose deletion was lost with a broker comes once more."""
    while True:
        counts = (await d.timeline("work").describe()).counts
        if (counts.waiting, counts.due, counts.leased) == (0, 0, 0):
            assert counts.dead == 0
            return
        await asyncio.sleep(0.1)


async def _until_listed(d: Dovetail, cluster: ClusterProcesses) -> None:
    """One that stood still longer than its lease, too."""
    while {broker.name for broker in await d.brokers("work")} != set(cluster.brokers):
        await asyncio.sleep(0.1)
