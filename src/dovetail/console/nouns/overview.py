"""The cluster at a glance: health, what needs attention, nodes, totals.

Each total is requested separately; one that is unknown is None and hides nothing of the others.
The nodes are those that hold their lease, as they describe themselves; an overseer also knows the
latency and the topics of each.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dovetail import __version__
from dovetail.admin.attention import Facts, Finding, Health, health_of
from dovetail.admin.dead.letter import DeadSource
from dovetail.admin.groups import Group
from dovetail.admin.pipelines import Pipeline
from dovetail.admin.timelines import TimelineSummary
from dovetail.console.desk import Desk
from dovetail.console.nouns.dead import find_dead
from dovetail.console.nouns.groups import all_groups
from dovetail.console.nouns.timelines import list_timelines
from dovetail.console.nouns.topics import TopicRow, topic_rows
from dovetail.console.web.endpoint import Asked, Endpoint, asked_by_node
from dovetail.coordination.membership import BROKER_ROLE
from dovetail.errors import DovetailError, NotFound
from dovetail.node.overseer import ClusterReport, NodeReport, reported

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
    health: Health
    #: What somebody should look at, the worst first; empty if all is well.
    attention: list[Finding]
    nodes: list[NodeReport]
    totals: Totals


async def show_overview(desk: Desk, _: Asked[None, None]) -> Overview:
    """Answers also while the node starts, with what is known by then."""
    settings = desk.settings
    ready, reasons = desk.node.ready()
    insight = desk.node.insight
    me = None if insight is None else insight.me()
    members = {} if insight is None else insight.members()
    report = desk.node.cluster()
    nodes = [reported(member) for _, member in sorted(members.items())]
    if report is not None:
        nodes = report.nodes

    asked = _Answers()
    if me is not None and BROKER_ROLE in me.roles:
        asked = await _ask(desk)
    attention = desk.attention.look(_facts(desk, nodes, asked), now_ms=desk.clock.wall_ms())

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
        health=health_of(attention),
        attention=attention,
        nodes=nodes,
        totals=_totals(asked),
    )


@dataclass(slots=True)
class _Answers:
    """What was answered; None is not known, and `trouble` says why."""

    topics: list[TopicRow] | None = None
    groups: list[Group] | None = None
    timelines: list[TimelineSummary] | None = None
    dead: list[DeadSource] | None = None
    pipelines: list[Pipeline] | None = None
    trouble: dict[str, str] = field(default_factory=dict)


async def _ask(desk: Desk) -> _Answers:
    answers = _Answers()

    # Calls, and not coroutines: one whose request ends before it is asked would never be awaited.
    async def ask(noun: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result | None:
        try:
            return await work()
        except DovetailError as error:
            answers.trouble[noun] = str(error).partition("\n")[0]
            return None

    topics, groups, timelines, dead, pipelines = await asyncio.gather(
        ask("topic", partial(topic_rows, desk, internal=False)),
        ask("group", partial(all_groups, desk)),
        ask("timeline", partial(list_timelines, desk, asked_by_node(None))),
        ask("dead", partial(find_dead, desk, None, None, limit=0)),
        ask("pipeline", partial(desk.kafka.run, desk.pipelines.list)),
    )
    answers.topics = topics
    answers.groups = groups
    answers.timelines = None if timelines is None else timelines.timelines
    answers.dead = None if dead is None else dead.sources
    answers.pipelines = pipelines
    return answers


def _facts(desk: Desk, nodes: list[NodeReport], asked: _Answers) -> Facts:
    # What a node registered is some seconds old; this one knows better of itself.
    here, reasons = desk.settings.node.node_id, (*desk.node.ready()[1], *desk.node.unwell())
    judged = [
        msgspec.structs.replace(node, reasons=reasons) if node.node_id == here else node
        for node in nodes
    ]
    insight = desk.node.insight
    return Facts(
        nodes=judged,
        missing=[] if insight is None else insight.missing(),
        partitions_without_owner=sum(row.partitions_without_owner for row in asked.topics or ()),
        groups=asked.groups or (),
        timelines=asked.timelines or (),
        dead=asked.dead or (),
        pipelines=asked.pipelines or (),
        unknown=asked.trouble,
    )


def _totals(asked: _Answers) -> Totals:
    found: dict[str, Any] = {}
    if asked.topics is not None:
        rows = asked.topics
        found |= {
            "topics": len(rows),
            "partitions": sum(row.partitions for row in rows),
            "partitions_without_owner": sum(row.partitions_without_owner for row in rows),
            "records": _sum(row.records for row in rows),
            "records_per_s": _sum(row.records_per_s for row in rows),
            "bytes": sum(row.bytes for row in rows),
            "term_highest": max((row.term_highest for row in rows), default=0),
        }

    if asked.groups is not None:
        # A group without a position has no lag (`admin/groups.py`), and is not in the sum.
        found |= {
            "groups": len(asked.groups),
            "lag": sum(group.lag or 0 for group in asked.groups),
        }

    if asked.timelines is not None:
        found["timelines"] = len(asked.timelines)
        for state in ("waiting", "due", "leased"):
            found[state] = sum(getattr(row, state) or 0 for row in asked.timelines)

    if asked.dead is not None:
        found["dead"] = _sum(source.count for source in asked.dead)
    return Totals(**found)


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
