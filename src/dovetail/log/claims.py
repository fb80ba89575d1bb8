"""Who takes which partition: the deciding part of ownership (L3, L9, L12), pure.

A partition belongs to the node that its record names, for as long as that node is *alive*. One
whose owner is not alive is *vacant*. Every broker sees about the same records and the same
brokers, and computes the same plan: each vacant partition is assigned, in order, to the broker that
the strategy puts first. That one claims at once (after a small random wait, so that views settle);
the next in order only if the partition is still vacant a while later, and so on. So usually one
tries, and when the first is stuck somebody else does. Two that claim at once do no harm: the record
is changed by compare-and-set, and the storage refuses the lower term.

Balance: when nothing is vacant and the brokers have not changed for a while, the fewest moves that
bring all within one partition of each other are planned; each giver closes its ledgers and then
names the taker in the record. A broker that is leaving is alive but not *willing*: it gives, and
is given nothing.

Not here: claiming itself (`ownership.py`), doing what is decided (`owned.py`).
"""

import random
import zlib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dovetail.coordination.membership import LiveBrokers
from dovetail.storage.selection import Candidate, Selection

#: Nobody owns it.
NOBODY = -1
#: Nobody owns it and nobody may: its topic is being deleted.
DELETED = -2

#: Random wait before a claim, so that brokers which notice at the same time have the same view.
JITTER_MS = 50
#: How long the next in order waits for the one before it. A takeover takes some ten milliseconds;
#: a broker that is alive and has not claimed within a second is in trouble.
TURN_MS = 1000
#: Balance waits until the brokers have been the same for so long: a restart is no reason to move.
SETTLE_MS = 3000
#: Moves under way at once, for one giver: each is a short pause for its clients.
MOVES_MAX = 16

#: Weight of a partition in a broker's load; below it, partitions of the same topic count, so that
#: equals get different topics.
_WEIGHT = 1_000_000


class Place(NamedTuple):
    """A partition by its topic's id: a topic of the same name that comes later is another."""

    topic_id: str
    number: int


class Ownership(NamedTuple):
    """What a partition's record says about its owner."""

    term: int
    owner: int


@dataclass(slots=True)
class Decision:
    """What this broker does now, and when to decide again if nothing happens before."""

    claim: list[Place] = field(default_factory=list)
    give: list[tuple[Place, int]] = field(default_factory=list)
    again_ms: float | None = None

    def wake_at(self, at_ms: float) -> None:
        self.again_ms = at_ms if self.again_ms is None else min(self.again_ms, at_ms)


def turn_of(place: Place) -> int:
    """A number for a partition that is the same everywhere."""
    return zlib.crc32(f"{place.topic_id}/{place.number}".encode())


def assign(
    vacant: Collection[Place],
    owners: Mapping[Place, Ownership],
    takers: Collection[int],
    select: Selection,
) -> dict[Place, list[int]]:
    """For each vacant partition the takers in order, as everybody computes it."""
    if not takers:
        return {}
    total = Counter(h.owner for h in owners.values())
    of_topic = Counter((h.owner, place.topic_id) for place, h in owners.items())

    assigned = {}
    for place in sorted(vacant):
        candidates = [
            Candidate(node, total[node] * _WEIGHT + of_topic[node, place.topic_id])
            for node in sorted(takers)
        ]
        order = assigned[place] = list(select(candidates, turn_of(place)))
        total[order[0]] += 1
        of_topic[order[0], place.topic_id] += 1
    return assigned


def moves(
    owners: Mapping[Place, Ownership], brokers: Collection[int], *, giver: int
) -> list[tuple[Place, int]]:
    """What `giver` gives to whom, so that all end within one partition of each other.

    All moves are planned, by the same rule everywhere, and those of others are left to them.
    """
    owned: dict[int, dict[str, list[Place]]] = {node: {} for node in brokers}
    total = dict.fromkeys(brokers, 0)
    for place in sorted(owners):
        owner = owners[place].owner
        if owner in owned:
            owned[owner].setdefault(place.topic_id, []).append(place)
            total[owner] += 1

    mine: list[tuple[Place, int]] = []
    while total and len(mine) < MOVES_MAX:
        most = max(sorted(total), key=lambda node: total[node])
        least = min(sorted(total), key=lambda node: total[node])
        if total[most] - total[least] < 2:
            break
        given, had = owned[most], owned[least]
        topic = max(sorted(given), key=lambda t: len(given[t]) - len(had.get(t, ())))
        place = given[topic].pop()
        had.setdefault(topic, []).append(place)
        if not given[topic]:
            del given[topic]
        total[most] -= 1
        total[least] += 1
        if most == giver:
            mine.append((place, least))
    return mine


class Claims:
    """Decides for one broker; remembers since when things are as they are."""

    def __init__(self, node_id: int, *, select: Selection, rng: random.Random) -> None:
        self._node_id = node_id
        self.select = select
        self._rng = rng
        #: When a vacant partition was first seen so, and the random wait that it got.
        self._vacant: dict[Place, tuple[float, float]] = {}
        self._brokers: LiveBrokers | None = None
        self._since_ms = 0.0

    def decide(
        self,
        owners: Mapping[Place, Ownership],
        brokers: LiveBrokers,
        owned: Collection[Place],
        *,
        now_ms: float,
    ) -> Decision:
        """`owned` are the partitions that this broker owns, or is working on."""
        decision = Decision()
        if brokers != self._brokers:
            self._brokers, self._since_ms = brokers, now_ms
        if self._node_id not in brokers.alive:
            return decision
        for place, ownership in owners.items():
            # Also when it wants nothing new: nobody else may take what has its name on it.
            if ownership.owner == self._node_id and place not in owned:
                decision.claim.append(place)

        if self._node_id not in brokers.willing:
            return decision
        vacant = [p for p, h in owners.items() if h.owner not in brokers.alive]
        self._claim_vacant(decision, vacant, owners, brokers, owned, now_ms)

        if not vacant and len(brokers.willing) > 1:
            settled_ms = self._since_ms + SETTLE_MS
            plan = moves(owners, brokers.willing, giver=self._node_id)
            if plan and now_ms < settled_ms:
                decision.wake_at(settled_ms)
            else:
                decision.give += [move for move in plan if move[0] in owned]
        return decision

    def _claim_vacant(
        self,
        decision: Decision,
        vacant: list[Place],
        owners: Mapping[Place, Ownership],
        brokers: LiveBrokers,
        owned: Collection[Place],
        now_ms: float,
    ) -> None:
        self._vacant = {place: self._vacant[place] for place in vacant if place in self._vacant}
        for place, order in assign(vacant, owners, brokers.willing, self.select).items():
            if place in owned:
                continue
            jitter_ms = self._rng.random() * JITTER_MS if len(order) > 1 else 0.0
            since_ms, jitter_ms = self._vacant.setdefault(place, (now_ms, jitter_ms))
            due_ms = since_ms + order.index(self._node_id) * TURN_MS + jitter_ms
            if due_ms <= now_ms:
                decision.claim.append(place)
            else:
                decision.wake_at(due_ms)
