"""The log of one broker: all topics, the partitions that it owns, and their upkeep.

Every broker knows every topic and the owner of every partition (`catalog.py`). `claims.py` decides
which partitions this broker owns, `owned.py` does it, and `topic_work.py` creates and deletes
topics. A single broker runs the same code without others to share with.
"""

import random
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from dovetail.clock import Clock, UnhurriedTime
from dovetail.coordination.protocol import Coordinator
from dovetail.errors import DovetailError, InvalidInput, NotOwner, TopicUnknown
from dovetail.foreign import check_topic
from dovetail.log.catalog import Catalog, IdBlocks
from dovetail.log.claims import Claims
from dovetail.log.context import PartitionContext
from dovetail.log.examining import Examiner
from dovetail.log.owned import OwnedPartitions
from dovetail.log.owners import Ownership, Place
from dovetail.log.partition import Partition
from dovetail.log.peers import Alone, Peers
from dovetail.log.tail import TailBudget
from dovetail.log.topic import (
    TopicConfig,
    TopicRecord,
    check_config,
    check_partitions,
)
from dovetail.log.topic_work import TopicWork
from dovetail.logging import get_logger
from dovetail.storage import Ensembles, LedgerId, chain
from dovetail.storage.pages import read_whole
from dovetail.storage.selection import Selection, least_loaded

_log = get_logger("log")

#: Ledger ids taken at once; one costs nothing, and a block is lost at each start.
_LEDGER_BLOCK = 100

#: Producer ids taken at once. Kafka takes as many.
_PRODUCER_BLOCK = 1000

#: Kinds of settings of topics that are kept; a partition more of a kind costs nothing then.
_CONFIGS_MAX = 1000


class Moving(NamedTuple):
    """A partition on its way: the nodes that hold something of it, and those that shall."""

    there: frozenset[int]
    wanted: frozenset[int]


class Log:
    """Topics, and the partitions of this node."""

    def __init__(
        self,
        *,
        node_id: int,
        coordinator: Coordinator,
        ensembles: Ensembles,
        clock: Clock,
        defaults: TopicConfig,
        tail_bytes_max: int,
        peers: Peers | None = None,
        select: Selection = least_loaded,
        rng: random.Random | None = None,
    ) -> None:
        """Without `peers` this broker is alone."""
        self._coordinator = coordinator
        self._ensembles = ensembles
        self._clock = clock
        #: The time of day that retention believes, and when it was last asked for.
        self._time = UnhurriedTime(clock)
        self.defaults = defaults
        #: Settings of topics, by what they set themselves; most set nothing.
        self._configs: dict[tuple[tuple[str, str], ...], TopicConfig] = {}
        self._peers = peers or Alone(node_id)
        self._node_id = node_id
        self.catalog = Catalog(coordinator, on_change=self._on_change)

        self._ledger_ids = IdBlocks(coordinator, "ledger", block=_LEDGER_BLOCK)
        self._producer_ids = IdBlocks(coordinator, "producer", block=_PRODUCER_BLOCK)
        claims = Claims(node_id, select=select, rng=rng or random.SystemRandom())
        self.owned = OwnedPartitions(self.catalog, self._peers, claims, config_of=self.config)

        self._work = TopicWork(
            node_id,
            coordinator,
            self.catalog,
            self.owned,
            ensembles,
            self._peers,
            select=select,
            clock=clock,
        )
        self._context = PartitionContext(
            node_id,
            coordinator,
            ensembles,
            clock,
            self._time,
            TailBudget(tail_bytes_max),
            self._next_ledger_id,
            self.owned.lost,
            self._note_failed_roll,
        )

        #: Attempts to go on in a new ledger that failed, since the start.
        self.rolls_failed = 0
        #: Every batch of a client goes through it.
        self.examiner = Examiner()
        self._started = False
        #: Called with the topic's name when it is deleted.
        self.on_deleted: list[Callable[[str], None]] = []

    async def _next_ledger_id(self) -> LedgerId:
        return LedgerId(await self._ledger_ids.next())

    def _note_failed_roll(self, partition: Partition, error: DovetailError) -> None:
        self.rolls_failed += 1
        if str(partition.roll_error) != str(error):
            _log.warning("cannot roll to a new ledger", partition=partition.name, error=str(error))

    async def next_producer_id(self) -> int:
        """An id for an idempotent producer."""
        return await self._producer_ids.next()

    # Life

    async def load(self) -> None:
        """Reads what topics there are, and follows them; nothing is served yet."""
        await self.catalog.start()

    async def start(self) -> None:
        """Takes over what is this broker's; serves that when it returns."""
        self._started = True
        self.catalog.take_gone()
        self.owned.start(self._context)
        self._peers.on_change.append(self._work.reconsider)
        self._peers.before_lease.append(self._catch_up)
        self._on_change()
        await self.owned.settled(self._all_tried)

    async def _catch_up(self) -> None:
        """Drops the partitions that others took while this node was not registered."""
        await self.catalog.catch_up()
        self.owned.drop_what_is_not_ours()

    def _all_tried(self) -> bool:
        tried = len(self.owned.open) + len(self.owned.broken)
        # Asked after every change: most times, counting them says that there is one left.
        if self._work.creating or tried < self.catalog.owners.total(self._node_id):
            return False
        for place, ownership in self.catalog.owners.items():
            record = self.catalog.living(place.topic_id)
            key = (record.name if record else "", place.number)
            if ownership.owner == self._node_id and not (
                key in self.owned.open or key in self.owned.broken
            ):
                return False
            if ownership.owner not in self._peers.brokers().alive and (
                len(self._peers.brokers().willing) == 1
            ):
                return False
        return True

    async def close(self) -> None:
        """Gives every partition back."""
        self._started = False
        await self._work.close()
        await self.owned.close()
        await self.catalog.stop()
        await self._ensembles.close()
        await self.examiner.close()

    def _on_change(self) -> None:
        if not self._started:
            return
        for name in self.catalog.take_gone():
            for listener in self.on_deleted:
                listener(name)
        self._work.reconsider()
        self.owned.reconsider()

    # Topics

    def topics(self) -> list[TopicRecord]:
        """The topics that clients see."""
        return self.catalog.ready()

    def topic(self, name: str) -> TopicRecord:
        """Raises `TopicUnknown`."""
        return self.catalog.topic(name)

    def topic_by_id(self, topic_id: str) -> TopicRecord:
        """Raises `TopicUnknown`."""
        return self.catalog.topic_by_id(topic_id)

    def config(self, record: TopicRecord) -> TopicConfig:
        """The topic's settings with defaults filled in; partitions of the same share one object."""
        own = tuple(record.config.items())
        known = self._configs.get(own)
        if known is None:
            if len(self._configs) >= _CONFIGS_MAX:
                self._configs.clear()
            known = self._configs[own] = self.defaults.with_overrides(record.config)
        return known

    def ownership(self, record: TopicRecord, number: int) -> Ownership:
        """Who owns a partition, as last seen."""
        return self.catalog.ownership(Place(record.id, number))

    def version(self, record: TopicRecord) -> int:
        """What is known of a topic, its owners and holders is unchanged while this is."""
        return self.catalog.version(record.id)

    def holders(self, record: TopicRecord, number: int) -> tuple[int, ...]:
        """The storage nodes that a partition is being written to, as last seen."""
        return self.catalog.holders(Place(record.id, number))

    def holds_lease(self) -> bool:
        """Whether what is open here is surely this broker's; asked again after every wait."""
        return self._peers.holds_lease()

    def partition(self, name: str, number: int) -> Partition:
        """Raises `TopicUnknown`, `NotOwner`, or what keeps the partition out of service."""
        found = self.owned.open.get((name, number))
        if found is not None and self._peers.holds_lease():
            return found
        if found is not None:
            raise NotOwner("this node's lease has ended; the partition may have another owner")
        if (name, number) in self.owned.broken:
            raise self.owned.broken[name, number]
        record = self.topic(name)
        if not 0 <= number < record.partitions:
            raise TopicUnknown(f"topic {name!r} has partitions 0 to {record.partitions - 1}")
        owner = self.ownership(record, number).owner
        raise NotOwner(f"node {owner} serves partition {name}-{number}, or soon will")

    def partitions(self) -> list[Partition]:
        """All partitions that are served here."""
        return list(self.owned.open.values())

    def broken(self) -> dict[tuple[str, int], DovetailError]:
        """Partitions that are out of service, and why."""
        return self.owned.broken

    def problems(self) -> list[str]:
        """What keeps partitions of this node from being served as they should."""
        out = [f"partition {topic}-{n}: {why}" for (topic, n), why in self.owned.broken.items()]
        rolls = [(p.name, p.roll_error) for p in self.partitions() if p.roll_error is not None]
        return out + [
            f"partition {name} cannot go on in a new ledger: {why}" for name, why in rolls
        ]

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        config: dict[str, str] | None = None,
        internal: bool = False,
        check_only: bool = False,
    ) -> TopicRecord:
        """Raises `InvalidInput` or `TopicExists`, with nothing changed."""
        check_topic(name)
        check_partitions(partitions)
        plain = check_config(config or {}, self.defaults)
        record = TopicRecord(
            name,
            uuid.uuid4().hex,
            partitions,
            self._clock.wall_ms(),
            config=plain,
            internal=internal,
        )
        await self.catalog.check_free(name)
        return record if check_only else await self._work.create(record)

    async def delete_topic(self, name: str) -> None:
        """Clients see it no more when this returns; its bytes go in the background."""
        await self._work.delete(self.topic(name))
        self._on_change()

    async def deletions_done(self) -> None:
        """Waits until no deletion is under way here."""
        await self._work.deletions_done()

    async def add_partitions(self, name: str, total: int, *, check_only: bool = False) -> None:
        """Raises `InvalidInput` if `total` is not more than there are."""
        record = self.topic(name)
        check_partitions(total)
        _check_more(record, total)
        if check_only:
            return

        def more(known: TopicRecord) -> TopicRecord:
            _check_more(known, total)
            return msgspec.structs.replace(known, partitions=total)

        await self._work.register(await self.catalog.change(record, more))

    async def alter_config(
        self, name: str, config: dict[str, str], *, check_only: bool = False
    ) -> None:
        """Replaces the topic's own settings. Raises `InvalidInput`."""
        record = self.topic(name)
        plain = check_config(config, self.defaults)
        if not check_only:
            await self.catalog.change(
                record, lambda known: msgspec.structs.replace(known, config=plain)
            )
            self._on_change()

    async def assign(self, name: str, number: int, nodes: Sequence[int]) -> None:
        """Says which storage nodes a partition is to lie on; none: the load decides again (K13).

        Its owner goes on in a new ledger there, and repair moves the others.
        """

        def assigned(known: TopicRecord) -> TopicRecord:
            kept = {n: where for n, where in known.assigned.items() if n != number}
            wanted = {number: tuple(nodes)} if nodes else {}
            return msgspec.structs.replace(known, assigned=kept | wanted)

        await self.catalog.change(self.topic(name), assigned)
        self._on_change()

    async def moving(self, name: str) -> dict[int, Moving]:
        """Those partitions of a topic that do not yet lie where they are wanted."""
        record, found = self.topic(name), {}
        stored = await self.catalog.partitions(record.id) if record.assigned else []
        for partition in stored:
            wanted = frozenset(record.assigned.get(partition.partition, ()))
            whole = await read_whole(self._coordinator, partition)
            # Ledgers from when the topic had more copies have no room there, and stay.
            fitting = [i for i in whole.ledgers if i.placement.quorum.ensemble <= len(wanted)]
            there = frozenset(n for info in fitting for n in info.placement.nodes)
            if wanted and not there <= wanted:
                found[partition.partition] = Moving(there, wanted)
        return found

    # Upkeep

    async def maintain(self) -> None:
        """Closes old ledgers and drops expired ones (L11)."""
        now_ms = self._time.now_ms()
        for partition in self.partitions():
            try:
                await _maintain(partition, now_ms)
            except DovetailError as error:
                _log.warning("retention failed", partition=partition.name, error=str(error))


def _check_more(record: TopicRecord, total: int) -> None:
    if total <= record.partitions:
        raise InvalidInput(
            f"topic {record.name!r} has {record.partitions} partitions; their number can only grow"
        )


async def _maintain(partition: Partition, now_ms: int) -> None:
    config = partition.config
    for ledger in partition.open_ledgers[-1:]:
        age_ms = now_ms - ledger.info.opened_ms
        expired = config.deletes and (
            0
            <= config.retention_ms
            < now_ms - max(ledger.index.timestamp_max, ledger.info.opened_ms)
        )
        if ledger.index.payload_bytes and (age_ms >= config.roll_age_ms or expired):
            partition.roll()

    if config.deletes:
        await _let_expired_go(partition, now_ms)


async def _let_expired_go(partition: Partition, now_ms: int) -> None:
    while True:
        ledgers, ended_ms = await partition.chain.oldest()
        log_start = chain.expired_before(
            ledgers,
            ended_ms=ended_ms,
            log_start=partition.log_start,
            total_bytes=partition.payload_bytes,
            now_ms=now_ms,
            retention_ms=partition.config.retention_ms,
            retention_bytes=partition.config.retention_bytes,
        )
        if log_start <= partition.log_start:
            return
        await partition.trim(log_start)
