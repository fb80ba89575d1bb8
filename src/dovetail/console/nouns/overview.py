"""The cluster at a glance: nodes, health with reasons, totals.

Each total is asked for on its own; one that is not known is None and hides nothing of the others.
The nodes are those that hold their lease, as they describe themselves; an overseer knows the
latency and the topics of each as well.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from msgspec import Struct

from dovetail import __version__
from dovetail.admin.groups import list_groups
from dovetail.console.desk import Desk
from dovetail.console.nouns.dead import find_dead
from dovetail.console.nouns.timelines import list_timelines
from dovetail.console.nouns.topics import TopicsQuery, list_topics
from dovetail.console.web.endpoint import Asked, Endpoint, asked_by_node
from dovetail.coordination.membership import BROKER_ROLE, Member
from dovetail.errors import DovetailError, NotFound
from dovetail.node.overseer import ClusterReport, NodeReport

Result = TypeVar("Result")


class ThisNode(Struct, frozen=True):
    """The node that answers."""

    id: int
    name: str
    version: str
    roles: list[str]
    uptime_ms: int
    ready: bool
    reasons: list[str]
    kafka: str | None
    http: str | None


class ClusterKind(Struct, frozen=True):
    """Whether the node is alone (`embedded`) or one of a cluster (`etcd`)."""

    kind: str
    overseer: bool


class Degradation(Struct, frozen=True):
    """What keeps a node from serving fully."""

    where: str
    reason: str


class Totals(Struct, frozen=True):
    """Sums over the cluster; None is unknown."""

    topics: int | None = None
    partitions: int | None = None
    partitions_without_owner: int | None = None
    records: int | None = None
    records_per_s: float | None = None
    bytes: int | None = None
    groups: int | None = None
    lag: int | None = None
    timelines: int | None = None
    waiting: int | None = None
    due: int | None = None
    leased: int | None = None
    dead: int | None = None
    term_highest: int | None = None


class Overview(Struct, frozen=True):
    """The cluster at a glance."""

    node: ThisNode
    cluster: ClusterKind
    nodes: list[NodeReport]
    degradations: list[Degradation]
    totals: Totals


async def show_overview(desk: Desk, _: Asked[None, None]) -> Overview:
    """Answers also while the node starts, with what is known by then."""
    settings = desk.settings
    ready, reasons = desk.node.ready()
    insight = desk.node.insight
    me = None if insight is None else insight.me()
    members = {} if insight is None else insight.members()
    report = desk.node.cluster()
    nodes = [_node(member) for _, member in sorted(members.items())]
    if report is not None:
        nodes = report.nodes

    return Overview(
        node=ThisNode(
            id=settings.node.node_id,
            name=settings.node.name,
            version=__version__,
            roles=settings.node.roles.split(","),
            uptime_ms=round(desk.clock.monotonic_ms() - desk.started_ms),
            ready=ready,
            reasons=reasons,
            kafka=None if me is None else f"{me.host}:{me.port}",
            http=None if me is None else me.http,
        ),
        cluster=ClusterKind(settings.coordination.kind, report is not None),
        nodes=nodes,
        degradations=[Degradation(node.name, text) for node in nodes for text in node.reasons],
        totals=Totals() if me is None or BROKER_ROLE not in me.roles else await _totals(desk),
    )


def _node(member: Member) -> NodeReport:
    """A node as it describes itself; its latency and topics are known to overseers alone."""
    health = "leaving" if member.leaving else "degraded" if member.reasons else "healthy"
    return NodeReport(
        node_id=member.node_id,
        name=member.name,
        address=f"{member.host}:{member.port}",
        http=member.http,
        roles=member.roles,
        version=member.version,
        health=health,
        reasons=member.reasons,
        partitions=member.partitions,
        stored_bytes=member.stored_bytes,
        latency_ms=None,
        topics={},
    )


async def _totals(desk: Desk) -> Totals:
    topics, groups, timelines, dead = await asyncio.gather(
        _if_known(list_topics(desk, asked_by_node(TopicsQuery()))),
        _if_known(desk.kafka.run(list_groups)),
        _if_known(list_timelines(desk, asked_by_node(None))),
        _if_known(find_dead(desk, None, None, limit=0)),
    )

    found: dict[str, Any] = {}
    if topics is not None:
        rows = topics.topics
        found |= {
            "topics": len(rows),
            "partitions": sum(row.partitions for row in rows),
            "partitions_without_owner": sum(row.partitions_without_owner for row in rows),
            "records": _sum(row.records for row in rows),
            "records_per_s": _sum(row.records_per_s for row in rows),
            "bytes": sum(row.bytes for row in rows),
            "term_highest": max((row.term_highest for row in rows), default=0),
        }

    if groups is not None:
        # A group without a position has no lag (`admin/groups.py`), and is not in the sum.
        found |= {"groups": len(groups), "lag": sum(group.lag or 0 for group in groups)}

    if timelines is not None:
        rows_of = timelines.timelines
        found["timelines"] = len(rows_of)
        for state in ("waiting", "due", "leased"):
            found[state] = sum(getattr(row, state) or 0 for row in rows_of)

    if dead is not None:
        found["dead"] = _sum(source.count for source in dead.sources)
    return Totals(**found)


async def _if_known(work: Coroutine[Any, Any, Result]) -> Result | None:
    try:
        return await work
    except DovetailError:
        return None


def _sum(values: Iterable[Any]) -> Any:
    """None if one of them is unknown."""
    known = list(values)
    return None if None in known else sum(known)


async def show_cluster(desk: Desk, _: Asked[None, None]) -> ClusterReport:
    """The cluster as this overseer sees it; 404 on a node without the role."""
    report = desk.node.cluster()
    if report is None:
        raise NotFound(
            "this node is not an overseer; ask a node that has the role, or add it to node.roles"
        )
    return report


ENDPOINTS = (
    Endpoint("GET", "/v1/overview", show_overview, "The cluster at a glance", Overview),
    Endpoint("GET", "/v1/cluster", show_cluster, "Nodes, topics and owners", ClusterReport),
)
