"""Consumer groups: members, positions, lag; move a group, delete it.

One rule for lag, that of Kafka's own tools:

- The lag of a partition is its log end minus the committed position, and never below zero. Records
  that were deleted meanwhile still count: the group has not read them.
- A partition without a committed position has no lag. It shows as unknown and is not in the sum:
  its consumers decide where the group would begin there (`auto.offset.reset`).
- The lag of a group is the sum over the partitions with a committed position. It is unknown if the
  group has none, or if a partition with a position does not report its end.
- Positions outlive their topic; those in deleted topics neither show nor count.

- A share group's position is the first unfinished record, and its lag what is left to do
  (`share_groups.py`).

The list and the description of a group are one computation (`describe_groups`), so they agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from msgspec import Struct

from dovetail.admin.kafka import Kafka, Metadata, Partition
from dovetail.admin.positions import Bounds, Position, all_bounds_of, bounds_of, resolve
from dovetail.admin.share_groups import (
    ShareGroupFound,
    ShareOutcomes,
    ShareProgress,
    find_share_groups,
    move_share_group,
    share_group_names,
    sum_of,
)
from dovetail.errors import DovetailError, InvalidInput, NotFound, Refused
from dovetail.foreign import check_group

#: What a broker answers about a group that it does not know.
_UNKNOWN_STATES = frozenset({"dead", "unknown"})


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
    #: Of share groups alone: records that members have, that wait to be delivered again, that wait
    #: for their dead letters; the highest delivery count; and what became of records.
    in_flight: int | None = None
    again: int | None = None
    dying: int | None = None
    deliveries: int | None = None
    outcomes: ShareOutcomes | None = None


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


class Group(Struct, frozen=True):
    """A group with its members and positions."""

    group: str
    state: str
    members: int
    lag: int | None
    partitions: list[GroupPartition]
    member_list: list[GroupMember]
    #: Whether members share partitions record by record, and what became of records then.
    shares: bool = False
    outcomes: ShareOutcomes | None = None

    @property
    def topics(self) -> list[str]:
        """Where it has a position or a member."""
        return sorted({row.topic for row in self.partitions})

    @property
    def consumed(self) -> int:
        """The sum of its positions; its growth is how fast the group reads."""
        return sum(row.committed or 0 for row in self.partitions)


class GroupMove(Struct, frozen=True):
    """A position before and after."""

    topic: str
    partition: int
    before: int | None
    after: int


class TopicView(Protocol):
    """Partitions and their bounds, wherever they are known from."""

    def partitions(self, *topics: str) -> list[Partition]:
        """The partitions of those topics that exist."""
        ...

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, Bounds]:
        """Of those that are known."""
        ...


class _AskedView:
    """Topics as a broker answers about them."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._metadata = kafka.metadata()

    def partitions(self, *topics: str) -> list[Partition]:
        return self._metadata.partitions(*topics)

    def bounds(self, partitions: Sequence[Partition]) -> Mapping[Partition, Bounds]:
        return bounds_of(self._kafka, partitions, metadata=self._metadata)


def lag_of(*, committed: int | None, end: int | None) -> int | None:
    """The lag in one partition; None if it has no position or does not report its end."""
    if committed is None or end is None:
        return None
    return max(0, end - committed)


def lag_sum(positions: Iterable[tuple[int | None, int | None]]) -> int | None:
    """The lag over partitions, each given as its position and its lag; None if it is unknown."""
    lags = [lag for committed, lag in positions if committed is not None]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known and len(known) == len(lags) else None


def group_names(kafka: Kafka) -> list[str]:
    """The names of all groups, in order. Raises `Unreachable`."""
    doing = "listing groups"
    listing = kafka.ask(
        doing,
        lambda admin: {"all": admin.list_consumer_groups(request_timeout=kafka.timeout_s)},
    )["all"]
    for error in listing.errors:
        raise kafka.error_of(doing, error)
    return sorted({*(group.group_id for group in listing.valid), *share_group_names(kafka)})


def list_groups(kafka: Kafka, view: TopicView | None = None) -> list[Group]:
    """All groups by name. Raises `Unreachable`."""
    return describe_groups(kafka, group_names(kafka), view)


def describe_group(kafka: Kafka, name: str, view: TopicView | None = None) -> Group:
    """One group. Raises `NotFound`."""
    for group in describe_groups(kafka, [name], view):
        return group
    raise NotFound(f"no group {name!r}; a consumer creates one when it joins or commits")


def describe_groups(
    kafka: Kafka, names: Sequence[str], view: TopicView | None = None
) -> list[Group]:
    """Those of these groups that exist; without a `view` brokers are asked about topics."""
    if not names:
        return []
    view = view or _AskedView(kafka)
    described = _describe(kafka, names)
    strange = [name for name in names if name not in described or not _exists(described[name])]
    shared = find_share_groups(kafka, strange)
    others = [name for name in names if name in described and name not in shared]
    order = {name: at for at, name in enumerate(names)}
    found = [*_shown_shares(view, shared), *_shown_others(kafka, others, described, view)]
    return sorted(found, key=lambda group: order[group.group])


def _shown_shares(view: TopicView, found: Mapping[str, ShareGroupFound]) -> list[Group]:
    """Share groups, as others show; a partition is nobody's in particular."""
    groups = []
    for name, one in found.items():
        members = [
            GroupMember(
                member=member.member_id,
                client=member.client_id,
                host=member.client_host,
                partitions=[
                    PartitionName(topic.topic_name, number)
                    for topic in member.assignment.topic_partitions
                    for number in topic.partitions
                ],
            )
            for member in one.described.members
        ]
        assigned = {(part.topic, part.partition) for m in members for part in m.partitions}

        places = sorted(one.partitions.keys() | assigned)
        bounds = view.bounds(places)
        rows = [_share_row(place, bounds.get(place), one.partitions.get(place)) for place in places]
        groups.append(
            Group(
                group=name,
                state=one.described.group_state.lower(),
                members=len(members),
                lag=lag_sum((row.committed, row.lag) for row in rows),
                partitions=rows,
                member_list=members,
                shares=True,
                outcomes=sum_of(row.outcomes for row in rows if row.outcomes is not None),
            )
        )
    return groups


def _share_row(
    place: Partition, bounds: Bounds | None, progress: ShareProgress | None
) -> GroupPartition:
    return GroupPartition(
        topic=place[0],
        partition=place[1],
        committed=None if progress is None else progress.start,
        end=None if bounds is None else bounds.end,
        lag=None if progress is None else progress.lag,
        client=None,
        host=None,
        member=None,
        in_flight=None if progress is None else progress.in_flight,
        again=None if progress is None else progress.again,
        dying=None if progress is None else progress.dying,
        deliveries=None if progress is None else progress.deliveries,
        outcomes=None if progress is None else progress.outcomes,
    )


def _shown_others(
    kafka: Kafka, names: Sequence[str], described: Mapping[str, Any], view: TopicView
) -> list[Group]:
    if not names:
        return []
    committed = _committed(kafka, names)
    names = [name for name in names if committed[name] or _exists(described[name])]
    owners = {name: _owners(described[name]) for name in names}
    shown = {
        name: view.partitions(*sorted({topic for topic, _ in committed[name] | owners[name]}))
        for name in names
    }
    bounds = view.bounds(sorted({place for places in shown.values() for place in places}))

    groups = []
    for name in names:
        rows = [
            _row(place, bounds.get(place), committed[name].get(place), owners[name].get(place))
            for place in shown[name]
        ]
        groups.append(
            Group(
                group=name,
                state=_state_of(described[name]),
                members=len(described[name].members),
                lag=lag_sum((row.committed, row.lag) for row in rows),
                partitions=rows,
                member_list=[_member(member) for member in described[name].members],
            )
        )
    return groups


def _row(
    place: Partition, bounds: Bounds | None, committed: int | None, member: Any
) -> GroupPartition:
    end = None if bounds is None else bounds.end
    return GroupPartition(
        topic=place[0],
        partition=place[1],
        committed=committed,
        end=end,
        lag=lag_of(committed=committed, end=end),
        client=None if member is None else member.client_id,
        host=None if member is None else member.host,
        member=None if member is None else member.member_id,
    )


def _member(member: Any) -> GroupMember:
    read = member.assignment.topic_partitions
    return GroupMember(
        member=member.member_id,
        client=member.client_id,
        host=member.host,
        partitions=[PartitionName(item.topic, item.partition) for item in read],
    )


def reset_group(
    kafka: Kafka,
    name: str,
    to: Position,
    *,
    topics: Sequence[str] = (),
    partition: int | None = None,
    dry_run: bool = False,
) -> list[GroupMove]:
    """Moves a group in these topics, or in all that it has positions in; says what moved.

    Raises `Refused` while the group has members, which would overwrite the new position;
    `NotFound`, `InvalidInput`, `Unavailable`.
    """
    members = _member_count(kafka, name)
    shared = None if members else find_share_groups(kafka, [name]).get(name)
    members = len(shared.described.members) if shared else members
    if members and not dry_run:
        raise Refused(
            f"group {name!r} has active members ({members}), which would overwrite the new "
            "position; stop them first"
        )
    before = _starts(shared) if shared else _committed(kafka, [name])[name]
    metadata = kafka.metadata()
    places = _places_to_move(metadata, name, topics, partition, before)
    after = resolve(kafka, to, all_bounds_of(kafka, places, metadata=metadata))

    moves = [GroupMove(*place, before.get(place), after[place]) for place in places]
    if not dry_run and shared:
        move_share_group(kafka, name, {(m.topic, m.partition): m.after for m in moves})
    elif not dry_run:
        _alter(kafka, name, moves)
    return moves


def _starts(shared: ShareGroupFound) -> dict[Partition, int]:
    return {at: row.start for at, row in shared.partitions.items() if row.start is not None}


def _places_to_move(
    metadata: Metadata,
    name: str,
    topics: Sequence[str],
    partition: int | None,
    before: Mapping[Partition, int],
) -> list[Partition]:
    for topic in topics:
        metadata.topic(topic)
    if not topics and not before:
        raise NotFound(f"group {name!r} has no positions; name the topics to set them in")
    listed = metadata.partitions(*(topics or sorted({topic for topic, _ in before})))
    chosen = [place for place in listed if partition is None or place[1] == partition]
    if not chosen:
        raise InvalidInput(f"no partition {partition} in the topics of group {name!r}")
    return chosen


def _alter(kafka: Kafka, name: str, moves: Sequence[GroupMove]) -> None:
    doing = f"moving group {name!r}"
    request = ConsumerGroupTopicPartitions(
        name, [TopicPartition(move.topic, move.partition, move.after) for move in moves]
    )
    found = kafka.ask(
        doing,
        lambda admin: admin.alter_consumer_group_offsets(
            [request], request_timeout=kafka.timeout_s
        ),
        changes=True,
    )

    for item in found[name].topic_partitions:
        if item.error is not None:
            raise kafka.error_of(f"{doing} at {item.topic}-{item.partition}", item.error)


def delete_group(kafka: Kafka, name: str) -> None:
    """Deletes a group with its positions. Raises `Refused` while it has members, `NotFound`."""
    members = _member_count(kafka, name)
    shared = None if members else find_share_groups(kafka, [name]).get(name)
    members = len(shared.described.members) if shared else members
    if members:
        raise Refused(f"group {name!r} has active members ({members}); stop them first")
    kafka.ask(
        f"deleting group {name!r}",
        lambda admin: admin.delete_consumer_groups([name], request_timeout=kafka.timeout_s),
        changes=True,
    )


def _describe(kafka: Kafka, names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        check_group(name)
    if not names:
        return {}
    found = kafka.try_each(
        "describing groups",
        lambda admin: admin.describe_consumer_groups(list(names), request_timeout=kafka.timeout_s),
    )
    for answer in found.values():
        if isinstance(answer, DovetailError) and not isinstance(answer, NotFound):
            raise answer
    return {name: answer for name, answer in found.items() if not isinstance(answer, NotFound)}


def _member_count(kafka: Kafka, name: str) -> int:
    """The members of a group; none if it does not exist yet, which is no error when it moves."""
    found = _describe(kafka, [name])
    return len(found[name].members) if found else 0


def _committed(kafka: Kafka, names: Sequence[str]) -> dict[str, dict[Partition, int]]:
    """The positions of groups. A request takes one group; all are on their way at once."""
    found = kafka.ask(
        "reading the positions of groups",
        lambda admin: {
            name: admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(name)], request_timeout=kafka.timeout_s
            )[name]
            for name in names
        },
    )

    return {
        name: {
            (item.topic, item.partition): item.offset
            for item in result.topic_partitions
            if item.error is None and item.offset >= 0
        }
        for name, result in found.items()
    }


def _owners(description: Any) -> dict[Partition, Any]:
    return {
        (item.topic, item.partition): member
        for member in description.members
        for item in member.assignment.topic_partitions
    }


def _exists(description: Any) -> bool:
    return bool(description.members) or _state_of(description) not in _UNKNOWN_STATES


def _state_of(description: Any) -> str:
    return str(description.state.name).lower().replace("_", " ")
