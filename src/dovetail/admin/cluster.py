"""The cluster beyond the Kafka protocol: its members, and storage nodes that are away.

Both read the coordination service and change nothing. Leaders of partitions are in
`kafka.Metadata`; the latencies that an overseer measures are served by its node (`node_http`).
"""

from dataclasses import dataclass

import msgspec

from dovetail.admin.storage import states
from dovetail.coordination import Coordinator
from dovetail.coordination.membership import NODES, Member
from dovetail.storage.repair.decommission import StorageState


@dataclass(frozen=True, slots=True)
class StorageAway:
    """How many storage nodes there are, and the ledgers of each that is away, by its number."""

    nodes: int
    ledgers: dict[int, int]


async def members(coordinator: Coordinator) -> tuple[Member, ...]:
    """All nodes that hold their lease, by number. Raises `CoordinationDown`."""
    snapshot = await coordinator.range(NODES)
    return tuple(msgspec.json.decode(item.value, type=Member) for item in snapshot.items)


async def storage_away(coordinator: Coordinator) -> StorageAway:
    """Storage nodes that hold ledgers and are not there. Raises `CoordinationDown`."""
    known = await states(coordinator)
    here = {member.node_id for member in await members(coordinator)}
    away = {
        node.node_id: node.ledgers_left
        for node in known
        if node.node_id not in here and node.state is not StorageState.REMOVED and node.ledgers_left
    }
    return StorageAway(len(known), away)
