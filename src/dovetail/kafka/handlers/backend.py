"""The log, groups and services that handlers call."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple, Protocol

from dovetail.access import EVERYTHING, Access, AccessRegistry, Quotas
from dovetail.background import Alarm, later
from dovetail.clock import Clock
from dovetail.kafka.codec import messages as m
from dovetail.kafka.handlers.fetch_sessions import FetchSessions
from dovetail.kafka.handlers.share.sessions import ShareSessions
from dovetail.log.compaction.compactor import CompactionReport
from dovetail.log.examining import Store
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.open_ledger import Appended
from dovetail.log.partition import Partition
from dovetail.log.service import Log
from dovetail.log.share.registry import ShareRegistry
from dovetail.log.transactions.registry import TransactionRegistry
from dovetail.record_batch import BatchHeader

#: Topics that are remembered, also those that have gone since.
_TOLD_MAX: Final = 200_000

#: How often requests that wait are looked at; a client is told that its time is over no later.
TIME_OUT_STEP_S: Final = 0.05


class KafkaMetrics(Protocol):
    """What is counted for each request."""

    def request(self, api: str, seconds: float) -> None: ...

    def error(self, api: str, code: str) -> None: ...

    def produced(self, topic: str, records: int, size: int) -> None: ...

    def fetched(self, topic: str, records: int, size: int) -> None: ...


class Due(Protocol):
    """Topics whose records may be due later."""

    def append(
        self, partition: Partition, topic: str, number: int, batch: memoryview, header: BatchHeader
    ) -> "asyncio.Future[Appended]":
        """Stores a checked batch. Raises `InvalidBatch` for due records that cannot be."""
        ...

    def append_now(
        self,
        partition: Partition,
        append: Store,
        topic: str,
        number: int,
        batch: memoryview,
        header: BatchHeader,
    ) -> "asyncio.Future[Appended]":
        """Stores a checked batch of a transaction; what is due later appears if that commits."""
        ...


class BrokerAddress(NamedTuple):
    """A broker, at the address that clients get."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Told:
    """What clients were last told of each topic: made, and encoded, when something has changed.

    At thousands of partitions an answer about all costs what has changed and not what exists.
    """

    def __init__(self) -> None:
        self._world: tuple[object, ...] = ()
        self._topics: dict[str, tuple[int, m.MetadataResponseTopic]] = {}

    def begin(self, *world: object) -> None:
        """Forgets everything if what concerns all topics has changed."""
        if world != self._world:
            self._world = world
            self._topics.clear()

    def of(
        self, topic_id: str, version: int, make: Callable[[], m.MetadataResponseTopic]
    ) -> m.MetadataResponseTopic:
        """The topic in this version."""
        known = self._topics.get(topic_id)
        if known is None or known[0] != version:
            if len(self._topics) >= _TOLD_MAX:
                self._topics.clear()
            known = self._topics[topic_id] = (version, make())
        return known[1]


class TimeOuts:
    """What is called when the time of a request is over, unless it has ended before.

    Nearly every one has, so they are looked at together from time to time: a timer for each would
    cost as much as decoding it.
    """

    def __init__(self) -> None:
        self._due_s: dict[Callable[[], None], float] = {}
        self._alarm: Alarm | None = None

    def __len__(self) -> int:
        return len(self._due_s)

    def add(self, late: Callable[[], None], timeout_s: float) -> None:
        """Calls `late` after `timeout_s`, or a step later."""
        self._due_s[late] = monotonic() + timeout_s
        if self._alarm is None or not self._alarm.is_set:
            self._alarm = later(TIME_OUT_STEP_S, self._look, name="kafka/time-out")

    def discard(self, late: Callable[[], None]) -> None:
        """It is not called any more."""
        self._due_s.pop(late, None)

    def _look(self) -> None:
        now_s = monotonic()
        for late in [late for late, due_s in self._due_s.items() if due_s <= now_s]:
            late()  # If it fails it stays, and is called again.
            self.discard(late)
        if self._due_s:
            self._alarm = later(TIME_OUT_STEP_S, self._look, name="kafka/time-out")


@dataclass(frozen=True, slots=True)
class Backend:
    """One node, as its Kafka clients see it."""

    log: Log
    groups: GroupRegistry
    transactions: TransactionRegistry
    shares: ShareRegistry
    compaction: CompactionReport
    clock: Clock
    metrics: KafkaMetrics
    cluster_id: str
    node_id: int
    #: All brokers that are alive, this one among them.
    brokers: Callable[[], dict[int, BrokerAddress]]
    #: Those that went moments ago, which clients may still be leaving.
    brokers_gone: Callable[[], dict[int, BrokerAddress]]
    topic_auto_create: bool
    partitions_default: int
    #: How many storage nodes belong to the cluster; a record can have so many copies.
    storage_nodes: Callable[[], int]
    #: Those of them that are there; None where there is but this node.
    storage_present: Callable[[], Collection[int] | None]
    #: Settings of the node that DescribeConfigs shows for a broker.
    node_settings: dict[str, str]
    #: Users and rules; users can be made before anybody has to log in.
    registry: AccessRegistry
    #: Whether rules are looked at; if not, everybody may do everything.
    authorizes: bool
    quotas: Quotas
    sessions: FetchSessions
    share_sessions: ShareSessions
    due: Due
    told: Told
    time_outs: TimeOuts = field(default_factory=TimeOuts)


class Call(NamedTuple):
    """Who asks, and in which version."""

    api_version: int
    client_id: str
    client_host: str
    access: Access = EVERYTHING
    #: What is called when the client's connection ends; None where there is none.
    on_lost: set[Callable[[], None]] | None = None
