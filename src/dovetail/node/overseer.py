"""The overseer: reports on the whole cluster (B1, B2).

Every node registers its address, roles, load and problems (`coordination/membership.py`); the
records of partitions name their owners. The overseer joins the two and adds what a node cannot know
about itself: how fast it answers (`wire/probe.py`). It decides nothing. Any number of nodes can
have the role; their reports differ only as far as their views do.
"""

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from dovetail.addresses import Address
from dovetail.coordination.membership import BROKER_ROLE, Member, MissingNode
from dovetail.log.catalog import Catalog
from dovetail.log.owners import Place
from dovetail.wire.probe import Prober


class NodeReport(msgspec.Struct, frozen=True):
    """A node, as it describes itself and as it answers."""

    node_id: int
    name: str
    address: str
    http: str | None
    roles: tuple[str, ...]
    version: str
    #: healthy, degraded (see `reasons`) or leaving.
    health: str
    reasons: tuple[str, ...]
    partitions: int
    stored_bytes: int
    #: None until it has answered once, when it did not answer last, and for the overseer itself.
    latency_ms: float | None
    #: Topics that it handles, with the number of partitions that it owns.
    topics: dict[str, int]
    rack: str = ""
    #: Ledgers of its partitions that lie on too few storage nodes.
    copies_lacking: int = 0


class PartitionReport(msgspec.Struct, frozen=True):
    """A partition and its owner."""

    number: int
    owner: int
    term: int
    #: Whether the owner is alive; without one, clients wait.
    owned: bool


class TopicReport(msgspec.Struct, frozen=True):
    """A topic in any state."""

    name: str
    id: str
    state: str
    internal: bool
    partitions: list[PartitionReport]


class ClusterReport(msgspec.Struct, frozen=True):
    """Everything that an overseer knows."""

    nodes: list[NodeReport]
    topics: list[TopicReport]
    partitions_without_owner: int
    #: Nodes that should be there and are not.
    missing: list[MissingNode] = []


class Overseer:
    """Answers questions about the cluster."""

    def __init__(
        self,
        members: Callable[[], Mapping[int, Member]],
        missing: Callable[[], list[MissingNode]],
        catalog: Catalog,
        prober: Prober,
    ) -> None:
        self._members = members
        self._missing = missing
        self._catalog = catalog
        self._prober = prober

    def report(self) -> ClusterReport:
        """The cluster as of now."""
        members = self._members()
        brokers = {m.node_id for m in members.values() if BROKER_ROLE in m.roles}

        owned: Counter[tuple[int, str]] = Counter()
        topics = []
        for record in sorted(self._catalog.all(), key=lambda record: record.name):
            partitions = []
            for number in range(record.partitions):
                term, owner = self._catalog.ownership(Place(record.id, number))
                partitions.append(PartitionReport(number, owner, term, owner in brokers))
                owned[owner, record.name] += 1
            topics.append(
                TopicReport(record.name, record.id, record.state.value, record.internal, partitions)
            )

        return ClusterReport(
            nodes=[self._node(m, owned) for _, m in sorted(members.items())],
            topics=topics,
            partitions_without_owner=sum(not p.owned for t in topics for p in t.partitions),
            missing=self._missing(),
        )

    def _node(self, member: Member, owned: Counter[tuple[int, str]]) -> NodeReport:
        probe = self._prober.probes().get(Address(member.host, member.port))
        return msgspec.structs.replace(
            reported(member),
            latency_ms=None if probe is None else round(probe.latency_ms, 3),
            topics={
                topic: count
                for (node, topic), count in sorted(owned.items())
                if node == member.node_id
            },
        )


def reported(member: Member) -> NodeReport:
    """A node as it describes itself; its latency and topics are known to overseers alone."""
    health = "leaving" if member.leaving else "degraded" if member.reasons else "healthy"
    return NodeReport(
        node_id=member.node_id,
        name=member.name,
        address=str(Address(member.host, member.port)),
        http=member.http,
        roles=member.roles,
        version=member.version,
        rack=member.rack,
        health=health,
        reasons=member.reasons,
        partitions=member.partitions,
        stored_bytes=member.stored_bytes,
        latency_ms=None,
        topics={},
        copies_lacking=member.copies_lacking,
    )
