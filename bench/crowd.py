"""A hundred brokers and a hundred thousand partitions: claims, balance and metadata, simulated.

    python -m bench.crowd [--brokers 100] [--partitions 100000] [--topics 1000] [--seed 1]

The deciding parts are the real ones (`log/claims.py`, `log/owners.py`, the encoder of Metadata);
nothing is sent. Some brokers are followed exactly, and stand for the others: each sees every change
of every record, decides after every group of them, and claims or gives what it decides. Printed
are processor seconds of one broker, writes to the coordination service, and how even it ends.
Exit code 1 if a broker needs more than a second of its processor for any of it.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dovetail.coordination.membership import LiveBrokers
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.encoding import encoder
from dovetail.log.claims import SETTLE_MS, Claims, assign
from dovetail.log.owners import Owners, Ownership, Place
from dovetail.storage.selection import least_loaded

#: What a broker may spend on its event loop for all decisions of one event.
CPU_S_MAX = 1.0
#: Changes that arrive together: what a watch delivers while an event loop turns once.
_TOGETHER = 32
#: The version of Metadata that librdkafka asks for.
_METADATA_VERSION = 12


class Crowd:
    """All records, and the decisions of one broker of many."""

    def __init__(self, brokers: int, partitions: int, topics: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.there = list(range(1, brokers + 1))
        self.places = [Place(f"{at % topics:08x}", at // topics) for at in range(partitions)]
        self.owners = Owners()
        self.writes = 0
        self.cpu_s = 0.0

    @contextmanager
    def _on_the_processor(self) -> Iterator[None]:
        started = time.process_time()
        yield
        self.cpu_s += time.process_time() - started

    def live(self) -> LiveBrokers:
        return LiveBrokers(frozenset(self.there), frozenset(self.there))

    def create(self) -> None:
        """Every topic by its own plan, as whoever creates it does."""
        by_topic: dict[str, list[Place]] = {}
        for place in self.places:
            by_topic.setdefault(place.topic_id, []).append(place)
        for places in by_topic.values():
            with self._on_the_processor():
                order = assign(places, self.owners, self.there, least_loaded)
                for place in places:
                    self.owners.put(place, Ownership(1, order[place][0]))
            # The topic, its partitions by the hundred, and the topic again when it is ready.
            self.writes += 2 + -(-len(places) // 100)

    def die(self) -> int:
        """One broker dies: each of the others claims what is its own. Returns how many moved."""
        gone = self.rng.choice(self.there)
        self.there.remove(gone)
        watched = Claims(self.there[0], select=least_loaded, rng=self.rng)
        vacant = [place for place in self.owners if self.owners[place].owner == gone]
        plan = assign(vacant, self.owners, self.there, least_loaded)
        mine = {p for p in self.owners if self.owners[p].owner == self.there[0]}
        self._follow(watched, mine, self._claims(plan))
        return len(vacant)

    def _claims(self, plan: dict[Place, list[int]]) -> list[tuple[Place, int]]:
        """In the order in which they arrive, which is none."""
        taken = [(place, order[0]) for place, order in plan.items()]
        self.rng.shuffle(taken)
        # Claim, close the open ledger, open a new one.
        self.writes += 3 * len(taken)
        return taken

    def _follow(self, watched: Claims, mine: set[Place], changes: list[tuple[Place, int]]) -> None:
        live, now_ms, changed = self.live(), 0.0, list[Place]()
        for at in range(0, len(changes) + 1, _TOGETHER):
            with self._on_the_processor():
                mine |= {
                    *watched.decide(self.owners, live, mine, changed=changed, now_ms=now_ms).claim
                }
            changed, now_ms = [], now_ms + 100.0
            for place, owner in changes[at : at + _TOGETHER]:
                self.owners.put(place, Ownership(self.owners[place].term + 1, owner))
                changed.append(place)

    def join(self) -> int:
        """A new broker comes: everybody gives it a part. Returns how many moved."""
        self.there.append(max(self.there) + 1)
        live, moved = self.live(), 0
        claims = {node: Claims(node, select=least_loaded, rng=self.rng) for node in self.there}
        mine: dict[int, set[Place]] = {node: set(self.owners.places(node)) for node in self.there}
        for node in self.there:
            claims[node].decide(self.owners, live, mine[node], changed=(), now_ms=0.0)
        while True:
            given: list[tuple[Place, int, int]] = []
            for node in self.there:
                decide = claims[node].decide
                started = time.process_time()
                found = decide(self.owners, live, mine[node], changed=(), now_ms=2.0 * SETTLE_MS)
                took_s = time.process_time() - started
                self.cpu_s += took_s if node == self.there[0] else 0.0
                given += [(place, node, taker) for place, taker in found.give]
            if not given:
                return moved
            for place, giver, taker in given:
                self.owners.put(place, Ownership(self.owners[place].term + 1, taker))
                mine[giver].discard(place)
                mine[taker].add(place)
            moved += len(given)
            self.writes += 4 * len(given)

    def metadata(self) -> tuple[int, float, float]:
        """Bytes of an answer about everything; processor seconds of the first, and of the next."""
        of_topic: dict[str, list[Place]] = {}
        for place in self.places:
            of_topic.setdefault(place.topic_id, []).append(place)
        started = time.process_time()
        topics = [self._told(topic, places) for topic, places in of_topic.items()]
        size = self._encoded(topics)
        first_s, started = time.process_time() - started, time.process_time()
        self._encoded(topics)
        return size, first_s, time.process_time() - started

    def _told(self, topic: str, places: list[Place]) -> m.MetadataResponseTopic:
        partitions = tuple(
            m.MetadataResponsePartition(
                error_code=0,
                partition_index=place.number,
                leader_id=self.owners[place].owner,
                leader_epoch=self.owners[place].term,
                replica_nodes=(1, 2, 3),
                isr_nodes=(1, 2, 3),
                offline_replicas=(),
            )
            for place in places
        )
        return m.MetadataResponseTopic(error_code=0, name=topic, partitions=partitions)

    def _encoded(self, topics: list[m.MetadataResponseTopic]) -> int:
        encode = encoder(m.MetadataResponseTopic, _METADATA_VERSION, True)
        pieces: list[bytes] = []
        for topic in topics:
            encode(topic, pieces, [])  # type: ignore[arg-type]
        return sum(map(len, pieces))

    def spread(self) -> str:
        totals = [self.owners.total(node) for node in self.there]
        return f"{min(totals)} to {max(totals)} partitions a broker"


def _measured(crowd: Crowd, what: str, event: Callable[[], int | None]) -> bool:
    crowd.cpu_s, crowd.writes = 0.0, 0
    moved = event()
    how_many = "" if moved is None else f"{moved:,} partitions, "
    print(
        f"{what:28} {how_many}{crowd.writes:,} writes to coordination, "
        f"{crowd.cpu_s:.2f} s of one broker's processor; {crowd.spread()}"
    )
    return crowd.cpu_s <= CPU_S_MAX


def main() -> int:
    """Simulates, prints; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench.crowd", description=__doc__.splitlines()[0])
    for name, default in (("brokers", 100), ("partitions", 100_000), ("topics", 1000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    crowd = Crowd(given.brokers, given.partitions, given.topics, given.seed)
    print(f"{given.brokers} brokers, {given.partitions:,} partitions in {given.topics:,} topics")
    _measured(crowd, "all topics are created", crowd.create)
    good = _measured(crowd, "a broker dies", crowd.die)
    good &= _measured(crowd, "a broker joins", crowd.join)
    size, first_s, next_s = crowd.metadata()
    print(
        f"{'Metadata about everything':28} {size / 1e6:.1f} MB; {first_s:.2f} s to make it, "
        f"{next_s * 1000:.1f} ms when nothing has changed"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
