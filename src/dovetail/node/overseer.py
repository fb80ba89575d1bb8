"""The overseer: what the cluster looks like, for whoever asks (B1, B2).

Every node says of itself where it is, what it does, how loaded it is and what ails it
(`membership.py`); the records of partitions say who owns what. The overseer puts the two together
and adds what nobody can say of himself: how long he takes to answer. It decides nothing; any number
of nodes can have the role, and they agree as far as their views do.
"""

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter

import msgspec

from dovetail.coordination.membership import BROKER_ROLE, Member
from dovetail.errors import DovetailError, Unavailable
from dovetail.kafka.codec.apis import ApiKey
from dovetail.log.catalog import Catalog
from dovetail.log.claims import Place
from dovetail.storage import calls as private
from dovetail.storage.calls import PrivateKey
from dovetail.wire.login import ClientLogin
from dovetail.wire.peer import Greeting, Peer, PeerSettings, Request

#: How often each node is asked, to see how long it takes to answer.
PROBE_MS = 5000


class NodeReport(msgspec.Struct, frozen=True):
    """A node, as it says of itself and as it answers."""

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


class Overseer:
    """Answers questions about the cluster; measures latencies between `start` and `stop`."""

    def __init__(
        self,
        node_id: int,
        members: Callable[[], Mapping[int, Member]],
        catalog: Catalog,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`node_id` is the overseer's own, which need not ask itself."""
        self._node_id = node_id
        self._members = members
        self._catalog = catalog
        self._peer_settings = PeerSettings(call_ms_max=PROBE_MS, login=ClientLogin(tls))
        self._peers: dict[tuple[int, str, int], Peer] = {}
        self._latency_ms: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to measure."""
        self._task = asyncio.create_task(self._probe_all())

    async def stop(self) -> None:
        """Ends all connections."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for peer in self._peers.values():
            await peer.close()

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
        )

    def _node(self, member: Member, owned: Counter[tuple[int, str]]) -> NodeReport:
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
            latency_ms=self._latency_ms.get(member.node_id),
            topics={
                topic: count
                for (node, topic), count in sorted(owned.items())
                if node == member.node_id
            },
        )

    # Latency

    async def _probe_all(self) -> None:
        while True:
            members = dict(self._members())
            await self._forget(members)
            others = [m for number, m in members.items() if number != self._node_id]
            await asyncio.gather(*map(self._probe, others))
            await asyncio.sleep(PROBE_MS / 1000)

    async def _forget(self, members: Mapping[int, Member]) -> None:
        there = {(m.node_id, m.host, m.port) for m in members.values()}
        for place in [place for place in self._peers if place not in there]:
            self._latency_ms.pop(place[0], None)
            await self._peers.pop(place).close()

    async def _probe(self, member: Member) -> None:
        request = _probe_of(member)
        peer = self._peer(member, request)
        try:
            if not peer.connected:
                await peer.ask(request, lambda _: None)
            started = perf_counter()
            await peer.ask(request, lambda _: None)
        except DovetailError:
            self._latency_ms.pop(member.node_id, None)
        else:
            self._latency_ms[member.node_id] = round((perf_counter() - started) * 1000, 3)

    def _peer(self, member: Member, greeting: Request) -> Peer:
        place = (member.node_id, member.host, member.port)
        if place not in self._peers:
            self._peers[place] = Peer(
                member.host,
                member.port,
                greeting=Greeting(greeting, lambda _: None),
                client_id="overseer",
                settings=self._peer_settings,
                rng=random.SystemRandom(),
            )
        return self._peers[place]


def _probe_of(member: Member) -> Request:
    """The cheapest request that a node of these roles answers."""
    if BROKER_ROLE in member.roles:
        return Request(ApiKey.API_VERSIONS, 0, [], Unavailable)
    hello = private.encode_request(private.Hello(private.VERSION))
    return Request(PrivateKey.HELLO, private.VERSION, hello, Unavailable)
