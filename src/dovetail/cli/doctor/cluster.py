"""What the cluster does: health of nodes, owners of partitions, copies, consumers that fall behind.

The health comes over HTTP from any overseer; partitions and lag over the Kafka protocol, so that
they are judged on any Kafka too; the copies from the coordination service, which knows which
ledger lies where.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail.admin.cluster import StorageAway, storage_away
from dovetail.admin.groups import list_groups
from dovetail.admin.kafka import Kafka, Metadata
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
    """Nodes that are not healthy, as an overseer sees them, each with its reasons."""

    url: str
    answers: bool = False
    nodes: int = 0
    ailing: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class CopiesFact:
    """Storage nodes that are away, with the ledgers that still name them."""

    nodes: int = 0
    away: Mapping[int, int] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of one group, at two moments."""

    group: str
    members: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class TopicsFact:
    """Partitions, and those that nobody serves."""

    topics: int
    partitions: int
    without_leader: tuple[str, ...]


def gather_health(node: NodeHttp, *, limit_s: float) -> HealthFact:
    """Asks the node for the cluster as its overseer sees it."""
    try:
        report = get(node, "/v1/cluster", ClusterReport, limit_s=limit_s)
    except Unreachable as error:
        return HealthFact(node.url, error=str(error))
    except DovetailError as error:
        return HealthFact(node.url, answers=True, error=str(error))
    ailing = tuple(
        f"{found.name} is {found.health}: {'; '.join(found.reasons) or 'no reason given'}"
        for found in report.nodes
        if found.health != "healthy"
    )
    return HealthFact(node.url, True, len(report.nodes), ailing)


def judge_health(fact: HealthFact) -> Finding:
    """Whether every node reports itself healthy."""
    if fact.error:
        return skipped("health", fact.error)
    if fact.ailing:
        return failed(
            "health",
            "; ".join(fact.ailing[:NAMED_MAX]),
            fix="read the log of that node, and docs/operations.md",
        )
    return ok("health", f"all {fact.nodes} nodes are healthy" if fact.nodes > 1 else "healthy")


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
            fix="wait some seconds for a takeover; then see which node is away, and "
            "docs/operations.md",
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
            f"fewer copies than wanted while away: {named}",
            fix=f"start it again; after {repair_after_ms / 60_000:g} minutes others take its "
            "place. For good: dovetail storage drain NUMBER",
        )
    return ok("copies", f"all {fact.nodes} storage nodes are there")


def gather_lag(kafka: Kafka, *, sample_s: float) -> list[GroupLag]:
    """The lag of every group that has one, now and `sample_s` later."""
    first = {found.group: found.lag for found in list_groups(kafka)}
    time.sleep(sample_s)
    return [
        GroupLag(found.group, found.members, before, found.lag)
        for found in list_groups(kafka)
        if (before := first.get(found.group)) is not None and found.lag is not None
    ]


def judge_lag(groups: list[GroupLag]) -> Finding:
    """Whether somebody reads less than is written."""
    growing = [one for one in groups if one.after > one.before]
    alone = [one for one in growing if one.members == 0]
    if alone:
        return warning(
            "groups",
            f"no member reads, and the lag grows: {_named([_grown(one) for one in alone])}",
            fix="start their consumers; a group that is not wanted any more goes by itself "
            "(groups.offsets_retention_ms)",
        )
    if growing:
        return warning(
            "groups",
            f"the lag grows: {_named([_grown(one) for one in growing])}",
            fix="look again (dovetail top); if it lasts: more members, more partitions, or a "
            "faster handler",
        )
    if not groups:
        return ok("groups", "none yet")
    total = sum(one.after for one in groups)
    return ok("groups", f"{len(groups)}, none falls behind; {total:,} records to read")


def _grown(one: GroupLag) -> str:
    return f"{one.group} (from {one.before:,} to {one.after:,})"


def _named(names: "list[str] | tuple[str, ...]") -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
