"""Compaction: how much of a log one core takes, and what producers feel of it meanwhile.

The rate is measured in this process, without a limit on bytes: a partition of 100-byte records with
10 % distinct keys, in closed ledgers on a real disk, is compacted once. What counts is the log's
size over the processor time of all threads: reading twice, the map of keys, what is left written
and synced.

Producers are measured on a node with its default settings, first alone and then while it compacts
another topic: p99 from `produce` to the consumer at 1000 messages a second, as case d has it.
"""

import asyncio
import random
import time
import urllib.request
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench import client
from bench.cases.latency import latencies
from bench.node import Node
from bench.run import Run, percentile
from bench.table import Line
from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.log.compaction.compactor import CompactionSettings, Compactor
from dovetail.log.partition import Partition
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.record_batch import encode_batch, read_header
from dovetail.storage import (
    Ensembles,
    LedgerStore,
    LocalStorageNode,
    OneNode,
    RealDisk,
    StoreSettings,
)

_CASE = "f compaction"
_RATE_MIN = 40.0
_TIMES_P99 = 2.0
_BATCH_RECORDS = 1000
_VALUE = b"x" * 84
_WARM = 500

_DEFAULTS = TopicConfig(
    retention_ms=-1,
    retention_bytes=-1,
    ledger_bytes_max=64 << 20,
    ledger_age_ms_max=1 << 40,
    batch_bytes_max=1 << 20,
)


def measure(run: Run) -> list[Line]:
    records = run.sized(3_000_000, quick=300_000)
    rate, left = 0.0, 0.0
    for at in range(run.rounds):
        run.step(f"{records:,} records of 100 bytes are compacted")
        rate, left = max((rate, left), asyncio.run(_compact(run.folder / f"log-{at}", records)))

    alone = beside = float("inf")
    for at in range(run.rounds):
        p99 = _producers(run, run.folder / f"node-{at}", records)
        if p99[1] / p99[0] < beside / alone or beside == float("inf"):
            alone, beside = p99
    note = f"{left:.0%} of the bytes are left"
    return [
        Line(_CASE, "input a core", rate, "MB/s", "floor", _RATE_MIN, ratio_min=1.0, note=note),
        Line(
            _CASE,
            "p99 at 1000 messages/s meanwhile",
            beside,
            "ms",
            "without compaction",
            alone,
            ratio_max=_TIMES_P99,
        ),
    ]


async def _compact(folder: Path, records: int) -> tuple[float, float]:
    """Megabytes of input for each second of a processor, and the part that is left."""
    folder.mkdir()
    clock = SystemClock()
    coordinator = await EmbeddedCoordinator.open(folder / "coordination.sqlite", clock=clock)
    store = LedgerStore(RealDisk(folder / "ledgers"), StoreSettings(), random.Random(1))
    storage = LocalStorageNode(store)
    log = Log(
        node_id=1,
        coordinator=coordinator,
        ensembles=Ensembles(OneNode(1, storage)),
        clock=clock,
        defaults=_DEFAULTS,
        tail_bytes_max=0,
    )
    await log.load()
    await log.start()
    await log.create_topic("t", partitions=1, config={"cleanup.policy": "compact"})
    partition = log.partition("t", 0)
    await _fill(partition, records)

    compactor = Compactor(clock=clock, settings=CompactionSettings(bytes_per_second=1 << 40))
    survey = await compactor.survey(partition)
    before = partition.record.closed_bytes
    began_s = time.process_time()
    await compactor.compact(partition, survey)
    spent_s = time.process_time() - began_s
    left = partition.record.closed_bytes / before

    await log.close()
    await storage.close()
    await coordinator.close()
    await compactor.close()
    return survey.dirty_bytes / 1e6 / spent_s, left


async def _fill(partition: Partition, records: int) -> None:
    rng, sent = random.Random(1), []
    for at in range(0, records, _BATCH_RECORDS):
        count = min(_BATCH_RECORDS, records - at)
        pairs = [(b"%08d" % rng.randrange(records // 10), _VALUE) for _ in range(count)]
        batch = memoryview(encode_batch(pairs, timestamp=at))
        sent.append(partition.append(batch, read_header(batch)))
        if len(sent) == 100:
            await asyncio.gather(*sent)
            sent.clear()
    await asyncio.gather(*sent)
    partition.roll()
    while partition.record.closed_end < partition.high_watermark:
        await asyncio.sleep(0.01)


def _producers(run: Run, folder: Path, records: int) -> tuple[float, float]:
    """p99 in milliseconds of a producer alone, and beside compaction."""
    messages = run.sized(8_000, quick=2_000)
    settings = {
        "DOVETAIL_LOG_COMPACTION_CHECK_MS": "100",
        "DOVETAIL_LOG_RETENTION_CHECK_MS": "100",
        # So slowly that it lasts as long as what is measured beside it.
        "DOVETAIL_LOG_COMPACTION_BYTES_PER_SECOND": str(run.sized(64 << 20, quick=16 << 20)),
    }
    with Node(folder, settings) as node:
        run.step(f"{records:,} records to be compacted")
        topic = client.create_topic(node.bootstrap, "compacted")
        _send_keyed(node.bootstrap, topic, records)
        run.step("producers alone")
        alone = percentile(latencies(node.bootstrap, messages)[_WARM:], 99)

        run.step("producers beside compaction")
        _alter(node.bootstrap, topic, {"cleanup.policy": "compact", "segment.ms": "100"})
        while not _bytes_read(node):
            time.sleep(0.01)
        beside = percentile(latencies(node.bootstrap, messages)[_WARM:], 99)
        if not _bytes_read(node):
            raise RuntimeError("nothing was compacted meanwhile")
    return alone, beside


def _send_keyed(bootstrap: str, topic: str, records: int) -> None:
    sender = Producer({"bootstrap.servers": bootstrap, "acks": "all", **client.THROUGHPUT})
    rng = random.Random(1)
    sent = 0
    while sent < records:
        batch = [
            {"key": b"%08d" % rng.randrange(records // 10), "value": _VALUE}
            for _ in range(min(_BATCH_RECORDS, records - sent))
        ]
        while batch:
            taken = sender.produce_batch(topic, batch)
            sent += taken
            batch = batch[taken:]
            sender.poll(0.01 if batch else 0)
    if sender.flush(client.STALL_S_MAX):
        raise client.NotDelivered(f"{topic} was not filled")


def _alter(bootstrap: str, topic: str, config: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(client.STALL_S_MAX)


def _bytes_read(node: Node) -> float:
    """What compaction has read so far."""
    with urllib.request.urlopen(f"{node.http}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("dovetail_compaction_read_bytes_total "):
                return float(line.split()[1])
    raise RuntimeError("the node has no such metric")
