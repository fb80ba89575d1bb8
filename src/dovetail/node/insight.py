"""What a node knows of its cluster, beyond what a Kafka client can ask.

It lists topics in every state, with terms, owners, and the chains of ledgers with their storage
nodes and sizes. All of it comes from the coordination service, so any broker answers for the whole
cluster. The exception is the size of a ledger that is being written: only its owner knows it, and
elsewhere it is None. Nothing here writes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dovetail.backup.taking import Backups
from dovetail.coordination.membership import (
    BROKER_ROLE,
    STORAGE_ROLE,
    Member,
    Membership,
    MissingNode,
)
from dovetail.errors import TopicUnknown, Unavailable
from dovetail.log.ends.held import Ends
from dovetail.log.ends.seen import TopicEnds
from dovetail.log.groups.types import GroupId
from dovetail.log.owners import Place
from dovetail.log.service import Log
from dovetail.log.topic import TopicRecord
from dovetail.log.topic_settings import CONFIG_KEYS
from dovetail.node.broker import Broker
from dovetail.node.history import History
from dovetail.node.listener import Client
from dovetail.node.security import OwnWay
from dovetail.storage.chain import PartitionRecord
from dovetail.storage.identity import Disks
from dovetail.storage.repair.decommission import StorageStates
from dovetail.timeline.receiver import Receiver

__all__ = [
    "Client",
    "Ends",
    "Insight",
    "PartitionFacts",
    "TopicFacts",
    "TopicSetting",
    "missing_nodes",
]

#: Topics that are gone and still remembered, at least.
_SPARE = 1_000


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition, its owner and its chain."""

    number: int
    #: None if nobody alive owns it.
    owner: int | None
    term: int
    ledgers: int
    bytes_closed: int
    #: Of the ledgers that are being written; None if another node writes them.
    bytes_open: int | None
    #: Storage nodes of the newest ledger, by place.
    ensemble: tuple[int, ...]
    write_quorum: int | None
    ack_quorum: int | None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic in any state."""

    name: str
    id: str
    state: str
    internal: bool
    created_ms: int
    partitions: int
    partitions_without_owner: int
    term_highest: int
    #: It was made so that neither age nor size ends its records.
    kept_for_ever: bool


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """A setting of a topic and what it means."""

    name: str
    value: str
    is_default: bool
    doc: str


class Insight:
    """What a node sees of its cluster."""

    def __init__(
        self,
        broker: Broker | None,
        membership: Membership | None,
        *,
        describe: Callable[[], Member],
        missing: Callable[[], list[MissingNode]],
        listener: str,
        own_way: OwnWay,
        history: History,
        clients: Callable[[], list[Client]],
    ) -> None:
        """Without a `membership` the node is alone, and `describe` is all there is to say.

        `listener` is the address (host:port) at which this machine reaches the node.
        """
        self._broker = broker
        self._membership = membership
        self._describe = describe
        #: Nodes that should be there and are not.
        self.missing = missing
        self.listener = listener
        self.own_way = own_way
        self.history = history
        #: Who is connected to this node.
        self.clients = clients
        #: Gives messages of timelines to whoever asks by HTTP; None where none are served.
        self.receiver: Receiver | None = None
        #: Makes backups of what this node stores; None on a node that stores nothing.
        self.backups: Backups | None = None
        #: By topic: the version that its facts were made of, and who was alive.
        self._known: dict[str, tuple[int, frozenset[int], TopicFacts]] = {}

    def me(self) -> Member:
        """This node, as it describes itself."""
        return self._describe()

    def members(self) -> Mapping[int, Member]:
        """All nodes that hold their lease."""
        if self._membership is None:
            me = self._describe()
            return {me.node_id: me}
        return self._membership.members()

    @property
    def _served(self) -> Broker:
        if self._broker is None:
            others = [m.http for m in self.members().values() if BROKER_ROLE in m.roles and m.http]
            where = f"; ask {others[0]}" if others else ", and no broker is known now"
            raise Unavailable(
                f"this node does not have the role 'broker' and serves no topics{where}"
            )
        return self._broker

    @property
    def _log(self) -> Log:
        return self._served.log

    def topics(self) -> list[TopicFacts]:
        """All topics by name. Raises `Unavailable` on a node that is not a broker."""
        alive = self.brokers()
        records = sorted(self._log.catalog.all(), key=lambda record: record.name)
        return [self._facts(record, alive) for record in records]

    def topic(self, name: str) -> TopicFacts:
        """Raises `TopicUnknown`, `Unavailable`."""
        return self._facts(self._log.topic(name), self.brokers())

    def settings(self, name: str) -> list[TopicSetting]:
        """The settings of a topic by name, defaults filled in. Raises `TopicUnknown`."""
        record = self._log.topic(name)
        return [
            TopicSetting(key, value, key not in record.config, CONFIG_KEYS[key].doc)
            for key, value in sorted(self._log.config(record).as_strings().items())
        ]

    def brokers(self) -> frozenset[int]:
        """The brokers that hold their lease."""
        return frozenset(m.node_id for m in self.members().values() if BROKER_ROLE in m.roles)

    def coordinator_of(self, group: str) -> int | None:
        """The broker that coordinates a group; None while there is none. Raises `Unavailable`."""
        try:
            owner = self._served.groups.owner_of(GroupId(group))
        except TopicUnknown:
            return None
        return owner if owner in self.brokers() else None

    async def partitions(self, name: str) -> list[PartitionFacts]:
        """Raises `TopicUnknown`, `Unavailable`."""
        alive = self.brokers()
        record = self._log.topic(name)
        chains = {chain.partition: chain for chain in await self._log.catalog.partitions(record.id)}
        return [
            self._partition(record, number, chains.get(number), alive)
            for number in range(record.partitions)
        ]

    async def look(self) -> None:
        """Learns what has changed in the partitions of the cluster. Raises `Unavailable`."""
        log, alive = self._log, self.brokers()
        await self._served.seen.look(alive)
        if len(self._known) > 2 * len(log.catalog.all()) + _SPARE:
            self._known.clear()

    def ends(self, topic: str) -> TopicEnds:
        """What a topic holds, as of the last `look`. Raises `TopicUnknown`, `Unavailable`."""
        record = self._log.catalog.topic(topic)
        return self._served.seen.topic(record)

    def partition_ends(self, topic: str) -> list[Ends | None]:
        """Of each partition, as of the last `look`; None if its owner is silent. Raises as
        `ends`."""
        record = self._log.catalog.topic(topic)
        return [
            self._served.seen.partition(Place(record.id, number))
            for number in range(record.partitions)
        ]

    def _facts(self, record: TopicRecord, alive: frozenset[int]) -> TopicFacts:
        """Rebuilt only for topics that changed: of thousands, most do not."""
        version = self._log.version(record)
        known = self._known.get(record.id)
        if known is None or known[:2] != (version, alive):
            known = self._known[record.id] = (version, alive, self._made(record, alive))
        return known[2]

    def _made(self, record: TopicRecord, alive: frozenset[int]) -> TopicFacts:
        owners = [self._log.ownership(record, number) for number in range(record.partitions)]
        return TopicFacts(
            name=record.name,
            id=record.id,
            state=record.state.value,
            internal=record.internal,
            created_ms=record.created_ms,
            partitions=record.partitions,
            partitions_without_owner=sum(ownership.owner not in alive for ownership in owners),
            term_highest=max((ownership.term for ownership in owners), default=0),
            kept_for_ever={"retention.ms": "-1", "retention.bytes": "-1"}.items()
            <= record.config.items(),
        )

    def _partition(
        self, record: TopicRecord, number: int, chain: PartitionRecord | None, alive: frozenset[int]
    ) -> PartitionFacts:
        ownership = self._log.ownership(record, number)
        ledgers = () if chain is None else chain.ledgers
        newest = ledgers[-1].placement if ledgers else None
        return PartitionFacts(
            number=number,
            owner=ownership.owner if ownership.owner in alive else None,
            term=ownership.term,
            ledgers=0 if chain is None else chain.ledger_count,
            bytes_closed=0 if chain is None else chain.closed_bytes,
            bytes_open=self._bytes_open(record.name, number),
            ensemble=() if newest is None else newest.fragments[-1].nodes,
            write_quorum=None if newest is None else newest.quorum.write,
            ack_quorum=None if newest is None else newest.quorum.ack,
        )

    def _bytes_open(self, name: str, number: int) -> int | None:
        found = self._log.owned.open.get((name, number))
        return None if found is None else found.open_bytes


def missing_nodes(
    membership: Membership | None, disks: Disks | None, states: StorageStates | None
) -> list[MissingNode]:
    """Nodes that left without deregistering, and storage nodes that were never seen here."""
    if membership is None or disks is None or states is None:
        return []
    given_up = states.given_up()
    went = [one for one in membership.missing() if one.node_id not in given_up]
    known = {*membership.members(), *given_up, *(one.node_id for one in went)}
    unseen = sorted(disks.numbers() - known)
    return went + [MissingNode(number, f"node {number}", (STORAGE_ROLE,)) for number in unseen]
