"""Consumer groups over HTTP: members, positions, lag; move a group, delete it."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dovetail.admin import groups
from dovetail.admin.groups import Group, GroupMove
from dovetail.admin.positions import parse_position
from dovetail.console.desk import Desk
from dovetail.console.nouns.messages import PartitionNumber
from dovetail.console.web.endpoint import Asked, Endpoint

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


class GroupList(Struct, frozen=True):
    """All groups by name."""

    groups: list[GroupRow]


class GroupShown(Group, frozen=True, kw_only=True):
    """A group with its members and positions."""

    consumed_per_s: float | None


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


async def list_groups(desk: Desk, _: Asked[None, None]) -> GroupList:
    """Lag is the sum over the partitions with a committed position; `null` if it is unknown."""
    found = await desk.kafka.run(groups.list_groups)
    return GroupList(
        [
            GroupRow(
                group=group.group,
                state=group.state,
                members=group.members,
                lag=group.lag,
                topics=group.topics,
                consumed_per_s=_consumed_per_s(desk, group),
            )
            for group in found
        ]
    )


async def show_group(desk: Desk, asked: Asked[None, None]) -> GroupShown:
    """Members, and for each partition of its topics the position and the lag."""
    group = await desk.kafka.run(groups.describe_group, asked.path["group"])
    fields = msgspec.structs.asdict(group)
    return GroupShown(**fields, consumed_per_s=_consumed_per_s(desk, group))


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
    Endpoint("GET", "/v1/groups", list_groups, "List groups", GroupList),
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
