"""Consumer groups over HTTP: members, positions, lag; move a group, delete it.

Positions are those that are committed. Where nothing is committed yet, the lag is all that the
partition holds. Positions outlive their topic; those of topics that are gone are not shown.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from dovetail.console.desk import Desk
from dovetail.console.kafka_link import Partition
from dovetail.console.nouns.messages import PartitionNumber
from dovetail.console.nouns.offsets import Bounds, all_bounds_of, bounds_of, parse_position, resolve
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import InvalidInput, NotFound, Refused

#: Topics that one request moves a group in.
_TOPICS_MAX = 1_000


class GroupRow(Struct, frozen=True):
    """A group in the list."""

    group: str
    state: str
    members: int
    lag: int | None
    topics: list[str]
    consumed_per_s: float | None


class GroupList(Struct, frozen=True):
    """All groups by name."""

    groups: list[GroupRow]


class GroupPartition(Struct, frozen=True):
    """A group's position in a partition, and who reads it."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    client: str | None
    host: str | None
    member: str | None


class PartitionName(Struct, frozen=True):
    """A partition."""

    topic: str
    partition: int


class GroupMember(Struct, frozen=True):
    """A member and what it reads."""

    member: str
    client: str
    host: str
    partitions: list[PartitionName]


class GroupShown(Struct, frozen=True):
    """A group with its members and positions."""

    group: str
    state: str
    members: int
    lag: int | None
    consumed_per_s: float | None
    partitions: list[GroupPartition]
    member_list: list[GroupMember]


class GroupReset(Struct, frozen=True, forbid_unknown_fields=True):
    """Where a group is to go on: in all topics that it reads, or in these."""

    to: Annotated[
        str, Meta(max_length=100, description="earliest, latest, offset:N, time:MS or time:ISO.")
    ]
    topics: Annotated[list[str], Meta(max_length=_TOPICS_MAX)] = []
    partition: PartitionNumber | None = None
    dry_run: bool = False


class GroupMove(Struct, frozen=True):
    """A position before and after."""

    topic: str
    partition: int
    before: int | None
    after: int


class GroupMoved(Struct, frozen=True):
    """What a reset did, or would do."""

    group: str
    changed: bool
    partitions: list[GroupMove]


async def list_groups(desk: Desk, _: Asked[None, None]) -> GroupList:
    """Lag is over all partitions; `null` if one of them did not answer."""
    return await group_list(desk)


async def group_list(desk: Desk) -> GroupList:
    """The list, as the page and the live stream show it."""
    found = await desk.kafka.ask(
        "listing groups", lambda admin: {"all": admin.list_consumer_groups()}
    )
    listing = found["all"]
    names = sorted(group.group_id for group in listing.valid)
    descriptions = await _describe(desk, names)
    committed = {name: await _committed(desk, name) for name in names}
    known = {facts.name for facts in desk.insight.topics() if facts.state == "ready"}
    places = {place for each in committed.values() for place in each if place[0] in known}
    bounds = await bounds_of(desk.kafka, sorted(places))
    rows = []
    for name in names:
        mine = {place: at for place, at in committed[name].items() if place[0] in known}
        lags = [_lag(bounds.get(place), at) for place, at in mine.items()]
        whole = all(lag is not None for lag in lags)
        rows.append(
            GroupRow(
                group=name,
                state=_state_of(descriptions[name]),
                members=len(descriptions[name].members),
                lag=sum(lag or 0 for lag in lags) if whole else None,
                topics=sorted({topic for topic, _ in mine}),
                consumed_per_s=_consumed_per_s(desk, name, mine),
            )
        )
    return GroupList(rows)


async def show_group(desk: Desk, asked: Asked[None, None]) -> GroupShown:
    """Members, and for each partition of its topics the position and the lag."""
    return await group_shown(desk, asked.path["group"])


async def group_shown(desk: Desk, name: str) -> GroupShown:
    """One group. Raises `NotFound`."""
    description = (await _describe(desk, [name]))[name]
    committed = await _committed(desk, name)
    if not committed and not description.members and _state_of(description) in ("dead", "unknown"):
        raise _no_group(name)
    owners = {
        (item.topic, item.partition): member
        for member in description.members
        for item in member.assignment.topic_partitions
    }
    shown = _partitions_of(desk, {topic for topic, _ in (*committed, *owners)})
    bounds = await bounds_of(desk.kafka, shown)
    rows = [_row(key, bounds.get(key), committed.get(key), owners.get(key)) for key in shown]
    whole = all(row.lag is not None for row in rows)
    return GroupShown(
        group=name,
        state=_state_of(description),
        members=len(description.members),
        lag=sum(row.lag or 0 for row in rows) if whole else None,
        consumed_per_s=_consumed_per_s(desk, name, committed),
        partitions=rows,
        member_list=[
            GroupMember(
                member=member.member_id,
                client=member.client_id,
                host=member.host,
                partitions=[
                    PartitionName(item.topic, item.partition)
                    for item in member.assignment.topic_partitions
                ],
            )
            for member in description.members
        ],
    )


def _row(
    key: Partition, bounds: Bounds | None, committed: int | None, member: Any
) -> GroupPartition:
    return GroupPartition(
        topic=key[0],
        partition=key[1],
        committed=committed,
        end=None if bounds is None else bounds.end,
        lag=_lag(bounds, committed),
        client=None if member is None else member.client_id,
        host=None if member is None else member.host,
        member=None if member is None else member.member_id,
    )


def _consumed_per_s(desk: Desk, name: str, committed: dict[Partition, int]) -> float | None:
    """How fast its positions grow, in topics that are there."""
    ready = {facts.name for facts in desk.insight.topics() if facts.state == "ready"}
    return desk.rate(f"group/{name}", sum(at for (t, _), at in committed.items() if t in ready))


def _lag(bounds: Bounds | None, committed: int | None) -> int | None:
    if bounds is None:
        return None
    return max(0, bounds.end - (bounds.first if committed is None else committed))


async def reset_group(desk: Desk, asked: Asked[None, GroupReset]) -> GroupMoved:
    """Refused while the group has members, which would overwrite the new position."""
    name, wanted = asked.path["group"], asked.body
    position = parse_position(wanted.to)
    members = await _member_count(desk, name)
    if members and not wanted.dry_run:
        raise Refused(
            f"group {name!r} has active members ({members}), which would overwrite the new "
            "position; stop them first"
        )
    before = await _committed(desk, name)
    places = _places_to_move(desk, name, wanted, before)
    after = await resolve(desk.kafka, position, await all_bounds_of(desk.kafka, places))
    moves = [GroupMove(*place, before.get(place), after[place]) for place in places]
    if not wanted.dry_run:
        await _alter(desk, name, moves)
    return GroupMoved(name, not wanted.dry_run, moves)


def _places_to_move(
    desk: Desk, name: str, wanted: GroupReset, before: dict[Partition, int]
) -> list[Partition]:
    for topic in wanted.topics:
        desk.insight.topic(topic)
    if not wanted.topics and not before:
        raise NotFound(f"group {name!r} has no positions; say in which topics to set them")
    listed = _partitions_of(desk, set(wanted.topics) or {topic for topic, _ in before})
    chosen = [key for key in listed if wanted.partition is None or key[1] == wanted.partition]
    if not chosen:
        raise InvalidInput(f"no partition {wanted.partition} in the topics of group {name!r}")
    return chosen


async def _alter(desk: Desk, name: str, moves: list[GroupMove]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    from dovetail.console.kafka_link import told

    doing = f"moving group {name!r}"
    request = ConsumerGroupTopicPartitions(
        name, [TopicPartition(move.topic, move.partition, move.after) for move in moves]
    )
    found = await desk.kafka.ask(
        doing, lambda admin: admin.alter_consumer_group_offsets([request]), changes=True
    )
    for result in found.values():
        for item in result.topic_partitions:
            if item.error is not None:
                raise told(f"{doing} at {item.topic}-{item.partition}", KafkaException(item.error))


async def delete_group(desk: Desk, asked: Asked[None, None]) -> None:
    """Deletes the group with its positions. Refused while it has members."""
    name = asked.path["group"]
    members = await _member_count(desk, name)
    if members:
        raise Refused(f"group {name!r} has active members ({members}); stop them first")
    await desk.kafka.ask(
        f"deleting group {name!r}",
        lambda admin: admin.delete_consumer_groups([name]),
        changes=True,
    )


async def _describe(desk: Desk, names: list[str]) -> dict[str, Any]:
    if not names:
        return {}
    for name in names:
        _check_name(name)
    return await desk.kafka.ask(
        "describing groups", lambda admin: admin.describe_consumer_groups(names)
    )


async def _member_count(desk: Desk, name: str) -> int:
    """None if it does not exist yet, which is no error when it is moved."""
    try:
        return len((await _describe(desk, [name]))[name].members)
    except NotFound:
        return 0


async def _committed(desk: Desk, name: str) -> dict[Partition, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    _check_name(name)
    request = ConsumerGroupTopicPartitions(name)
    found = await desk.kafka.ask(
        f"reading the positions of group {name!r}",
        lambda admin: admin.list_consumer_group_offsets([request]),
    )
    return {
        (item.topic, item.partition): item.offset
        for result in found.values()
        for item in result.topic_partitions
        if item.error is None and item.offset >= 0
    }


def _check_name(name: str) -> None:
    """The client takes names as text without an end in the middle."""
    if not name or "\0" in name or len(name) > 1_000:
        raise InvalidInput("a group's name has 1 to 1000 characters, none of them zero")


def _partitions_of(desk: Desk, names: set[str]) -> list[Partition]:
    """All partitions of the topics that are there."""
    counts = {f.name: f.partitions for f in desk.insight.topics() if f.state == "ready"}
    return [(name, n) for name in sorted(names & counts.keys()) for n in range(counts[name])]


def _state_of(description: Any) -> str:
    return str(description.state.name).lower().replace("_", " ")


def _no_group(name: str) -> NotFound:
    return NotFound(f"no group {name!r}; a consumer makes one when it commits or joins")


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
