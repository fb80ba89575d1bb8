"""One node in one process: every room, put together.

Start, from the bottom up: coordination → storage → log → groups → the Kafka door; HTTP comes first,
so that `/livez` answers while the rest recovers, and `/readyz` says what is still missing. Stop is
the same backwards: the door closes, what is on its way is answered, partitions are given back with
their ledgers closed.
"""

import asyncio
import gc
import random
import resource
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from dovetail.broker.metrics import LogCollector, Metrics
from dovetail.clock import Clock, SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.coordination.protocol import ABSENT, Coordinator, Put, Unchanged
from dovetail.errors import DovetailError, ProtocolViolation
from dovetail.kafka.handlers import Backend, FrontDoor
from dovetail.kafka.subscription import topics_of
from dovetail.ledger import (
    Durability,
    Ensembles,
    LedgerStore,
    LocalStorageNode,
    OneNode,
    RealDisk,
    StoreSettings,
)
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.partition_journal import GROUPS_TOPIC, PartitionJournal
from dovetail.log.groups.types import GroupSettings
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.logging import RateLimitedLog, get_logger
from dovetail.settings import HttpSettings, Settings
from dovetail.wire import ByteBudget, Connection, Limits, WireServer

_log = get_logger("node")


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a node listens. What clients are told is `settings.kafka.advertised`."""

    kafka: str
    http: str | None
    data_dir: Path


#: Serves the status and the metrics of a node over HTTP; yields the URL.
HttpStarter = Callable[["Node", HttpSettings], AbstractAsyncContextManager[str]]


class Node:
    """Use as an async context manager; it serves inside."""

    def __init__(
        self, settings: Settings, *, http: HttpStarter | None = None, clock: Clock | None = None
    ) -> None:
        """`http` serves health and metrics while the node lives; it is asked to start first."""
        self._settings = settings
        self._http = http
        self._clock = clock or SystemClock()
        self._metrics = Metrics()
        self.registry = self._metrics.registry
        self._stack = AsyncExitStack()
        self._missing = ["starting"]
        self._storage: LocalStorageNode | None = None
        self._report_damage: list[str] = []
        self._log: Log | None = None
        self._loud = RateLimitedLog(get_logger("wire"), self._clock)

    # What `/livez` and `/readyz` ask

    def live(self) -> bool:
        return True

    def ready(self) -> tuple[bool, list[str]]:
        """Whether clients are served, and if not fully, why."""
        reasons = list(self._missing)
        if self._storage is not None and self._storage.out_because is not None:
            reasons.append(f"storage is out: {self._storage.out_because}")
        reasons += [f"damaged: {place}" for place in self._report_damage]
        if self._log is not None:
            for (topic, number), error in self._log.broken().items():
                reasons.append(f"partition {topic}-{number}: {error}")
        return not reasons, reasons

    # Life

    async def __aenter__(self) -> "Node":
        await self._stack.__aenter__()
        try:
            self.endpoints = await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._missing.append("stopping")
        await self._stack.aclose()

    async def _start(self) -> Endpoints:
        settings = self._settings
        _raise_file_limit()
        data_dir = settings.node.data_dir
        data_dir.mkdir(parents=True, exist_ok=True)
        http_url = None
        if self._http is not None and settings.http.enabled:
            http_url = await self._stack.enter_async_context(self._http(self, settings.http))
        coordinator = await EmbeddedCoordinator.open(
            data_dir / "coordination.sqlite", clock=self._clock
        )
        self._stack.push_async_callback(coordinator.close)
        cluster_id = await _cluster_id(coordinator)
        self._storage = await self._start_storage(data_dir / "ledgers")
        self._log = await self._start_log(coordinator, self._storage)
        groups, journal = await self._start_groups(self._log)
        self._metrics.registry.register(LogCollector(self._log, groups))
        host, port_bound = await self._start_door(self._log, groups, cluster_id)
        self._start_upkeep(self._log, groups, journal)
        # What lives now lives long: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        self._missing.clear()
        return Endpoints(
            kafka=f"{host}:{port_bound}",
            http=http_url,
            data_dir=data_dir,
        )

    async def _start_storage(self, folder: Path) -> LocalStorageNode:
        storage = self._settings.storage
        settings = StoreSettings(
            durability=Durability(storage.durability),
            segment_bytes=storage.segment_bytes,
            disk_free_bytes_min=storage.disk_free_bytes_min,
            compaction_live_ratio=storage.compaction_live_ratio,
        )
        store = await asyncio.to_thread(
            lambda: LedgerStore(RealDisk(folder), settings, random.SystemRandom())
        )
        report = store.report
        self._report_damage = report.damaged
        if report.torn_bytes:
            _log.warning("cut the torn tail of the last write", bytes=report.torn_bytes)
        for place in report.damaged:
            _log.error("damaged on disk; what is intact around it is served", place=place)
        _log.info(
            "storage ready",
            segments=report.segments,
            scanned=report.segments_scanned,
            bytes=store.bytes_on_disk(),
        )
        node = LocalStorageNode(store, on_group=self._metrics.group, on_out=self._on_out)
        self._stack.push_async_callback(node.close)
        return node

    def _on_out(self, because: str) -> None:
        if not self._metrics.storage_out._value.get():
            _log.error("storage took itself out", because=because)
        self._metrics.storage_out.set(1)

    async def _start_log(self, coordinator: Coordinator, storage: LocalStorageNode) -> Log:
        settings = self._settings.log
        log = Log(
            node_id=self._settings.node.node_id,
            coordinator=coordinator,
            ensembles=Ensembles(OneNode(self._settings.node.node_id, storage)),
            swept=storage,
            clock=self._clock,
            defaults=TopicConfig(
                retention_ms=settings.retention_ms,
                retention_bytes=settings.retention_bytes,
                ledger_bytes_max=settings.ledger_bytes_max,
                ledger_age_ms_max=settings.ledger_age_ms_max,
                batch_bytes_max=settings.message_bytes_max,
            ),
            tail_bytes_max=settings.tail_cache_bytes_max,
        )
        await log.start()
        self._stack.push_async_callback(log.close)
        log.on_deleted.append(self._metrics.forget_topic)
        return log

    async def _start_groups(self, log: Log) -> tuple[GroupCoordinator, PartitionJournal]:
        if all(topic.name != GROUPS_TOPIC for topic in log.topics()):
            config = {"retention.ms": "-1", "retention.bytes": "-1"}
            await log.create_topic(GROUPS_TOPIC, partitions=1, config=config, internal=True)
        journal = PartitionJournal(log.partition(GROUPS_TOPIC, 0), self._clock)
        limits = self._settings.groups
        groups = GroupCoordinator(
            journal,
            self._clock,
            GroupSettings(
                session_timeout_ms_min=limits.session_timeout_ms_min,
                session_timeout_ms_max=limits.session_timeout_ms_max,
                initial_rebalance_delay_ms=limits.initial_rebalance_delay_ms,
                offsets_retention_ms=limits.offsets_retention_ms,
                group_size_max=limits.group_size_max,
            ),
            topics_of=topics_of,
        )
        await groups.load(journal.replay())
        groups.start()
        self._stack.push_async_callback(groups.close)
        return groups, journal

    async def _start_door(
        self, log: Log, groups: GroupCoordinator, cluster_id: str
    ) -> tuple[str, int]:
        kafka = self._settings.kafka
        front: FrontDoor | None = None

        def dispatch(connection: Connection, frame: memoryview) -> object:
            assert front is not None
            return front(connection, frame)

        server = WireServer(
            dispatch,  # type: ignore[arg-type]
            Limits(
                frame_bytes_max=kafka.frame_bytes_max,
                frame_read_ms=kafka.frame_read_ms,
                idle_ms=kafka.idle_ms,
                connections_max=kafka.connections_max,
            ),
            ByteBudget(kafka.request_bytes_in_flight_max),
            self,
        )
        port_bound = await server.start(kafka.host, kafka.port)
        self._stack.push_async_callback(server.stop)
        host, port = kafka.advertised(port_bound=port_bound)
        front = FrontDoor(
            Backend(
                log=log,
                groups=groups,
                clock=self._clock,
                metrics=self._metrics,
                cluster_id=cluster_id,
                node_id=self._settings.node.node_id,
                host=host,
                port=port,
                topic_auto_create=self._settings.log.topic_auto_create,
                partitions_default=self._settings.log.partitions_default,
                node_settings={shown.name: str(shown.value) for shown in self._settings.shown()},
            )
        )
        return kafka.host, port_bound

    def _start_upkeep(self, log: Log, groups: GroupCoordinator, journal: PartitionJournal) -> None:
        async def upkeep() -> None:
            while True:
                await asyncio.sleep(self._settings.log.retention_check_ms / 1000)
                try:
                    await log.maintain()
                    await journal.shorten(groups)
                except DovetailError as error:
                    _log.warning("upkeep failed; it is tried again", error=str(error))

        log.on_deleted.append(lambda topic: tasks.add(asyncio.create_task(_forget(groups, topic))))
        tasks = {asyncio.create_task(upkeep())}

        async def stop() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._stack.push_async_callback(stop)

    # What the wire room tells

    def opened(self, connection: Connection) -> None:
        self._metrics.connections.inc()

    def closed(self, connection: Connection) -> None:
        self._metrics.connections.dec()

    def violation(self, connection: Connection, error: ProtocolViolation) -> None:
        self._metrics.violations.inc()
        self._loud.tell("violation", "connection closed", peer=connection.peer, why=str(error))

    def failed(self, connection: Connection, error: Exception) -> None:
        self._metrics.failures.inc()
        _log.error("a request met a defect", peer=connection.peer, error=repr(error))

    def moved(self, bytes_in: int, bytes_out: int) -> None:
        self._metrics.moved(bytes_in, bytes_out)


async def _forget(groups: GroupCoordinator, topic: str) -> None:
    await groups.forget_topic(topic)


async def _cluster_id(coordinator: Coordinator) -> str:
    """The id of this cluster, made when its coordination service is first used."""
    key = "/cluster/id"
    await coordinator.transact(
        [Put(key, uuid.uuid4().hex[:22].encode())], conditions=[Unchanged(key, ABSENT)]
    )
    found = await coordinator.get(key)
    assert found is not None
    return found.value.decode()


def _raise_file_limit() -> None:
    """Takes as many file handles as the system allows: each connection and segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
