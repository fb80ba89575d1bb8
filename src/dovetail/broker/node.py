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
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from dovetail import __version__
from dovetail.broker.carrier import Carrier
from dovetail.broker.cluster_nodes import ClusterNodes
from dovetail.broker.identity import bind_disk, disk_identity, holds_ledgers
from dovetail.broker.membership import Member, Membership
from dovetail.broker.metrics import Metrics
from dovetail.broker.storage_service import StorageService, is_private
from dovetail.clock import Clock, SystemClock
from dovetail.coordination import (
    ABSENT,
    Coordinator,
    EmbeddedCoordinator,
    LeaseKeeper,
    Put,
    Unchanged,
)
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.errors import InvalidSetting, ProtocolViolation
from dovetail.kafka.handlers import FrontDoor
from dovetail.ledger import (
    Durability,
    LedgerStore,
    LocalStorageNode,
    OneNode,
    RealDisk,
    StoreSettings,
)
from dovetail.ledger.ensembles import Nodes
from dovetail.logging import RateLimitedLog, get_logger
from dovetail.settings import HttpSettings, Settings
from dovetail.wire import ByteBudget, Connection, Limits, Reply, WireServer

_log = get_logger("node")

#: Held by the carrier that serves clients.
CARRIER_KEY = "/carrier"

#: How often lines that were held back are summed up in the log.
TELL_MS = 1000


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
        self._carrier: Carrier | None = None
        self._membership: Membership | None = None
        #: Set when this node must not serve any more.
        self.lost = asyncio.Event()
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
        if self._carrier is not None:
            for (topic, number), error in self._carrier.log.broken().items():
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
        coordinator = await self._start_coordination(data_dir)
        roles = settings.node.roles.split(",")
        service = None
        if "storage" in roles:
            ledgers = data_dir / "ledgers"
            identity = disk_identity(ledgers)
            await bind_disk(
                coordinator,
                settings.node.node_id,
                identity,
                holds_ledgers=holds_ledgers(ledgers),
            )
            self._storage = await self._start_storage(data_dir / "ledgers")
            service = StorageService(self._storage, identity=identity)
        nodes: Nodes
        if settings.coordination.kind == "embedded":
            if self._storage is None or "carrier" not in roles:
                raise InvalidSetting(
                    "a node with one role is part of a cluster: set coordination.kind to 'etcd'"
                )
            nodes = OneNode(settings.node.node_id, self._storage)
        else:
            nodes = await self._join_cluster(coordinator)
        if "carrier" in roles:
            if self._membership is not None:
                await self._await_turn(coordinator)
            self._carrier = await self._start_carrier(coordinator, nodes)
        port_bound = await self._start_door(service)
        telling = asyncio.create_task(self._tell_held_back())
        self._stack.callback(telling.cancel)
        if self._membership is not None:
            await self._membership.announce(lambda: self._describe(port_bound))
        # What lives now lives long: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        self._missing.clear()
        return Endpoints(
            kafka=f"{settings.kafka.host}:{port_bound}", http=http_url, data_dir=data_dir
        )

    async def _start_coordination(self, data_dir: Path) -> Coordinator:
        settings = self._settings.coordination
        coordinator: Coordinator
        if settings.kind == "embedded":
            coordinator = await EmbeddedCoordinator.open(
                data_dir / "coordination.sqlite", clock=self._clock
            )
        else:
            coordinator = await EtcdCoordinator.open(
                EtcdSettings(tuple(settings.endpoints.split(",")), namespace=settings.namespace)
            )
        self._stack.push_async_callback(coordinator.close)
        return coordinator

    # In a cluster

    async def _join_cluster(self, coordinator: Coordinator) -> Nodes:
        self._membership = Membership(
            coordinator, clock=self._clock, ttl_ms=self._settings.coordination.lease_ms
        )
        await self._membership.start()
        self._stack.push_async_callback(self._membership.stop)
        node_id = self._settings.node.node_id
        nodes = ClusterNodes(
            self._membership,
            client_id=self._settings.node.name,
            local=None if self._storage is None else (node_id, self._storage),
            rng=random.SystemRandom(),
        )
        self._stack.push_async_callback(nodes.close)
        return nodes

    async def _await_turn(self, coordinator: Coordinator) -> None:
        """One carrier serves at a time; the others stand by until its lease ends."""
        lease = LeaseKeeper(
            coordinator, ttl_ms=self._settings.coordination.lease_ms, clock=self._clock
        )
        await self._stack.enter_async_context(lease)
        mine = [Put(CARRIER_KEY, self._settings.node.name.encode(), lease.id)]
        self._missing = [f"standing by: another carrier holds {CARRIER_KEY}"]
        while not (
            await coordinator.transact(mine, conditions=[Unchanged(CARRIER_KEY, ABSENT)])
        ).applied:
            found = await coordinator.get(CARRIER_KEY)
            if found is None:
                continue
            async with coordinator.watch(CARRIER_KEY, after=found.revision) as changes:
                async for _ in changes:
                    break
        self._missing = ["starting"]

        async def watch_lease() -> None:
            await lease.lost.wait()
            _log.error("the carrier's lease is lost; another may serve now, so this one ends")
            self.lost.set()

        task = asyncio.create_task(watch_lease())
        self._stack.callback(task.cancel)

    def _describe(self, port_bound: int) -> Member:
        host, port = self._settings.kafka.advertised(port_bound=port_bound)
        return Member(
            node_id=self._settings.node.node_id,
            host=host,
            port=port,
            roles=tuple(self._settings.node.roles.split(",")),
            version=__version__,
            stored_bytes=0 if self._storage is None else self._storage.bytes_on_disk(),
            partitions=0 if self._carrier is None else len(self._carrier.log.partitions()),
        )

    def _nodes_changed(self) -> None:
        """Storage nodes that are back get what is being written."""
        if self._carrier is None or self._membership is None:
            return
        for partition in self._carrier.log.partitions():
            for ledger in partition.open_ledgers:
                for number in self._membership.members():
                    ledger.writer.node_back(number)

    # The rooms

    async def _start_carrier(self, coordinator: Coordinator, nodes: Nodes) -> Carrier:
        def on_waiting(what: str) -> None:
            self._missing = [what]

        carrier = Carrier(
            self._settings,
            coordinator,
            nodes,
            metrics=self._metrics,
            clock=self._clock,
            swept=self._storage if self._membership is None else None,
            on_waiting=on_waiting,
        )
        await self._stack.enter_async_context(carrier)
        if self._membership is not None:
            self._membership.on_change.append(self._nodes_changed)
        return carrier

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

    async def _start_door(self, service: StorageService | None) -> int:
        kafka = self._settings.kafka
        front: FrontDoor | None = None

        def dispatch(connection: Connection, frame: memoryview) -> Reply:
            if service is not None and is_private(frame):
                return service(connection, frame)
            if front is None:
                raise ProtocolViolation("this node serves no Kafka clients, or not yet")
            return front(connection, frame)

        server = WireServer(
            dispatch,
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
        if self._carrier is not None:
            host, port = kafka.advertised(port_bound=port_bound)
            front = FrontDoor(self._carrier.backend(host=host, port=port))
        return port_bound

    async def _tell_held_back(self) -> None:
        """Sums up lines that were held back because somebody caused too many of them."""
        while True:
            await asyncio.sleep(TELL_MS / 1000)
            self._loud.flush()

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


def _raise_file_limit() -> None:
    """Takes as many file handles as the system allows: each connection and segment needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
