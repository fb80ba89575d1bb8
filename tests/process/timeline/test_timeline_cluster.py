"""Timelines in a cluster of processes: three carriers on etcd and PostgreSQL, consumers that come,
go, die by kill -9, hang and wake; carriers killed and paused.

`CLUSTER_MESSAGES` sets how many messages are sent (default 900; the issue asks for 100,000).
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cluster_processes import ClusterProcesses, running_cluster
from tests.database_servers import PostgresServer
from tests.stopping import pause_process

import dovetail
from dovetail.sdk import Draft
from dovetail.timeline.config import TimelineConfig

MESSAGES = int(os.environ.get("CLUSTER_MESSAGES", "900"))
CONSUMERS = 5
DEADLINE_S = 120.0 + MESSAGES / 100


class Consumers:
    """Child processes and their books."""

    def __init__(self, folder: Path, addresses: list[str]) -> None:
        self._folder = folder
        self._addresses = addresses
        self._count = 0
        self.living: list[subprocess.Popen[bytes]] = []

    def come(self) -> None:
        self._count += 1
        # Each knows all carriers, and begins with another one.
        turn = self._count % len(self._addresses)
        addresses = ",".join(self._addresses[turn:] + self._addresses[:turn])
        path = self._folder / f"book-{self._count}"
        words = [addresses, "work", str(path), f"rack-{self._count % 2}"]
        command = [sys.executable, "-m", "tests.process.timeline.consumer_child", *words]
        with (self._folder / f"log-{self._count}").open("w") as log:
            self.living.append(subprocess.Popen(command, stdout=log, stderr=log))

    def kill(self, at: int) -> None:
        """kill -9; also a paused one."""
        child = self.living.pop(at)
        child.send_signal(signal.SIGKILL)
        child.wait()

    def end(self) -> None:
        while self.living:
            self.kill(0)

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for path in self._folder.glob("book-*"):
            for line in path.read_text().splitlines():
                # A killed one may have left half a line.
                if line.endswith("}"):
                    found.append(json.loads(line))
        return found


def check(lines: list[dict[str, Any]]) -> None:
    """Not early; attempts ascend; the next begins when the lease before it is over, or its work."""
    begun: dict[int, list[dict[str, Any]]] = defaultdict(list)
    ended = {(line["id"], line["attempt"]): line for line in lines if line["what"] == "end"}
    for line in lines:
        if line["what"] == "begin":
            assert line["now_ms"] >= line["start_ms"], f"early: {line}"
            begun[line["id"]].append(line)
    for identity, attempts in begun.items():
        attempts.sort(key=lambda line: line["attempt"])
        numbers = [line["attempt"] for line in attempts]
        assert len(set(numbers)) == len(numbers), f"message {identity}: attempts {numbers}"
        for before, after in pairwise(attempts):
            end = ended.get((identity, before["attempt"]))
            over_ms = min(before["until_ms"], end["now_ms"] if end else before["until_ms"])
            assert after["now_ms"] >= over_ms, f"{before} {after}"


@pytest.mark.timeout(600)
async def test_three_carriers_and_consumers_that_die_hang_and_wake(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """B1, B5, B7, B11, B13, B16, R2: each message handled, none while another's lease was live,
    none early; also when carriers are killed and paused."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed={seed}")
    rng = random.Random(seed)
    with running_cluster(
        tmp_path / "cluster",
        brokers=3,
        storage=1,
        network="proxies",
        log_ensemble="1",
        log_write_quorum="1",
        log_ack_quorum="1",
        timeline_store="postgres",
        timeline_dsn=postgres_server.create_database().dsn,
    ) as cluster:
        addresses = cluster.bootstrap.split(",")
        consumers = Consumers(tmp_path, addresses)
        try:
            async with asyncio.timeout(DEADLINE_S):
                sent = await _play(cluster, consumers, rng)
                while not sent <= {x["id"] for x in consumers.lines() if x["what"] == "end"}:
                    await asyncio.sleep(0.2)
        finally:
            consumers.end()
        assert len(sent) == MESSAGES
        check(consumers.lines())
        assert "met a defect" not in cluster.log()


async def _play(cluster: ClusterProcesses, consumers: Consumers, rng: random.Random) -> set[int]:
    sent: set[int] = set()
    async with dovetail.connect(cluster.bootstrap) as d:
        timeline = d.timeline("work")
        await timeline.create(TimelineConfig(window_ms=300, overtake_ms=200, attempts_max=100))
        for _ in range(CONSUMERS):
            consumers.come()

        async def produce() -> None:
            for _ in range(MESSAGES // 30):
                drafts = [Draft(b"x", delay=rng.choice([0, 0.2, 1, 3])) for _ in range(30)]
                sent.update(item.id for item in await timeline.schedule_many(drafts))
                await asyncio.sleep(0.1)

        async def trouble() -> None:
            await asyncio.sleep(1)
            consumers.kill(0)
            consumers.come()
            hanging = consumers.living[0]
            await asyncio.to_thread(pause_process, hanging.pid)
            await asyncio.to_thread(cluster.kill, "broker-2")
            await asyncio.sleep(1)
            await asyncio.to_thread(cluster.pause, "broker-3")
            await asyncio.sleep(3)
            hanging.send_signal(signal.SIGCONT)
            await asyncio.to_thread(cluster.resume, "broker-3")
            await asyncio.to_thread(cluster.restart, "broker-2")

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(trouble())
    return sent
