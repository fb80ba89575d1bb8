"""What handlers work on."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dovetail.access import EVERYTHING, Access, AccessRegistry, Quotas
from dovetail.clock import Clock
from dovetail.kafka.handlers.fetch_sessions import FetchSessions
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.service import Log
from dovetail.log.transactions.registry import TransactionRegistry


class KafkaMetrics(Protocol):
    """What is counted for each request."""

    def request(self, api: str, seconds: float) -> None: ...

    def error(self, api: str, code: str) -> None: ...

    def produced(self, topic: str, records: int, size: int) -> None: ...

    def fetched(self, topic: str, size: int) -> None: ...


class BrokerAddress(NamedTuple):
    """A broker, at the address that clients get."""

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Backend:
    """One node, as its Kafka clients see it."""

    log: Log
    groups: GroupRegistry
    transactions: TransactionRegistry
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


@dataclass(frozen=True, slots=True)
class Call:
    """Who asks, and in which version."""

    api_version: int
    client_id: str
    client_host: str
    access: Access = EVERYTHING
