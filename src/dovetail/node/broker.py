"""The broker role of a node: the log, its coordinators, and their upkeep.

It starts in two steps. Entering the context reads topics and owners, so that clients get metadata.
`start` then takes over this broker's partitions and afterwards loads its groups. In a cluster both
may have to wait for enough storage nodes; they report that they wait, and continue by themselves.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial

from dovetail.access import Quotas
from dovetail.background import Tasks
from dovetail.clock import Clock
from dovetail.coordination import ABSENT, Coordinator, Put, Unchanged
from dovetail.coordination.membership import BROKER_ROLE, Member
from dovetail.errors import DovetailError, InvalidInput, InvalidSetting
from dovetail.kafka.codec.subscription import ConsumerFormats, topics_of
from dovetail.kafka.handlers import Backend, BrokerAddress, Told
from dovetail.kafka.handlers.fetch_sessions import FetchSessions
from dovetail.kafka.handlers.share.sessions import ShareSessions
from dovetail.log.compaction.compactor import CompactionSettings, Compactor
from dovetail.log.ends.held import HeldEnds
from dovetail.log.ends.seen import SeenEnds
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import ConsumerLimits, GroupSettings
from dovetail.log.peers import Peers
from dovetail.log.service import Log
from dovetail.log.share.group_settings import GroupSettingsTable
from dovetail.log.share.registry import ShareRegistry
from dovetail.log.share.types import ShareSettings
from dovetail.log.topic import TopicConfig
from dovetail.log.transactions.coordinator import TransactionSettings
from dovetail.log.transactions.registry import TransactionRegistry
from dovetail.logging import get_logger
from dovetail.node.due import DueTopics
from dovetail.node.metrics import LogCollector, Metrics
from dovetail.node.others import Others
from dovetail.node.security import Security
from dovetail.settings import LogSettings, Settings
from dovetail.storage import Ensembles, Quorum
from dovetail.storage.quorum.arithmetic import check_quorum
from dovetail.storage.quorum.ensembles import Nodes
from dovetail.storage.repair.decommission import StorageStates
from dovetail.storage.repair.repairer import Repairer, RepairSettings, StorageView
from dovetail.storage.selection import selection_named

_log = get_logger("broker")

#: How often it is looked whether a partition should be handed on, or a storage node is back.
CHECK_MS = 1000


class Broker:
    """Serves partitions; use as an async context manager."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        nodes: Nodes,
        *,
        metrics: Metrics,
        clock: Clock,
        peers: Peers | None,
        others: Others,
        states: StorageStates | None,
        view: StorageView | None,
    ) -> None:
        """`peers` is as for `Log`; on one node alone there are no `states` and no `view`."""
        self._settings = settings
        self._coordinator = coordinator
        self._metrics = metrics
        self._clock = clock
        self._view = view
        self._stack = AsyncExitStack()
        self._tasks = Tasks()

        removed = frozenset if states is None else states.removed
        ensembles = Ensembles(nodes, removed=removed)
        self.repairer: Repairer | None = None
        if view is not None:
            repair = RepairSettings(
                after_ms=settings.storage.repair_after_ms,
                bytes_per_second=settings.storage.repair_bytes_per_second,
            )
            self.repairer = Repairer(nodes, view, clock=clock, settings=repair)
            ensembles.reader.on_damaged = self.repairer.doubt

        self.log = Log(
            node_id=settings.node.node_id,
            coordinator=coordinator,
            ensembles=ensembles,
            clock=clock,
            defaults=_defaults(settings.log),
            tail_bytes_max=settings.log.tail_cache_bytes_max,
            peers=peers,
            select=selection_named(settings.log.selection),
        )

        self.due = DueTopics(self.log, clock)
        self.compactor = Compactor(clock=clock, settings=_compaction_settings(settings.log))
        self._quotas = Quotas(coordinator, clock.monotonic_ms)
        limits = _group_settings(settings)
        self._group_settings = GroupSettingsTable(coordinator, limits.share, limits.consumer)
        self.groups = GroupRegistry(
            self.log,
            clock,
            limits,
            partitions=settings.groups.partitions,
            topics_of=topics_of,
            formats=ConsumerFormats(),
            share_limits=self._group_settings.of,
            consumer_limits=self._group_settings.consumer,
        )
        self._others = others
        self.held = HeldEnds(self.log.partitions)
        self.seen = SeenEnds(settings.node.node_id, self.held, others.ends, self.log.catalog, clock)

        self.transactions = TransactionRegistry(
            settings.node.node_id,
            self.log,
            self.groups,
            others.transactions,
            clock,
            _transaction_settings(settings),
            partitions=settings.transactions.partitions,
        )
        self.shares = ShareRegistry(
            settings.node.node_id,
            self.log,
            self.groups,
            others.shares,
            self._group_settings,
            clock,
            partitions_default=settings.log.partitions_default,
            topic_auto_create=settings.log.topic_auto_create,
        )

    async def __aenter__(self) -> "Broker":
        """Reads topics and owners; nothing is served before `start`."""
        try:
            self._cluster_id = await cluster_id(self._coordinator)
            self._stack.push_async_callback(self.log.close)
            await self.log.load()
            self._stack.push_async_callback(self._quotas.stop)
            await self._quotas.start()
            self._stack.push_async_callback(self._group_settings.stop)
            await self._group_settings.start()
            self._stack.push_async_callback(self._others.transactions.close)
            self._stack.push_async_callback(self._others.ends.close)
            self._stack.push_async_callback(self.groups.close)
            self._stack.push_async_callback(self.transactions.close)
            self._stack.push_async_callback(self.compactor.close)
            self._stack.push_async_callback(self.shares.close)
            self._stack.push_async_callback(self._tasks.stop)
            self._stack.push_async_callback(self.due.stop)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def start(self) -> None:
        """Takes over what is this broker's; serves that when it returns."""
        self.log.on_deleted += [self._metrics.forget_topic, self.groups.forget_topic]
        await self.log.start()
        await self.groups.start()
        await self.transactions.start()
        self._metrics.registry.register(
            LogCollector(self.log, self.groups, self.shares, self.repairer, self.compactor)
        )
        self._tasks.keep(self._keep_up, name="broker/upkeep")
        self._tasks.keep(self._look_after, name="broker/hand-over")
        compact = partial(self.compactor.run, self.log.partitions)
        self._tasks.keep(compact, name="broker/compaction")
        if self.repairer is not None:
            repair = partial(self.repairer.run, self.log.partitions)
            self._tasks.keep(repair, name="broker/repair")

    def backend(
        self,
        brokers: Callable[[], dict[int, BrokerAddress]],
        brokers_gone: Callable[[], dict[int, BrokerAddress]],
        storage_nodes: Callable[[], int],
        security: Security,
    ) -> Backend:
        """What the Kafka handlers work on; clients get these addresses."""
        if security.registry is None:
            raise AssertionError("a broker starts after the users are known")
        log = self._settings.log
        sessions = FetchSessions()
        self.log.owned.on_opened.append(
            lambda record, number, _: sessions.came(record.name, bytes.fromhex(record.id), number)
        )
        self.log.owned.on_gone.append(sessions.went)

        return Backend(
            log=self.log,
            groups=self.groups,
            transactions=self.transactions,
            shares=self.shares,
            compaction=self.compactor.report,
            clock=self._clock,
            metrics=self._metrics,
            cluster_id=self._cluster_id,
            node_id=self._settings.node.node_id,
            brokers=brokers,
            brokers_gone=brokers_gone,
            topic_auto_create=log.topic_auto_create,
            partitions_default=log.partitions_default,
            storage_nodes=storage_nodes,
            storage_present=lambda: None if self._view is None else self._view.present().keys(),
            registry=security.registry,
            authorizes=security.authenticator is not None,
            quotas=self._quotas,
            sessions=sessions,
            share_sessions=ShareSessions(),
            due=self.due,
            told=Told(),
            node_settings={shown.name: str(shown.value) for shown in self._settings.shown()},
        )

    def copies_lacking(self) -> int:
        """Closed ledgers of its partitions that lie on too few storage nodes."""
        return 0 if self.repairer is None else sum(self.repairer.report.lacking.values())

    def unreadable(self) -> list[str]:
        """The journals that cannot be read, and why."""
        groups, transactions = self.groups.unreadable(), self.transactions.unreadable()
        return [
            *(
                f"groups of journal {number} cannot be read: {why}"
                for number, why in groups.items()
            ),
            *(
                f"transactions of journal {number} cannot be read: {why}"
                for number, why in transactions.items()
            ),
        ]

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(self._settings.log.retention_check_ms / 1000)
            try:
                await self.log.maintain()
                self.shares.trim()
                await self.groups.shorten()
                await self.transactions.shorten()
            except DovetailError as error:
                _log.warning("upkeep failed; trying again", error=str(error))

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(CHECK_MS / 1000)
            self.log.owned.hand_on_stuck()
            self.welcome_back()

    def welcome_back(self) -> None:
        """Storage nodes that are back get what is being written.

        Asked for whenever the nodes change, and from time to time: an append that was sent before
        can still fail after its node came back, and nothing would change any more.
        """
        if self._view is None:
            return
        present = self._view.present().keys()
        for partition in self.log.partitions():
            for ledger in partition.open_ledgers:
                for number in present & ledger.writer.down:
                    ledger.writer.node_back(number)


def brokers_among(members: Iterable[Member]) -> dict[int, BrokerAddress]:
    """The brokers among nodes, with the addresses that clients get."""
    return {
        member.node_id: BrokerAddress(member.node_id, member.host, member.port, member.rack or None)
        for member in members
        if BROKER_ROLE in member.roles
    }


def _defaults(settings: LogSettings) -> TopicConfig:
    quorum = Quorum(settings.ensemble, settings.write_quorum, settings.ack_quorum)
    try:
        check_quorum(quorum)
    except InvalidInput as error:
        raise InvalidSetting(f"log.ensemble, log.write_quorum, log.ack_quorum: {error}") from error
    return TopicConfig(
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        ledger_bytes_max=settings.ledger_bytes_max,
        ledger_age_ms_max=settings.ledger_age_ms_max,
        batch_bytes_max=settings.message_bytes_max,
        quorum=quorum,
    )


def _compaction_settings(settings: LogSettings) -> CompactionSettings:
    return CompactionSettings(
        check_ms=settings.compaction_check_ms,
        memory_bytes=settings.compaction_memory_bytes,
        bytes_per_second=settings.compaction_bytes_per_second,
    )


def _group_settings(settings: Settings) -> GroupSettings:
    limits = settings.groups
    return GroupSettings(
        session_timeout_ms_min=limits.session_timeout_ms_min,
        session_timeout_ms_max=limits.session_timeout_ms_max,
        initial_rebalance_delay_ms=limits.initial_rebalance_delay_ms,
        offsets_retention_ms=limits.offsets_retention_ms,
        group_size_max=limits.group_size_max,
        consumer=ConsumerLimits(
            limits.consumer_heartbeat_interval_ms, limits.consumer_session_timeout_ms
        ),
        share_size_max=limits.share_size_max,
        share=_share_settings(settings),
    )


def _share_settings(settings: Settings) -> ShareSettings:
    limits = settings.groups
    return ShareSettings(
        lock_ms=limits.share_lock_ms,
        deliveries_max=limits.share_deliveries_max,
        in_flight_max=limits.share_in_flight_max,
        heartbeat_interval_ms=limits.share_heartbeat_interval_ms,
        session_timeout_ms=limits.share_session_timeout_ms,
    )


def _transaction_settings(settings: Settings) -> TransactionSettings:
    limits = settings.transactions
    return TransactionSettings(limits.timeout_ms_max, limits.id_expiry_ms)


async def cluster_id(coordinator: Coordinator) -> str:
    """The id of this cluster, made when its coordination service is first used."""
    key = "/cluster/id"
    await coordinator.transact(
        [Put(key, uuid.uuid4().hex[:22].encode())], conditions=[Unchanged(key, ABSENT)]
    )
    found = await coordinator.get(key)
    if found is None:
        raise InvalidSetting(f"cannot write {key}: check that no other cluster uses this namespace")
    return found.value.decode()
