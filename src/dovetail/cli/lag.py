"""How far each group is behind, over the Kafka protocol: all groups in a few requests.

One request lists the groups, one describes them, one each reads their positions; the bounds of all
partitions that any of them reads are asked for once. As in `dovetail group describe`, the lag of a
partition in which nothing is committed yet is all that it holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from dovetail.cli.client import Partition
    from dovetail.cli.options import Target


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group: who is in it, and how much it has not read yet."""

    group: str
    state: str
    members: int
    topics: tuple[str, ...]
    lag: int


def read_groups(target: "Target", admin: "AdminClient | None" = None) -> list[GroupState]:
    """All groups with their lag, by name. Raises `DovetailError`."""
    from dovetail.cli.client import bounds_of, call, connect, partitions_of, topics_of, wait_for

    admin = admin or connect(target)
    doing = "listing groups"
    asked = call(
        doing, target, lambda: admin.list_consumer_groups(request_timeout=target.timeout_s)
    )
    names = sorted(group.group_id for group in wait_for(doing, target, asked).valid)
    if not names:
        return []
    described = call(
        "describing groups",
        target,
        lambda: admin.describe_consumer_groups(names, request_timeout=target.timeout_s),
    )
    positions = _positions(admin, target, names)
    # Positions outlive their topic: what was deleted is not behind.
    topics = topics_of(admin, target)
    read = {topic for found in positions.values() for topic, _ in found} & topics.keys()
    bounds = bounds_of(admin, target, [p for topic in read for p in partitions_of(topics[topic])])
    groups = []
    for name, future in described.items():
        about = wait_for(f"describing group {name!r}", target, future)
        state = str(about.state.name).lower().replace("_", " ")
        committed = positions[name]
        its = tuple(sorted({topic for topic, _ in committed}))
        groups.append(
            GroupState(name, state, len(about.members), its, lag_of(committed, bounds, its))
        )
    return groups


def lag_of(
    committed: "Mapping[Partition, int]",
    bounds: "Mapping[Partition, tuple[int, int]]",
    topics: tuple[str, ...],
) -> int:
    """Records between the positions and the ends, in all partitions of these topics."""
    return sum(
        max(0, end - committed.get(place, first))
        for place, (first, end) in bounds.items()
        if place[0] in topics
    )


def _positions(
    admin: "AdminClient", target: "Target", names: list[str]
) -> "dict[str, dict[Partition, int]]":
    """The client takes one group for each of these requests; all are on their way at once."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    from dovetail.cli.client import call, wait_for

    asked: dict[str, Any] = {}
    for name in names:
        request = partial(
            admin.list_consumer_group_offsets,
            [ConsumerGroupTopicPartitions(name)],
            request_timeout=target.timeout_s,
        )
        asked |= call(f"reading the positions of group {name!r}", target, request)
    found = {}
    for name, future in asked.items():
        result = wait_for(f"reading the positions of group {name!r}", target, future)
        found[name] = {
            (item.topic, item.partition): item.offset
            for item in result.topic_partitions
            if item.error is None and item.offset >= 0
        }
    return found
