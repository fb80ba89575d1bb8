"""The roster: what every carrier says of itself, for all others to read.

One key for each carrier, bound to its lease, holds its address, how it is, and its consumers of
each timeline. From it every carrier makes the same deal (`others`), the overseer its list
(`brokers`), and all of them notice when the others vanish. Entries are hints: they lag, and a
carrier that died is in the roster until its lease ends. The store decides who gets a message.

    /timeline-carriers/<name>
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from dovetail.coordination import Coordinator, Delete, LeaseId, Put
from dovetail.logging import get_logger
from dovetail.timeline.catalog import TimelineRecord
from dovetail.timeline.deal import Member
from dovetail.timeline.frames import BrokerState
from dovetail.timeline.health import Condition, PeerWatch, Report
from dovetail.timeline.selection import MOST, Load, preference
from dovetail.timeline.window import Attendee

_log = get_logger("timeline")

PREFIX: Final = "/timeline-carriers/"


class CarrierEntry(Struct, frozen=True):
    """What a carrier says of itself."""

    address: str
    version: str
    condition: str
    reasons: list[str]
    #: Consumers (id and rack) by timeline.
    consumers: dict[str, list[tuple[str, str]]]


class Roster:
    """The other carriers, and what this one tells them."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        node: str,
        address: str,
        version: str,
        lease: LeaseId,
        peers: PeerWatch,
    ) -> None:
        self._coordinator = coordinator
        self._node = node
        self._address = address
        self._version = version
        self._lease = lease
        self._peers = peers
        self._told: bytes | None = None
        self._others: dict[str, CarrierEntry] = {}
        self._mine = CarrierEntry(address, version, Condition.HEALTHY.value, [], {})

    async def tell(self, report: Report, consumers: dict[str, list[Member]]) -> None:
        """Publishes how this carrier is, if that is new."""
        self._mine = CarrierEntry(
            self._address,
            self._version,
            report.condition.value,
            [text for _, text in report.reasons],
            {
                name: sorted((member.id, member.rack) for member in members)
                for name, members in consumers.items()
            },
        )
        value = msgspec.json.encode(self._mine)
        if value != self._told:
            await self._coordinator.transact([Put(PREFIX + self._node, value, self._lease)])
            self._told = value

    async def leave(self) -> None:
        """Takes this carrier off the roster, in a way that nobody takes for a loss."""
        gone = msgspec.structs.replace(self._mine, condition=Condition.INACTIVE.value)
        value = msgspec.json.encode(gone)
        await self._coordinator.transact([Put(PREFIX + self._node, value, self._lease)])
        await self._coordinator.transact([Delete(PREFIX + self._node)])

    async def follow(self, on_change: Callable[[], None]) -> None:
        """Reads the roster, and watches it until the watch ends. Raises `WatchGap`: call again."""
        snapshot = await self._coordinator.range(PREFIX)
        self._others = {}
        for item in snapshot.items:
            self._note(item.key, item.value)
        on_change()
        self._peers.on_peers(len(self._others))
        async with self._coordinator.watch(PREFIX, after=snapshot.revision) as changes:
            async for events in changes:
                for event in events:
                    self._note(event.key, event.value)
                self._peers.on_peers(len(self._others))
                on_change()

    def _note(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(PREFIX)
        if name == self._node:
            return
        if value is None:
            self._others.pop(name, None)
            return
        try:
            entry = msgspec.json.decode(value, type=CarrierEntry)
        except msgspec.DecodeError as error:
            _log.warning("unreadable entry of a carrier", carrier=name, error=str(error))
            return
        if entry.condition == Condition.INACTIVE.value:
            if self._others.pop(name, None) is not None:
                self._peers.on_left()
            return
        self._others[name] = entry

    def others(self, record: TimelineRecord) -> list[Attendee]:
        """The consumers of a timeline at other carriers."""
        return [
            Attendee(Member(consumer, rack))
            for entry in self._others.values()
            for consumer, rack in entry.consumers.get(record.name, ())
        ]

    def better(self, timeline: str) -> str:
        """The address of a carrier that a client of the timeline should move to; empty if none.

        Only where staying hurts: this carrier is not well, or has more consumers than it should
        while another one has room.
        """
        first = self.brokers(timeline)[0]
        crowded = len(self._mine.consumers.get(timeline, ())) > MOST
        unwell = self._mine.condition != Condition.HEALTHY.value
        well = first.condition == Condition.HEALTHY.value
        return first.address if well and first.name != self._node and (crowded or unwell) else ""

    def brokers(self, timeline: str) -> list[BrokerState]:
        """All carriers, the best one for the timeline first."""
        entries = {**self._others, self._node: self._mine}
        healthy = Condition.HEALTHY.value
        loads = [
            Load(
                name,
                entry.condition == healthy,
                {each: len(members) for each, members in entry.consumers.items() if members},
            )
            for name, entry in entries.items()
        ]
        return [
            BrokerState(
                name,
                entries[name].address,
                ["carrier"],
                entries[name].version,
                entries[name].condition,
                entries[name].reasons,
                sorted(entries[name].consumers),
                sum(map(len, entries[name].consumers.values())),
            )
            for name in preference(loads, timeline)
        ]
