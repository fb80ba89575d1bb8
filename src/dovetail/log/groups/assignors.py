"""Assignors of the new group protocol: assign partitions to members; pure.

Those of consumer groups give every partition of every subscribed topic to exactly one member that
is subscribed to it. They are deterministic: the same input gives the same result.

    uniform   as evenly as subscriptions allow; as far as possible a member keeps what it has
    range     each topic cut into ranges, one for each member in the order of their names

Share groups have their own, which gives a partition to several members if there are enough:

    simple    every subscribed member has a partition of the topic, and every partition a member
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

#: A topic by its id, and the number of a partition.
Part = tuple[str, int]
Assignment = frozenset[Part]


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it."""

    name: str
    #: The ids of the topics that it is subscribed to.
    topics: frozenset[str]
    #: What it was given before.
    before: Assignment = field(default_factory=frozenset)


Counts = Mapping[str, int]
Assignor = Callable[[Mapping[str, Subscriber], Counts], dict[str, Assignment]]


def by_range(members: Mapping[str, Subscriber], counts: Counts) -> dict[str, Assignment]:
    """Ranges of each topic; the first members get one more if it does not divide."""
    given: dict[str, set[Part]] = {member: set() for member in members}
    for topic in sorted(counts):
        readers = sorted(
            (one for one in members if topic in members[one].topics),
            key=lambda one: (members[one].name, one),
        )
        if not readers:
            continue
        each, more = divmod(counts[topic], len(readers))
        start = 0
        for at, member in enumerate(readers):
            end = start + each + (at < more)
            given[member].update((topic, number) for number in range(start, end))
            start = end
    return {member: frozenset(parts) for member, parts in given.items()}


def uniform(members: Mapping[str, Subscriber], counts: Counts) -> dict[str, Assignment]:
    """Keeps what can stay, gives the rest to who has least, then evens out."""
    given: dict[str, set[Part]] = {member: set() for member in sorted(members)}
    taken: set[Part] = set()
    for member, kept in given.items():
        subscriber = members[member]
        for part in subscriber.before:
            fits = part[0] in subscriber.topics and part[1] < counts.get(part[0], 0)
            if fits and part not in taken:
                kept.add(part)
                taken.add(part)

    readers: dict[str, list[str]] = {
        topic: [member for member in given if topic in members[member].topics] for topic in counts
    }
    same = len({tuple(found) for found in readers.values() if found}) <= 1
    free = [
        (topic, number)
        for topic in sorted(counts, key=lambda topic: (len(readers[topic]), topic))
        for number in range(counts[topic])
        if (topic, number) not in taken and readers[topic]
    ]
    if same:
        _even_all(given, free, [found for found in readers.values() if found])
    else:
        _even_some(given, free, readers)
    return {member: frozenset(parts) for member, parts in given.items()}


def _even_all(given: dict[str, set[Part]], free: list[Part], readers: list[list[str]]) -> None:
    """All who read anything read everything: each gets its share, the fullest keep one more."""
    sharers = readers[0] if readers else []
    if not sharers:
        return
    total = len(free) + sum(len(given[member]) for member in sharers)
    each, more = divmod(total, len(sharers))
    fullest = sorted(sharers, key=lambda member: (-len(given[member]), member))
    shares = {member: each + (at < more) for at, member in enumerate(fullest)}
    for member in sharers:
        over = len(given[member]) - shares[member]
        if over > 0:
            dropped = sorted(given[member])[-over:]
            given[member].difference_update(dropped)
            free += dropped
    left = iter(free)
    for member in sharers:
        for _ in range(shares[member] - len(given[member])):
            given[member].add(next(left))


def _even_some(
    given: dict[str, set[Part]], free: list[Part], readers: Mapping[str, list[str]]
) -> None:
    """Subscriptions differ: give to who has least, then move one by one while that helps."""
    for part in free:
        least = min(readers[part[0]], key=lambda member: (len(given[member]), member))
        given[least].add(part)

    moved = True
    while moved:
        moved = False
        for member in sorted(given, key=lambda one: -len(given[one])):
            by_topic: dict[str, list[Part]] = defaultdict(list)
            for part in given[member]:
                by_topic[part[0]].append(part)
            for topic, parts in sorted(by_topic.items()):
                least = min(readers[topic], key=lambda one: (len(given[one]), one))
                while parts and len(given[member]) > len(given[least]) + 1:
                    part = max(parts)
                    parts.remove(part)
                    given[member].discard(part)
                    given[least].add(part)
                    moved = True
                    least = min(readers[topic], key=lambda one: (len(given[one]), one))


def simple(members: Mapping[str, Subscriber], counts: Counts) -> dict[str, Assignment]:
    """Gives the partitions of each topic to its members, round by round, until both are through."""
    given: dict[str, set[Part]] = {member: set() for member in members}
    for topic in sorted(counts):
        readers = sorted(one for one in members if topic in members[one].topics)
        rounds = max(counts[topic], len(readers)) if readers and counts[topic] else 0
        for at in range(rounds):
            given[readers[at % len(readers)]].add((topic, at % counts[topic]))
    return {member: frozenset(parts) for member, parts in given.items()}


#: By the names that clients ask for; the first one is used if nobody asks.
ASSIGNORS: dict[str, Assignor] = {"uniform": uniform, "range": by_range}

#: Of share groups, whose members cannot ask for one.
SHARE_ASSIGNORS: dict[str, Assignor] = {"simple": simple}
