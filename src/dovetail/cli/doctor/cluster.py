"""The state of the cluster: its nodes, owners of partitions, copies.

Nodes come over HTTP from any overseer; partitions over the Kafka protocol, so that this check also
works on any Kafka; copies from the coordination service, which knows where each ledger lies.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.admin.cluster import StorageAway, storage_away
from dovetail.admin.kafka import Metadata
from dovetail.admin.node_http import NodeHttp, get
from dovetail.cli.doctor.finding import Finding, failed, ok, skipped, warning
from dovetail.errors import DovetailError, Unreachable
from dovetail.node.overseer import ClusterReport

if TYPE_CHECKING:
    from dovetail.settings import Settings

#: Names that are shown in one line; the rest are counted.
NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class HealthFact:
    """The cluster as an overseer sees it, or why nobody says; whether HTTP answers at all."""

    nodes: ClusterReport | str
    answers: bool = True


@dataclass(frozen=True, slots=True)
class CopiesFact:
    """Storage nodes that are away, with the ledgers that still name them."""

    nodes: int = 0
    away: Mapping[int, int] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class TopicsFact:
    """Partitions, and those that nobody serves."""

    topics: int
    partitions: int
    without_leader: tuple[str, ...]


def gather_health(node: NodeHttp, *, limit_s: float) -> HealthFact:
    """Asks the node for the cluster as its overseer sees it."""
    try:
        return HealthFact(get(node, "/v1/cluster", ClusterReport, limit_s=limit_s))
    except Unreachable as error:
        return HealthFact(str(error), answers=False)
    except DovetailError as error:
        return HealthFact(str(error))


def gather_topics(metadata: Metadata) -> TopicsFact:
    """From the metadata of a broker."""
    orphans = tuple(f"{topic}-{number}" for topic, number in metadata.without_leader)
    return TopicsFact(len(metadata.topics), len(metadata.leaders()), orphans)


def judge_topics(fact: TopicsFact) -> Finding:
    """Whether every partition is served."""
    if fact.without_leader:
        return failed(
            "partitions",
            f"{len(fact.without_leader)} of {fact.partitions} have no leader: "
            f"{_named(fact.without_leader)}",
            fix="wait a few seconds for a takeover; then find the node that is down "
            "(docs/operations.md)",
        )
    return ok("partitions", f"{fact.partitions} in {fact.topics} topics, all with a leader")


def gather_copies(settings: "Settings") -> CopiesFact:
    """Asks the coordination service which storage nodes are away, and what they hold."""
    from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings

    async def read() -> StorageAway:
        etcd = EtcdSettings.of(settings.coordination)
        async with await EtcdCoordinator.open(etcd) as coordinator:
            return await storage_away(coordinator)

    try:
        found = asyncio.run(read())
    except DovetailError as error:
        return CopiesFact(error=str(error))
    return CopiesFact(found.nodes, found.ledgers)


def judge_copies(fact: CopiesFact | None, *, repair_after_ms: int) -> Finding:
    """None: one node alone, where there is one copy."""
    if fact is None:
        return skipped("copies", "one node alone keeps one copy; a cluster keeps more")
    if fact.error:
        return skipped("copies", f"cannot ask the coordination service: {fact.error}")
    if fact.away:
        named = ", ".join(
            f"storage node {number} ({left} ledgers)" for number, left in sorted(fact.away.items())
        )
        return warning(
            "copies",
            f"fewer copies than configured while these are down: {named}",
            fix=f"start it again; after {repair_after_ms / 60_000:g} minutes others take its "
            "place. For good: dovetail storage drain NUMBER",
        )
    return ok("copies", f"all {fact.nodes} storage nodes are up")


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
