"""Decides which broker takes which partition: the deciding part of ownership (L3, L9, L12); pure.

A partition belongs to the broker that its record names, for as long as that broker is *alive*.
Otherwise it is *vacant*. Every broker sees about the same records and the same brokers, and
computes the same plan: it assigns each vacant partition, in order, to the broker that the strategy
puts first. That broker claims at once (after a small random wait, so that views settle); the next
in order claims only if the partition is still vacant a while later, and so on. So usually one
broker tries, and if the first is stuck, another takes its turn. Two that claim at once do no harm:
the record is changed by compare-and-set, and the storage nodes refuse the lower term.

Balance: when nothing is vacant and the brokers have not changed for a while, every broker computes
the fewest moves that bring all within one partition of each other. Each giver closes its ledgers
and then names the taker in the record. A broker that is leaving is alive but not *willing*: it
gives partitions away and receives none.

A decision runs after every change, so its cost depends on what has changed and not on how much is
vacant or owned: vacant partitions are assigned once and wait in a heap for their time. As long as
they go only to the brokers that the plan puts first, a new plan would say the same of the others,
so none is made.

Not here: claiming itself (`ownership.py`), doing what is decided (`owned.py`).
"""

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from dovetail.coordination.membership import LiveBrokers
from dovetail.log.owners import Owners, Place
from dovetail.storage.selection import Candidate, Selection

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
    owners: Owners,
    takers: Collection[int],
    select: Selection,
) -> dict[Place, list[int]]:
    """For each vacant partition the takers in order, as everybody computes it."""
    if not takers:
        return {}
    more: Counter[int] = Counter()
    more_of_topic: Counter[tuple[int, str]] = Counter()

    def load(node: int, topic_id: str) -> int:
        of_topic = owners.of_topic(node, topic_id) + more_of_topic[node, topic_id]
        return (owners.total(node) + more[node]) * _WEIGHT + of_topic

    assigned = {}
    for place in sorted(vacant):
        candidates = [Candidate(node, load(node, place.topic_id)) for node in sorted(takers)]
        order = assigned[place] = list(select(candidates, turn_of(place)))
        more[order[0]] += 1
        more_of_topic[order[0], place.topic_id] += 1
    return assigned


def is_even(owners: Owners, brokers: Collection[int]) -> bool:
    """Whether all brokers are within one partition of each other."""
    totals = [owners.total(node) for node in brokers]
    return not totals or max(totals) - min(totals) < 2


def moves(owners: Owners, brokers: Collection[int], *, giver: int) -> list[tuple[Place, int]]:
    """What `giver` gives to whom, so that all end within one partition of each other.

    Everybody computes the same shares: who has most keeps what does not divide. What is above its
    share a broker gives, in the order of the brokers, to those below theirs. Which partitions it
    gives is its own affair. It costs the brokers and what this one owns.
    """
    total = {node: owners.total(node) for node in brokers}
    if giver not in total:
        return []
    share, rest = divmod(sum(total.values()), len(total))
    ranked = sorted(total, key=lambda node: (-total[node], node))
    over = {node: total[node] - share - (at < rest) for at, node in enumerate(ranked)}
    if over[giver] <= 0:
        return []

    # All that is given and all that is wanted, one behind the other; ours is a stretch of it.
    before = sum(max(0, over[node]) for node in total if node < giver)
    wanted = (node for node in sorted(total) for _ in range(-over[node]))
    takers = list(islice(wanted, before, before + min(over[giver], MOVES_MAX)))
    return list(zip(_chosen(owners, giver, takers, before), takers, strict=True))


def _chosen(owners: Owners, giver: int, takers: Iterable[int], turn: int) -> Iterator[Place]:
    """For each taker a partition of the topic of which the giver has most and the taker least.

    Of equal topics it begins at another one than the givers before it did.
    """
    mine: dict[str, list[Place]] = {}
    for place in sorted(owners.places(giver)):
        mine.setdefault(place.topic_id, []).append(place)
    topics = list(mine)
    topics = topics[turn % len(topics) :] + topics[: turn % len(topics)]
    given: Counter[tuple[int, str]] = Counter()
    for taker in takers:
        gap = {
            topic: len(mine[topic]) - owners.of_topic(taker, topic) - given[taker, topic]
            for topic in topics
            if mine[topic]
        }
        topic = max(gap, key=gap.__getitem__)
        given[taker, topic] += 1
        yield mine[topic].pop()


class _Vacancy(NamedTuple):
    """A vacant partition: since when, its random wait, its time, and whose it is first."""

    since_ms: float
    jitter_ms: float
    due_ms: float
    first: int


class Claims:
    """Decides for one broker; remembers since when things are as they are."""

    def __init__(self, node_id: int, *, select: Selection, rng: random.Random) -> None:
        self._node_id = node_id
        self.select = select
        self._rng = rng
        self._vacant: dict[Place, _Vacancy] = {}
        #: When they are to be claimed; one that is not as in `_vacant` counts no more.
        self._due: list[tuple[float, Place]] = []
        #: Whether `_vacant` has to be made anew, and the changes of the owners that it knows.
        self._stale = True
        self._changes = 0
        #: What may have our name on it and is not owned yet.
        self._named: dict[Place, None] = {}
        self._brokers: LiveBrokers | None = None
        self._since_ms = 0.0

    def decide(
        self,
        owners: Owners,
        brokers: LiveBrokers,
        owned: Collection[Place],
        *,
        changed: Iterable[Place],
        now_ms: float,
    ) -> Decision:
        """`owned` are the partitions that this broker owns, or is working on.

        `changed` are those that came to or left `owners` or `owned`, or have another owner, since
        the last decision.
        """
        decision, changed = Decision(), dict.fromkeys(changed)
        self._named.update(changed)
        if brokers != self._brokers:
            self._brokers, self._since_ms, self._stale = brokers, now_ms, True
        if self._node_id not in brokers.alive:
            self._stale = True
            return decision
        # Also when it wants nothing new: nobody else may take what has its name on it.
        self._named = {p: None for p in self._named if p not in owned and self._is_mine(owners, p)}
        decision.claim += self._named

        if self._node_id not in brokers.willing:
            self._stale = True
            return decision
        self._note_vacant(owners, brokers, changed, now_ms)
        self._claim_due(decision, owned, now_ms)

        if not self._vacant and not is_even(owners, brokers.willing):
            settled_ms = self._since_ms + SETTLE_MS
            if now_ms < settled_ms:
                decision.wake_at(settled_ms)
            else:
                plan = moves(owners, brokers.willing, giver=self._node_id)
                decision.give += [move for move in plan if move[0] in owned]
        return decision

    def _is_mine(self, owners: Owners, place: Place) -> bool:
        found = owners.get(place)
        return found is not None and found.owner == self._node_id

    def _note_vacant(
        self, owners: Owners, brokers: LiveBrokers, changed: Iterable[Place], now_ms: float
    ) -> None:
        """Assigns what is vacant, unless nothing happened but what was planned."""
        before, followed = self._vacant, 0
        for place in () if self._stale else changed:
            vacancy, found = before.get(place), owners.get(place)
            vacant = found is not None and found.owner not in brokers.alive
            if vacancy is None:
                self._stale = self._stale or vacant
            elif vacant:  # Perhaps it is worked on here no more.
                heapq.heappush(self._due, (vacancy.due_ms, place))
            elif found is not None and found.owner == vacancy.first:
                del before[place]
                followed += 1
            else:
                self._stale = True
        if not self._stale and owners.changes - self._changes == followed:
            self._changes += followed
            return

        self._stale = True  # Should the strategy fail, it is asked again next time.
        orders = assign(owners.vacant(brokers.alive), owners, brokers.willing, self.select)
        self._vacant, self._due = {}, []
        for place, order in orders.items():
            known = before.get(place)
            jitter_ms = self._rng.random() * JITTER_MS if len(order) > 1 else 0.0
            since_ms, jitter_ms = known[:2] if known else (now_ms, jitter_ms)
            due_ms = since_ms + order.index(self._node_id) * TURN_MS + jitter_ms
            self._vacant[place] = _Vacancy(since_ms, jitter_ms, due_ms, order[0])
            self._due.append((due_ms, place))
        heapq.heapify(self._due)
        self._stale, self._changes = False, owners.changes

    def _claim_due(self, decision: Decision, owned: Collection[Place], now_ms: float) -> None:
        """Claims what is due; what is worked on already comes back by having changed."""
        again: dict[Place, None] = {}
        while self._due:
            due_ms, place = self._due[0]
            vacancy = self._vacant.get(place)
            if vacancy is not None and due_ms > now_ms:
                decision.wake_at(due_ms)
                break
            heapq.heappop(self._due)
            if vacancy is not None and place not in owned and place not in again:
                decision.claim.append(place)
                again[place] = None
        for place in again:
            heapq.heappush(self._due, (self._vacant[place].due_ms, place))
