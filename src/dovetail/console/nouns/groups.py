"""Consumer groups over HTTP: members, positions, lag; move a group, delete it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from dovetail.admin import groups
from dovetail.admin.attention import SNAPSHOTS
from dovetail.admin.groups import Group, GroupMove
from dovetail.admin.kafka import Partition
from dovetail.admin.positions import Bounds, parse_position
from dovetail.console.desk import Desk
from dovetail.console.nouns.messages import PartitionNumber
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.console.web.query import ListQuery, page_of
from dovetail.errors import TopicUnknown
from dovetail.node.insight import Ends, Insight

#: Topics that one request moves a group in.
_TOPICS_MAX = 1_000


class GroupRow(Struct, frozen=True):
    """A group in the list; `lag` is null where it is unknown."""

    group: str
    state: str
    members: int
    lag: int | None
    topics: list[str]
    consumed_per_s: float | None
    shares: bool


class GroupsQuery(ListQuery, frozen=True, forbid_unknown_fields=True):
    """Which groups, in which order."""

    topic: Annotated[str, Meta(max_length=249, description="Only readers of this topic.")] = ""
    internal: Annotated[
        bool, Meta(description="Include those in which teams keep their snapshots.")
    ] = False


class GroupList(Struct, frozen=True):
    """Groups, by name unless another order is wanted; `total` of them match."""

    groups: list[GroupRow]
    total: int
    #: Of all that match; groups without a position have none.
    lag: int
    #: What groups read, whichever match.
    topics: list[str]


class GroupShown(Group, frozen=True, kw_only=True):
    """A group with its members and positions."""

    consumed_per_s: float | None
    #: Records that a share group has accepted, a second.
    accepted_per_s: float | None


class GroupReset(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a group is to go on: in all topics that it reads, or in these."""

    to: Annotated[
        str,
        Meta(
            max_length=100,
            description="beginning, end, an offset (offset:N) or a time (time:MS or time:ISO).",
        ),
    ]
    topics: Annotated[list[str], Meta(max_length=_TOPICS_MAX)] = []
    partition: PartitionNumber | None = None
    dry_run: bool = False


class GroupMoved(Struct, frozen=True):
    """What a reset changed, or would change."""

    group: str
    changed: bool
    partitions: list[GroupMove]


_COLUMNS: dict[str, Callable[[GroupRow], Any]] = {
    "group": lambda row: row.group,
    "state": lambda row: row.state,
    "members": lambda row: row.members,
    "lag": lambda row: row.lag,
    "consumed_per_s": lambda row: row.consumed_per_s,
}


async def list_groups(desk: Desk, asked: Asked[GroupsQuery, None]) -> GroupList:
    """Lag is the sum over the partitions with a committed position; `null` if it is unknown."""
    query = asked.query
    rows = [
        GroupRow(
            group=group.group,
            state=group.state,
            members=group.members,
            lag=group.lag,
            topics=group.topics,
            consumed_per_s=_consumed_per_s(desk, group),
            shares=group.shares,
        )
        for group in await all_groups(desk)
        if query.internal or not group.group.startswith(SNAPSHOTS)
    ]
    read = sorted({topic for row in rows for topic in row.topics})
    if query.topic:
        rows = [row for row in rows if query.topic in row.topics]
    found, total = page_of(rows, query, lambda row: row.group, _COLUMNS)
    lag = sum(row.lag or 0 for row in rows if query.filter in row.group)
    return GroupList(found, total, lag, read)


async def all_groups(desk: Desk) -> list[Group]:
    """All groups by name; what their topics hold is known here."""
    await desk.insight.look()
    return await desk.kafka.run(groups.list_groups, TopicsHere(desk.insight))


class TopicsHere:
    """A `TopicView` of what this node knows; a thread reads it while the node goes on."""

    def __init__(self, insight: Insight) -> None:
        self._insight = insight
        self._topics: dict[str, list[Ends | None]] = {}

    def partitions(self, *topics: str) -> list[Partition]:
        return [(topic, number) for topic in topics for number in range(len(self._of(topic)))]

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, Bounds]:
        found = {}
        for topic, number in partitions:
            known = self._of(topic)
            ends = known[number] if number < len(known) else None
            if ends is not None:
                found[topic, number] = Bounds(ends.first, ends.end)
        return found

    def _of(self, topic: str) -> list[Ends | None]:
        if topic not in self._topics:
            try:
                self._topics[topic] = self._insight.partition_ends(topic)
            except TopicUnknown:
                self._topics[topic] = []
        return self._topics[topic]


async def show_group(desk: Desk, asked: Asked[None, None]) -> GroupShown:
    """Members, and for each partition of its topics the position and the lag."""
    await desk.insight.look()
    view = TopicsHere(desk.insight)
    group = await desk.kafka.run(groups.describe_group, asked.path["group"], view)
    fields = msgspec.structs.asdict(group)
    accepted = None
    if group.outcomes is not None:
        accepted = desk.rate(f"group/{group.group}/accepted", group.outcomes.accepted)
    consumed = _consumed_per_s(desk, group)
    return GroupShown(**fields, consumed_per_s=consumed, accepted_per_s=accepted)


def _consumed_per_s(desk: Desk, group: Group) -> float | None:
    """How fast its positions grow, in topics that exist."""
    return desk.rate(f"group/{group.group}", group.consumed)


async def reset_group(desk: Desk, asked: Asked[None, GroupReset]) -> GroupMoved:
    """Refused while the group has members, which would overwrite the new position."""
    name, wanted = asked.path["group"], asked.body
    moves = await desk.kafka.run(
        groups.reset_group,
        name,
        parse_position(wanted.to),
        topics=wanted.topics,
        partition=wanted.partition,
        dry_run=wanted.dry_run,
    )
    return GroupMoved(name, not wanted.dry_run, moves)


async def delete_group(desk: Desk, asked: Asked[None, None]) -> None:
    """Deletes the group with its positions. Refused while it has members."""
    await desk.kafka.run(groups.delete_group, asked.path["group"])


ENDPOINTS = (
    Endpoint("GET", "/v1/groups", list_groups, "List groups", GroupList, query=GroupsQuery),
    Endpoint(
        "POST",
        "/v1/groups/{group}/reset",
        reset_group,
        "Move a group to another position",
        GroupMoved,
        body=GroupReset,
        action="group.reset",
    ),
    Endpoint("GET", "/v1/groups/{group}", show_group, "Show a group", GroupShown),
    Endpoint(
        "DELETE",
        "/v1/groups/{group}",
        delete_group,
        "Delete a group with its positions",
        status=204,
        action="group.delete",
    ),
)
