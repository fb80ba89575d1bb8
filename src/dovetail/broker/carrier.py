"""The carrier's part of a node: the log, its groups, and their upkeep.

Start: log (takes partitions over) → journal of groups → groups. In a cluster the journal may have
to wait until enough storage nodes are there; the carrier says so and goes on by itself.
"""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack

from dovetail.broker.metrics import LogCollector, Metrics
from dovetail.clock import Clock
from dovetail.coordination import ABSENT, Coordinator, Put, Unchanged
from dovetail.errors import DovetailError, InvalidInput, InvalidSetting
from dovetail.kafka.handlers import Backend
from dovetail.kafka.subscription import topics_of
from dovetail.ledger import Ensembles, Quorum, StorageNode
from dovetail.ledger.ensembles import Nodes
from dovetail.ledger.quorum import check_quorum
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.groups.partition_journal import GROUPS_TOPIC, PartitionJournal
from dovetail.log.groups.types import GroupSettings
from dovetail.log.partition import Partition
from dovetail.log.service import Log
from dovetail.log.topic import TopicConfig
from dovetail.logging import get_logger
from dovetail.settings import LogSettings, Settings

_log = get_logger("carrier")

#: Pause between two looks at something that should come back.
WAIT_MS = 200


class Carrier:
    """Serves partitions; use as an async context manager."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        nodes: Nodes,
        *,
        metrics: Metrics,
        clock: Clock,
        swept: StorageNode | None,
        on_waiting: Callable[[str], None],
    ) -> None:
        """`swept` is as for `Log`; `on_waiting` is told what the start waits for."""
        self._settings = settings
        self._coordinator = coordinator
        self._metrics = metrics
        self._clock = clock
        self._on_waiting = on_waiting
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[None]] = set()
        self.log = Log(
            node_id=settings.node.node_id,
            coordinator=coordinator,
            ensembles=Ensembles(nodes),
            swept=swept,
            clock=clock,
            defaults=_defaults(settings.log),
            tail_bytes_max=settings.log.tail_cache_bytes_max,
        )

    async def __aenter__(self) -> "Carrier":
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._cluster_id = await _cluster_id(self._coordinator)
        self._stack.push_async_callback(self.log.close)
        await self.log.start()
        self.log.on_deleted.append(self._metrics.forget_topic)
        journal = await self._open_journal()
        self._groups = GroupCoordinator(
            journal, self._clock, _group_settings(self._settings), topics_of=topics_of
        )
        await self._groups.load(journal.replay())
        self._groups.start()
        self._stack.push_async_callback(self._groups.close)
        self.log.on_deleted.append(lambda topic: self._run(self._forget(topic)))
        self._metrics.registry.register(LogCollector(self.log, self._groups))
        self._stack.push_async_callback(self._end_tasks)
        self._run(self._keep_up(journal))

    def backend(self, *, host: str, port: int) -> Backend:
        """What the Kafka front works on; clients are told this address."""
        log = self._settings.log
        return Backend(
            log=self.log,
            groups=self._groups,
            clock=self._clock,
            metrics=self._metrics,
            cluster_id=self._cluster_id,
            node_id=self._settings.node.node_id,
            host=host,
            port=port,
            topic_auto_create=log.topic_auto_create,
            partitions_default=log.partitions_default,
            copies=log.write_quorum,
            node_settings={shown.name: str(shown.value) for shown in self._settings.shown()},
        )

    async def _open_journal(self) -> PartitionJournal:
        if all(topic.name != GROUPS_TOPIC for topic in self.log.topics()):
            config = {"retention.ms": "-1", "retention.bytes": "-1"}
            await self.log.create_topic(GROUPS_TOPIC, partitions=1, config=config, internal=True)
        return PartitionJournal(await self._groups_partition(), self._clock)

    async def _groups_partition(self) -> Partition:
        while True:
            try:
                return self.log.partition(GROUPS_TOPIC, 0)
            except DovetailError as error:
                if not error.retriable:
                    raise
                self._on_waiting(f"the journal of groups: {error}")
            await asyncio.sleep(WAIT_MS / 1000)

    async def _keep_up(self, journal: PartitionJournal) -> None:
        while True:
            await asyncio.sleep(self._settings.log.retention_check_ms / 1000)
            try:
                await self.log.maintain()
                await journal.shorten(self._groups)
            except Exception as error:  # noqa: BLE001 - upkeep must outlive any one failure
                _log.warning("upkeep failed; it is tried again", error=repr(error))

    async def _forget(self, topic: str) -> None:
        await self._groups.forget_topic(topic)

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_tasks(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _defaults(settings: LogSettings) -> TopicConfig:
    quorum = Quorum(settings.ensemble, settings.write_quorum, settings.ack_quorum)
    try:
        check_quorum(quorum)
    except InvalidInput as error:
        raise InvalidSetting(f"log.ensemble, .write_quorum, .ack_quorum: {error}") from error
    return TopicConfig(
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        ledger_bytes_max=settings.ledger_bytes_max,
        ledger_age_ms_max=settings.ledger_age_ms_max,
        batch_bytes_max=settings.message_bytes_max,
        quorum=quorum,
    )


def _group_settings(settings: Settings) -> GroupSettings:
    limits = settings.groups
    return GroupSettings(
        session_timeout_ms_min=limits.session_timeout_ms_min,
        session_timeout_ms_max=limits.session_timeout_ms_max,
        initial_rebalance_delay_ms=limits.initial_rebalance_delay_ms,
        offsets_retention_ms=limits.offsets_retention_ms,
        group_size_max=limits.group_size_max,
    )


async def _cluster_id(coordinator: Coordinator) -> str:
    """The id of this cluster, made when its coordination service is first used."""
    key = "/cluster/id"
    await coordinator.transact(
        [Put(key, uuid.uuid4().hex[:22].encode())], conditions=[Unchanged(key, ABSENT)]
    )
    found = await coordinator.get(key)
    if found is None:
        raise InvalidSetting(f"{key} can not be written; is the namespace shared with others?")
    return found.value.decode()
