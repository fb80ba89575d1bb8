"""One node in one process: starts and stops every room.

Start goes from the bottom up: coordination → storage → the listener → the catalog of topics →
registration with the other nodes → partitions and groups. HTTP starts first, so that `/livez`
answers while the rest recovers and `/readyz` reports what is still missing. Stop is the reverse:
the node deregisters, closes the ledgers of its partitions and hands the partitions over, answers
the requests in flight, and stops listening.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from dovetail import __version__
from dovetail.addresses import Address
from dovetail.background import Tasks, watch_loop
from dovetail.clock import Clock, SystemClock
from dovetail.coordination import Coordinator
from dovetail.coordination.membership import (
    BROKER_ROLE,
    OVERSEER_ROLE,
    STORAGE_ROLE,
    Member,
    Membership,
)
from dovetail.coordination.service import CoordinationService
from dovetail.errors import CoordinationDown, InvalidSetting
from dovetail.exposition import BackgroundCollector
from dovetail.kafka.handlers import BrokerAddress, KafkaDispatch
from dovetail.log.catalog import Catalog
from dovetail.log.ends.calls import EndsService
from dovetail.log.share.brokers import ShareService
from dovetail.log.transactions.brokers import TransactionService
from dovetail.logging import get_logger
from dovetail.node import collecting
from dovetail.node.broker import Broker, brokers_among
from dovetail.node.coordinators import open_coordinator, shared_by
from dovetail.node.disk import backups_of, open_store, raise_file_limit, scrub
from dovetail.node.history import History
from dovetail.node.insight import Insight, missing_nodes
from dovetail.node.letters import LetterTopics
from dovetail.node.listener import Listener
from dovetail.node.measured import MeasuredCoordinator
from dovetail.node.metrics import Metrics, NodeCollector
from dovetail.node.others import others
from dovetail.node.overseer import ClusterReport, Overseer
from dovetail.node.security import Security, start_security
from dovetail.node.sentry import Sentry
from dovetail.node.timelines import running_timelines
from dovetail.settings import Settings
from dovetail.storage import LocalStorageNode, OneNode
from dovetail.storage.cluster import ClusterNodes
from dovetail.storage.identity import (
    Disks,
    bind_disk,
    disk_identity,
    holds_ledgers,
    lock_folder,
)
from dovetail.storage.quorum.ensembles import Nodes
from dovetail.storage.repair.decommission import (
    NodesThatStay,
    SeenStorage,
    StorageStates,
    check_may_start,
)
from dovetail.storage.repair.upkeep import StorageUpkeep
from dovetail.storage.selection import selection_named
from dovetail.storage.service import StorageService
from dovetail.supervision import Supervisor
from dovetail.timeline.service import TimelineService
from dovetail.wire.probe import Prober

_log = get_logger("node")

#: Reasons of ill health that a node registers; its own `/readyz` has all.
REASONS_MAX = 5


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a node listens. Clients get `settings.kafka.advertised`."""

    kafka: str
    http: str | None
    data_dir: Path


#: Serves the status and the metrics of a node over HTTP; yields the URL.
HttpStarter = Callable[["Node", Settings], AbstractAsyncContextManager[str]]


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
        self._history = History(self._metrics, self._clock)
        self._stack = AsyncExitStack()

        self._missing = ["starting"]
        self._tasks = Tasks()
        self._supervisor = Supervisor()
        self._shared: CoordinationService | None = None
        self._storage: LocalStorageNode | None = None
        self._disk_identity = ""
        self._report_damage: list[str] = []
        self._security = Security()

        self._broker: Broker | None = None
        self._overseer: Overseer | None = None
        self._membership: Membership | None = None
        self._disks: Disks | None = None
        self._states: StorageStates | None = None
        self._view: SeenStorage | None = None
        self._timelines: TimelineService | None = None

        #: What the console shows beyond health; None until the node listens.
        self.insight: Insight | None = None
        #: What else can be wrong, beside this node: asked for reasons.
        self.also: list[Callable[[], list[str]]] = []
        #: Set when this node must not serve any more.
        self.lost = asyncio.Event()

        self.registry.register(NodeCollector(settings, self.ready, lambda: self._storage))
        self.registry.register(BackgroundCollector(self._supervisor))

    # What `/livez` and `/readyz` ask

    def live(self) -> bool:
        return True

    def watch_loop(self) -> None:
        """Reports callbacks of the running loop that fail as background work of this node."""
        watch_loop(self._supervisor)

    def ready(self) -> tuple[bool, list[str]]:
        """Whether clients are served, and if not fully, why."""
        reasons = list(self._missing)
        if self._storage is not None and self._storage.out_because is not None:
            reasons.append(f"storage is out: {self._storage.out_because}")
        if self._storage is not None and self._storage.full_because is not None:
            reasons.append(self._storage.full_because)
        reasons += [f"damaged: {place}" for place in self._report_damage]
        if self._membership is not None and not (self._missing or self._membership.holds_lease()):
            reasons.append("no lease: the coordination service does not answer")
        if self._broker is not None:
            reasons += self._broker.log.problems()
            reasons += self._broker.unreadable()
        if self._timelines is not None:
            reasons += [f"timelines: {text}" for text in self._timelines.report().of_all]
        reasons += [f"background work {text}" for text in self._supervisor.problems()]
        for ask in self.also:
            reasons += ask()
        return not reasons, reasons

    def unwell(self) -> list[str]:
        """What is not served though others are: no reason to send nobody here (B18)."""
        unwell = () if self._timelines is None else self._timelines.report().unwell
        return [f"timelines: {text}" for _, text in unwell]

    def cluster(self) -> ClusterReport | None:
        """The cluster, if this node is an overseer of it."""
        return None if self._overseer is None else self._overseer.report()

    # Life

    async def __aenter__(self) -> "Node":
        await self._stack.__aenter__()
        try:
            with self._supervisor.supervising():
                self.endpoints = await self._start()
        except BaseException:
            collecting.usually()
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._missing.append("stopping")
        await self._stack.aclose()

    async def _start(self) -> Endpoints:
        settings = self._settings
        raise_file_limit()
        collecting.rarely()
        data_dir = settings.node.data_dir
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

        http_url = None
        if self._http is not None and settings.http.enabled:
            http_url = await self._stack.enter_async_context(self._http(self, settings))

        coordinator = await self._start_coordination()
        self._security = await start_security(settings, coordinator)
        self._stack.push_async_callback(self._security.stop)

        roles = settings.node.roles.split(",")
        if STORAGE_ROLE in roles:
            await self._open_disk(coordinator, data_dir / "ledgers")

        nodes = await self._start_nodes(coordinator, roles)
        listener, port_bound = await self._listen()
        host, port = settings.kafka.advertised(port_bound=port_bound)
        here = BrokerAddress(settings.node.node_id, host, port, settings.node.rack or None)
        if BROKER_ROLE in roles:
            self._broker = await self._load_broker(coordinator, nodes, here, listener)

        insight = self.insight = Insight(
            self._broker,
            self._membership,
            describe=lambda: self._describe(here, http_url),
            missing=lambda: missing_nodes(self._membership, self._disks, self._states),
            listener=str(settings.kafka.local_address(port_bound=port_bound)),
            own_way=self._security.own_way,
            history=self._history,
            clients=listener.clients,
        )
        self._offer_backups(insight, coordinator)
        prober = self._start_prober(insight, here.node_id)

        if OVERSEER_ROLE in roles:
            await self._start_overseer(coordinator, insight, prober)
        if self._membership is not None:
            await self._register(self._membership, coordinator, here, http_url)
        if self._broker is not None:
            self._missing = ["taking partitions over"]
            await self._broker.start()
            self._timelines = await self._stack.enter_async_context(
                running_timelines(
                    settings,
                    coordinator,
                    data_dir=data_dir,
                    clock=self._clock,
                    registry=self.registry,
                    address=str(Address(host, port)),
                    leases=self._membership,
                    prober=prober,
                    topics=LetterTopics(self._broker.shares, self._clock),
                )
            )
            listener.timelines = self._timelines
            if self._timelines is not None:
                insight.receiver = self._timelines.receiver
            self._broker.due.start(self._timelines)
            self._stack.push_async_callback(self._broker.due.stop)

        self._settle(insight)
        self._missing.clear()
        kafka = str(Address(settings.kafka.host, port_bound))
        return Endpoints(kafka=kafka, http=http_url, data_dir=data_dir)

    def _settle(self, insight: Insight) -> None:
        """Samples what serves from now on; what lives now lives long."""
        self._history.start(self._broker, self._timelines, insight.brokers)
        self._stack.push_async_callback(self._history.stop)

        collecting.settle()

    async def _open_disk(self, coordinator: Coordinator, folder: Path) -> None:
        """Opens this node's ledgers, if the disk is the one that is known under its number."""
        node_id = self._settings.node.node_id
        self._stack.callback(lock_folder(folder))
        self._disk_identity = disk_identity(folder)
        await bind_disk(
            coordinator, node_id, self._disk_identity, holds_ledgers=holds_ledgers(folder)
        )
        await check_may_start(coordinator, node_id)
        store = await open_store(folder, self._settings.storage)
        self._report_damage = store.report.damaged
        self._storage = LocalStorageNode(store, on_group=self._metrics.group, on_out=self._on_out)
        self._stack.push_async_callback(self._storage.close)
        upkeep = StorageUpkeep(self._storage, node_id, coordinator)
        await upkeep.once()
        self._tasks.keep(upkeep.run, name="storage/upkeep")
        scrub(self._storage, upkeep, self._settings.storage, self._clock, self._renew, self._tasks)
        self._stack.push_async_callback(self._tasks.stop)

    def _offer_backups(self, insight: Insight, coordinator: Coordinator) -> None:
        if self._storage is not None:
            made = backups_of(self._settings, coordinator, self._storage, self._clock)
            self._stack.push_async_callback(made.stop)
            insight.backups = made

    async def _listen(self) -> tuple[Listener, int]:
        """Serves storage from now on, the rest when it is there; also returns the port."""
        listener = Listener(
            self._settings,
            security=self._security,
            membership=self._membership,
            metrics=self._metrics,
            clock=self._clock,
        )
        listener.coordination = self._shared
        if self._storage is not None:
            listener.storage = StorageService(self._storage)
            listener.identity = self._disk_identity
        port = await listener.start()
        self._stack.push_async_callback(listener.stop)
        return listener, port

    async def _start_nodes(self, coordinator: Coordinator, roles: list[str]) -> Nodes:
        """The storage nodes that ledgers are placed on."""
        settings = self._settings
        if not settings.coordination.alone:
            return await self._join_cluster(coordinator)
        if self._storage is None or BROKER_ROLE not in roles:
            raise InvalidSetting(
                "coordination.kind 'embedded' needs both roles, broker and storage, in this node; "
                "add the missing role, or set coordination.kind to 'etcd' to join a cluster"
            )
        return OneNode(settings.node.node_id, self._storage)

    async def _start_coordination(self) -> Coordinator:
        coordinator = await open_coordinator(self._settings, self._clock, self._etcd_is_away)
        self._missing = ["starting"]
        self._stack.push_async_callback(coordinator.close)
        self._shared = shared_by(self._settings, coordinator)
        return MeasuredCoordinator(coordinator, self._metrics.coordination)

    def _etcd_is_away(self, error: CoordinationDown, retry_s: float) -> None:
        self._missing = [f"waiting for etcd: {error}"]
        _log.warning("cannot reach etcd; trying again", error=str(error), seconds=retry_s)

    # In a cluster

    async def _join_cluster(self, coordinator: Coordinator) -> Nodes:
        node_id = self._settings.node.node_id
        self._membership = Membership(
            coordinator,
            node_id=node_id,
            clock=self._clock,
            ttl_ms=self._settings.coordination.lease_ms,
        )
        await self._membership.start()
        self._stack.push_async_callback(self._membership.stop)

        disks = self._disks = Disks(coordinator)
        await disks.start()
        self._stack.push_async_callback(disks.stop)

        nodes = ClusterNodes(
            self._membership,
            disks,
            client_id=self._settings.node.name,
            local=None if self._storage is None else (node_id, self._storage),
            select=selection_named(self._settings.log.selection),
            rack=self._settings.node.rack,
            rng=random.SystemRandom(),
            bytes_in_flight_max=2 * self._settings.kafka.request_bytes_in_flight_max,
            tls=self._security.client_tls,
        )
        self._stack.push_async_callback(nodes.close)

        self._states = StorageStates(coordinator, on_change=self._wake_repair)
        await self._states.start()
        self._stack.push_async_callback(self._states.stop)
        self._view = SeenStorage(self._membership, self._states)
        return NodesThatStay(nodes, self._states)

    def _count_storage(self) -> int:
        if self._disks is None or self._states is None:
            return 1
        return len(self._disks.numbers() - self._states.given_up())

    def _wake_repair(self) -> None:
        if self._broker is not None and self._broker.repairer is not None:
            self._broker.repairer.wake()

    async def _register(
        self,
        membership: Membership,
        coordinator: Coordinator,
        here: BrokerAddress,
        http_url: str | None,
    ) -> None:
        """Makes this node known; the others count on it from now on, until it deregisters."""

        async def watch_number() -> None:
            await membership.replaced.wait()
            self.lost.set()

        await membership.register(lambda: self._describe(here, http_url))
        if self._broker is not None:
            sentry = Sentry(membership, coordinator, node_id=here.node_id)
            sentry.start()
            self._stack.push_async_callback(sentry.stop)
        self._stack.push_async_callback(membership.leave)
        self._tasks.keep(watch_number, name="node/number")
        self._stack.push_async_callback(self._tasks.stop)

    def _describe(self, here: BrokerAddress, http_url: str | None) -> Member:
        return Member(
            node_id=here.node_id,
            host=here.host,
            port=here.port,
            roles=tuple(self._settings.node.roles.split(",")),
            version=__version__,
            name=self._settings.node.name,
            rack=self._settings.node.rack,
            http=http_url,
            damage_found=0 if self._storage is None else self._storage.scrub.damaged,
            stored_bytes=0 if self._storage is None else self._storage.bytes_on_disk(),
            partitions=0 if self._broker is None else len(self._broker.log.partitions()),
            storage_out=self._storage is not None and self._storage.out_because is not None,
            copies_lacking=0 if self._broker is None else self._broker.copies_lacking(),
            reasons=tuple([*self.ready()[1], *self.unwell()][:REASONS_MAX]),
        )

    def _start_prober(self, insight: Insight, node_id: int) -> Prober:
        def others() -> list[Address]:
            members = insight.members().values()
            return [Address(m.host, m.port) for m in members if m.node_id != node_id]

        prober = Prober(
            others,
            client_id=self._settings.node.name,
            clock=self._clock,
            tls=self._security.client_tls,
        )
        prober.start()
        self._stack.push_async_callback(prober.stop)
        return prober

    async def _start_overseer(
        self, coordinator: Coordinator, insight: Insight, prober: Prober
    ) -> None:
        if self._broker is None:
            catalog = Catalog(coordinator, on_change=lambda: None)
            await catalog.start()
            self._stack.push_async_callback(catalog.stop)
        else:
            catalog = self._broker.log.catalog
        self._overseer = Overseer(insight.members, insight.missing, catalog, prober)

    def _nodes_changed(self) -> None:
        """Storage nodes that are back get what is being written."""
        self._wake_repair()
        if self._broker is not None:
            self._broker.welcome_back()

    # The rooms

    async def _load_broker(
        self, coordinator: Coordinator, nodes: Nodes, here: BrokerAddress, listener: Listener
    ) -> Broker:
        membership = self._membership

        def brokers() -> dict[int, BrokerAddress]:
            known = None if membership is None else membership.members().values()
            return {here.node_id: here} if known is None else brokers_among(known)

        def brokers_gone() -> dict[int, BrokerAddress]:
            return {} if membership is None else brokers_among(membership.gone())

        broker = Broker(
            self._settings,
            coordinator,
            nodes,
            metrics=self._metrics,
            clock=self._clock,
            peers=membership,
            others=others(membership, self._security, self._settings.node.name),
            states=self._states,
            view=self._view,
        )

        await self._stack.enter_async_context(broker)
        if membership is not None:
            membership.on_change.append(self._nodes_changed)
        listener.kafka = KafkaDispatch(
            broker.backend(brokers, brokers_gone, self._count_storage, self._security),
            self._security.authenticator,
        )
        listener.transactions = TransactionService(broker.transactions)
        listener.shares = ShareService(broker.shares.here)
        listener.ends = EndsService(broker.held)
        return broker

    def _on_out(self, because: str) -> None:
        if not self._metrics.storage_out._value.get():
            _log.error("storage is out of service", because=because)
            self._renew()
        self._metrics.storage_out.set(1)

    def _renew(self) -> None:
        """What this node says of itself has changed."""
        if self._membership is not None:
            self._membership.renew()
