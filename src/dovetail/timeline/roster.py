"""The roster: what every broker reports of its timelines, for all others to read.

Each broker has one key, bound to its node's lease, with its address, its condition, its load, and
its consumers of each timeline. From these keys every broker computes the same assignment (`others`)
and the same list (`brokers`), and all of them notice when the others vanish. Entries are hints:
they lag, and a broker that died stays in the roster until its lease ends. The store decides who
gets a message.

A broker whose lease was lost writes its entry again under the next one.

    /timeline-brokers/<name>
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

from dovetail.addresses import Address, parse_address
from dovetail.clock import Clock
from dovetail.coordination import Coordinator, Delete, Put, Revision
from dovetail.coordination.membership import LeaseSource
from dovetail.coordination.mirror import Mirror
from dovetail.logging import get_logger
from dovetail.timeline.catalog import TimelineRecord
from dovetail.timeline.engine.assignment import Member
from dovetail.timeline.engine.health import Condition, PeerWatch, Report
from dovetail.timeline.engine.selection import Crowd, Load, overloaded, preference
from dovetail.timeline.engine.window import Attendee
from dovetail.timeline.frames import BrokerState

_log = get_logger("timeline")

PREFIX: Final = "/timeline-brokers/"
#: A load that differs by this from the last report is reported; less is no news for anybody.
_LOAD_STEP: Final = 0.1
#: Brokers that are gone and still shown; the longest gone are forgotten first.
GONE_MAX: Final = 100


class BrokerEntry(Struct, frozen=True):
    """What a broker reports of itself."""

    address: str
    version: str
    condition: str
    reasons: list[str]
    #: Consumers by timeline: id, rack, and whether each is busy or idle.
    consumers: dict[str, list[tuple[str, str, bool, bool]]]
    #: Part of one processor that it needs.
    load: float = 0.0
    roles: list[str] = []


class Roster:
    """The other brokers, and what this one reports to them; follows them from `start` to `stop`."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        node: str,
        address: str,
        version: str,
        roles: Sequence[str],
        crowd: Crowd,
        leases: LeaseSource,
        peers: PeerWatch,
        clock: Clock,
        on_bytes: Callable[[str, int], None],
    ) -> None:
        """`on_bytes` counts the bytes that went in a direction."""
        self._coordinator = coordinator
        self._node = node
        self._address = address
        self._version = version
        self._roles = list(roles)
        self._crowd = crowd
        self._leases = leases
        self._peers = peers
        self._clock = clock
        self._on_bytes = on_bytes
        self._reported: BrokerEntry | None = None
        self._others: dict[str, BrokerEntry] = {}
        #: Brokers that were here, for people to see.
        self._gone: dict[str, BrokerEntry] = {}
        self._mine = BrokerEntry(address, version, Condition.HEALTHY.value, [], {})
        self._mirror = Mirror(coordinator, PREFIX, apply=self._note, settled=self._count)
        leases.on_lease.append(self._on_lease)

    async def start(self) -> None:
        """Reads the roster, then follows it. Raises `CoordinationDown`."""
        await self._mirror.start()

    async def stop(self) -> None:
        """Follows no more."""
        self._leases.on_lease.remove(self._on_lease)
        await self._mirror.stop()

    def _on_lease(self) -> None:
        self._reported = None
        self._peers.cut_off = not self._leases.holds_lease()

    async def report(
        self, report: Report, consumers: Mapping[str, Sequence[Attendee]], load: float
    ) -> None:
        """Publishes how this broker is, if that is new."""
        self._mine = BrokerEntry(
            self._address,
            self._version,
            report.condition.value,
            [text for _, text in report.reasons],
            {
                name: sorted((a.member.id, a.member.rack, a.busy, a.idle) for a in attendees)
                for name, attendees in consumers.items()
            },
            round(load, 2),
            self._roles,
        )
        if self._reported is not None and not _is_news(self._reported, self._mine):
            return

        entry, lease = self._mine, self._leases.lease_id
        await self._write(entry)
        if self._leases.holds_lease() and self._leases.lease_id == lease:
            self._reported = entry

    async def leave(self) -> None:
        """Takes this broker off the roster, in a way that nobody takes for a loss."""
        await self._write(msgspec.structs.replace(self._mine, condition=Condition.INACTIVE.value))
        await self._coordinator.transact([Delete(PREFIX + self._node)])

    async def _write(self, entry: BrokerEntry) -> None:
        value = msgspec.json.encode(entry)
        self._on_bytes("out", len(value))
        await self._coordinator.transact([Put(PREFIX + self._node, value, self._leases.lease_id)])

    def _count(self) -> None:
        self._peers.on_peers(len(self._others), now_ms=self._clock.wall_ms())

    def _note(self, key: str, value: bytes | None, _: Revision) -> None:
        self._on_bytes("in", len(value or b""))
        name = key.removeprefix(PREFIX)
        if name == self._node:
            return
        if value is None:
            if lost := self._others.pop(name, None):
                self._note_gone(name, lost, "it has vanished without a word")
            return

        try:
            entry = msgspec.json.decode(value, type=BrokerEntry)
        except msgspec.DecodeError as error:
            _log.warning("unreadable entry of a broker", broker=name, error=str(error))
            return

        if entry.condition == Condition.INACTIVE.value:
            if self._others.pop(name, None) is not None:
                self._peers.on_left()
            self._note_gone(name, entry, "it was stopped")
            return
        self._others[name] = entry
        self._gone.pop(name, None)

    def _note_gone(self, name: str, entry: BrokerEntry, why: str) -> None:
        self._gone[name] = msgspec.structs.replace(
            entry, condition=Condition.INACTIVE.value, reasons=[why], consumers={}, load=0.0
        )
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def others(self, record: TimelineRecord) -> list[Attendee]:
        """The consumers of a timeline at other brokers."""
        return [
            Attendee(Member(consumer, rack), busy=busy, idle=idle)
            for entry in self._others.values()
            for consumer, rack, busy, idle in entry.consumers.get(record.name, ())
        ]

    def is_mine(self, timeline: str) -> bool:
        """Whether this broker does what one of them does for a timeline. All agree on it, but for
        a moment while one comes or goes."""
        brokers = (self._node, *self._others)
        first = min(brokers, key=lambda name: crc32(f"{name} {timeline}".encode()))
        return first == self._node and self._leases.holds_lease()

    def addresses(self) -> dict[str, Address]:
        """Where the other brokers are, by name."""
        others = self._others.items()
        return {name: parse_address(entry.address) for name, entry in others if entry.address}

    def better(self, timeline: str, *, consumer: bool) -> str:
        """The address of a broker that a client of the timeline should move to; empty if none.

        Only where staying hurts: this broker is not well, has more than it can carry, or, for a
        consumer, has more of them than it should, while another one has room.
        """
        first = self.brokers(timeline, {})[0]
        here = self._mine
        if first.name == self._node or first.condition != Condition.HEALTHY.value:
            return ""
        unwell = here.condition != Condition.HEALTHY.value
        crowded = consumer and len(here.consumers.get(timeline, ())) > self._crowd.most
        laden = overloaded(here.load) and 2 * first.load < here.load
        return first.address if unwell or crowded or laden else ""

    def brokers(self, timeline: str, latency_ms: Mapping[str, float]) -> list[BrokerState]:
        """All brokers, the best one for the timeline first; `latency_ms` by name, where known."""
        entries = {**self._others, self._node: self._mine}
        loads = [_load(name, entry) for name, entry in entries.items()]
        order = preference(loads, timeline, crowd=self._crowd)
        # Those that have gone come last: nobody is to connect to them, but to know of them.
        gone = {name: entry for name, entry in self._gone.items() if name not in entries}
        entries |= gone

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
            for name in (*order, *sorted(gone))
        ]


def _load(name: str, entry: BrokerEntry) -> Load:
    consumers = {each: len(members) for each, members in entry.consumers.items() if members}
    return Load(name, entry.condition == Condition.HEALTHY.value, consumers, entry.load)


def _is_news(reported: BrokerEntry, now: BrokerEntry) -> bool:
    if abs(reported.load - now.load) >= _LOAD_STEP:
        return True
    return msgspec.structs.replace(now, load=reported.load) != reported
