"""What handlers work on."""

from dataclasses import dataclass
from typing import Protocol

from dovetail.clock import Clock
from dovetail.log.groups.coordinator import GroupCoordinator
from dovetail.log.service import Log


class KafkaMetrics(Protocol):
    """What is counted at the front door."""

    def request(self, api: str, seconds: float) -> None: ...

    def error(self, api: str, code: str) -> None: ...

    def produced(self, topic: str, records: int, size: int) -> None: ...

    def fetched(self, topic: str, size: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One node, as its Kafka clients see it; `host` and `port` are what they are told."""

    log: Log
    groups: GroupCoordinator
    clock: Clock
    metrics: KafkaMetrics
    cluster_id: str
    node_id: int
    host: str
    port: int
    topic_auto_create: bool
    partitions_default: int
    #: Copies of each record, which Kafka calls the replication factor.
    copies: int
    #: Settings of the node that DescribeConfigs shows for a broker.
    node_settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """Who asks, and in which version."""

    api_version: int
    client_id: str
    client_host: str
