"""The roster: what every broker says of itself, for all others to read.

One key for each broker, bound to its lease, holds its address, how it is, its load, and its
consumers of each timeline. From it every broker makes the same deal (`others`), the overseer its
list (`brokers`), and all of them notice when the others vanish. Entries are hints: they lag, and a
broker that died is in the roster until its lease ends. The store decides who gets a message.

A broker whose own lease was lost writes its entry again under the next one.

    /timeline-brokers/<name>
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from dovetail.clock import Clock
from dovetail.coordination import Coordinator, Delete, Put
from dovetail.logging import get_logger
from dovetail.timeline.catalog import TimelineRecord
from dovetail.timeline.engine.deal import Member
from dovetail.timeline.engine.health import Condition, PeerWatch, Report
from dovetail.timeline.engine.selection import Crowd, Load, overloaded, preference
from dovetail.timeline.engine.window import Attendee
from dovetail.timeline.frames import BrokerState
from dovetail.timeline.standing import Standing

_log = get_logger("timeline")

PREFIX: Final = "/timeline-brokers/"
#: A load that differs by this from what was told is told; less is no news for anybody.
_LOAD_STEP: Final = 0.1


class BrokerEntry(Struct, frozen=True):
    """What a broker says of itself."""

    address: str
    version: str
    condition: str
    reasons: list[str]
    #: Consumers (id and rack) by timeline.
    consumers: dict[str, list[tuple[str, str]]]
    #: Part of one processor that it needs.
    load: float = 0.0
    roles: list[str] = []


class Roster:
    """The other brokers, and what this one tells them."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        node: str,
        address: str,
        version: str,
        roles: Sequence[str],
        crowd: Crowd,
        standing: Standing,
        peers: PeerWatch,
        clock: Clock,
        on_bytes: Callable[[str, int], None],
    ) -> None:
        """`on_bytes` is told the direction and the size of what went to and fro."""
        self._coordinator = coordinator
        self._node = node
        self._address = address
        self._version = version
        self._roles = list(roles)
        self._crowd = crowd
        self._standing = standing
        self._peers = peers
        self._clock = clock
        self._on_bytes = on_bytes
        self._told: BrokerEntry | None = None
        self._others: dict[str, BrokerEntry] = {}
        self._mine = BrokerEntry(address, version, Condition.HEALTHY.value, [], {})
        standing.on_change.append(self._on_standing)

    def _on_standing(self) -> None:
        self._told = None
        self._peers.cut_off = not self._standing.held

    async def tell(self, report: Report, consumers: dict[str, list[Member]], load: float) -> None:
        """Publishes how this broker is, if that is new."""
        self._mine = BrokerEntry(
            self._address,
            self._version,
            report.condition.value,
            [text for _, text in report.reasons],
            {
                name: sorted((member.id, member.rack) for member in members)
                for name, members in consumers.items()
            },
            round(load, 2),
            self._roles,
        )
        if self._told is not None and not _is_news(self._told, self._mine):
            return
        value = msgspec.json.encode(self._mine)
        telling = self._mine
        self._on_bytes("out", len(value))
        await self._coordinator.transact([Put(PREFIX + self._node, value, self._standing.lease)])
        self._told = telling

    async def leave(self) -> None:
        """Takes this broker off the roster, in a way that nobody takes for a loss."""
        gone = msgspec.structs.replace(self._mine, condition=Condition.INACTIVE.value)
        value = msgspec.json.encode(gone)
        await self._coordinator.transact([Put(PREFIX + self._node, value, self._standing.lease)])
        await self._coordinator.transact([Delete(PREFIX + self._node)])

    async def follow(self) -> None:
        """Reads the roster, and watches it until the watch ends. Raises `WatchGap`: call again."""
        snapshot = await self._coordinator.range(PREFIX)
        self._others = {}
        for item in snapshot.items:
            self._note(item.key, item.value)
        self._peers.on_peers(len(self._others), now_ms=self._clock.wall_ms())
        async with self._coordinator.watch(PREFIX, after=snapshot.revision) as changes:
            async for events in changes:
                for event in events:
                    self._note(event.key, event.value)
                self._peers.on_peers(len(self._others), now_ms=self._clock.wall_ms())

    def _note(self, key: str, value: bytes | None) -> None:
        self._on_bytes("in", len(value or b""))
        name = key.removeprefix(PREFIX)
        if name == self._node:
            return
        if value is None:
            self._others.pop(name, None)
            return
        try:
            entry = msgspec.json.decode(value, type=BrokerEntry)
        except msgspec.DecodeError as error:
            _log.warning("unreadable entry of a broker", broker=name, error=str(error))
            return
        if entry.condition == Condition.INACTIVE.value:
            if self._others.pop(name, None) is not None:
                self._peers.on_left()
            return
        self._others[name] = entry

    def others(self, record: TimelineRecord) -> list[Attendee]:
        """The consumers of a timeline at other brokers."""
        return [
            Attendee(Member(consumer, rack))
            for entry in self._others.values()
            for consumer, rack in entry.consumers.get(record.name, ())
        ]

    def addresses(self) -> dict[str, str]:
        """Where the other brokers are, by name."""
        return {name: entry.address for name, entry in self._others.items()}

    def better(self, timeline: str) -> str:
        """The address of a broker that a client of the timeline should move to; empty if none.

        Only where staying hurts: this broker is not well, has more than it can carry, or has more
        consumers than it should, while another one has room.
        """
        first = self.brokers(timeline, {})[0]
        here = self._mine
        if first.name == self._node or first.condition != Condition.HEALTHY.value:
            return ""
        unwell = here.condition != Condition.HEALTHY.value
        crowded = len(here.consumers.get(timeline, ())) > self._crowd.most
        laden = overloaded(here.load) and 2 * first.load < here.load
        return first.address if unwell or crowded or laden else ""

    def brokers(self, timeline: str, latency_ms: Mapping[str, float]) -> list[BrokerState]:
        """All brokers, the best one for the timeline first; `latency_ms` by name, where known."""
        entries = {**self._others, self._node: self._mine}
        loads = [_load(name, entry) for name, entry in entries.items()]
        return [
            BrokerState(
                name,
                entries[name].address,
                entries[name].roles,
                entries[name].version,
                entries[name].condition,
                entries[name].reasons,
                sorted(entries[name].consumers),
                sum(map(len, entries[name].consumers.values())),
                entries[name].load,
                latency_ms.get(name),
            )
            for name in preference(loads, timeline, crowd=self._crowd)
        ]


def _load(name: str, entry: BrokerEntry) -> Load:
    consumers = {each: len(members) for each, members in entry.consumers.items() if members}
    return Load(name, entry.condition == Condition.HEALTHY.value, consumers, entry.load)


def _is_news(told: BrokerEntry, now: BrokerEntry) -> bool:
    if abs(told.load - now.load) >= _LOAD_STEP:
        return True
    return msgspec.structs.replace(now, load=told.load) != told
