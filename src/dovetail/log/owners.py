"""Which broker owns which partition, indexed by owner and by topic; pure.

Brokers decide whenever something changes, so a decision's cost must depend on the change and not on
all that exists: this index knows how many partitions each broker has, and which have an owner that
is not alive, without walking over all of them. It uses a dict in place of a set where the order
must be the same in every process.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

#: Nobody owns it.
NOBODY = -1
#: Nobody owns it and nobody may: its topic is being deleted.
DELETED = -2


class Place(NamedTuple):
    """A partition by its topic's id: a topic of the same name that comes later is another."""

    topic_id: str
    number: int


class Ownership(NamedTuple):
    """What a partition's record says about its owner."""

    term: int
    owner: int


class Owners(Mapping[Place, Ownership]):
    """The partitions that a broker owns or may own, with their owners."""

    def __init__(self, known: Mapping[Place, Ownership] | None = None) -> None:
        self._known: dict[Place, Ownership] = {}
        self._by_owner: dict[int, dict[Place, None]] = {}
        self._of_topic: dict[tuple[int, str], int] = {}
        #: Grows whenever a partition comes, goes or gets another owner.
        self.changes = 0
        for place, ownership in (known or {}).items():
            self.put(place, ownership)

    def __getitem__(self, place: Place) -> Ownership:
        return self._known[place]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def put(self, place: Place, ownership: Ownership) -> None:
        """The partition has this owner now."""
        known, owner = self._known.get(place), ownership.owner
        if known is not None and known.owner == owner:
            self._known[place] = ownership
            return
        self.drop(place)
        # One change, also where the partition had another owner.
        self.changes += known is None
        self._known[place] = ownership
        self._by_owner.setdefault(owner, {})[place] = None
        self._of_topic[owner, place.topic_id] = self.of_topic(owner, place.topic_id) + 1

    def drop(self, place: Place) -> None:
        """The partition is gone, or no broker may own it any more."""
        known = self._known.pop(place, None)
        if known is None:
            return
        self.changes += 1
        owner = known.owner
        del self._by_owner[owner][place]
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self._of_topic[owner, place.topic_id] -= 1
        if not self._of_topic[owner, place.topic_id]:
            del self._of_topic[owner, place.topic_id]

    def total(self, owner: int) -> int:
        """How many partitions a broker has."""
        return len(self._by_owner.get(owner, ()))

    def places(self, owner: int) -> Collection[Place]:
        """The partitions of a broker."""
        return self._by_owner.get(owner, {}).keys()

    def of_topic(self, owner: int, topic_id: str) -> int:
        """How many partitions of one topic a broker has."""
        return self._of_topic.get((owner, topic_id), 0)

    def vacant(self, alive: Collection[int]) -> list[Place]:
        """The partitions whose owner is not alive."""
        return [
            place
            for owner, places in self._by_owner.items()
            if owner not in alive
            for place in places
        ]
