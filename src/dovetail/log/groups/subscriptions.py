"""The topics to which the members of a group are subscribed, by name and by pattern.

Topics are created, grow and are deleted; they are looked up again when their version or a
subscription has changed.
"""

import zlib
from collections.abc import Iterable

from dovetail.log.groups.assignors import Counts, Part
from dovetail.log.groups.consumer_member import Member
from dovetail.log.groups.consumer_types import TopicView
from dovetail.log.groups.topic_patterns import TopicPattern

_NEVER = -1
CHECKSUM_OF_NOTHING = zlib.crc32(b"[]")


class Subscriptions:
    """The topics of one group."""

    def __init__(self, topics: TopicView) -> None:
        self._topics = topics
        self._seen_version = _NEVER
        #: The id and the partitions of each topic that somebody is subscribed to, by name.
        self._facts: dict[str, tuple[str, int]] = {}
        #: Each pattern, the version of the topics that it was matched with, and what it matched.
        self._patterns: dict[str, tuple[TopicPattern, int, frozenset[str]]] = {}
        #: Another number when the topics or their partitions are others.
        self.checksum = CHECKSUM_OF_NOTHING

    def learn(self, pattern: str) -> None:
        """Makes a pattern known. Raises `InvalidInput`."""
        if pattern not in self._patterns:
            self._patterns[pattern] = (TopicPattern(pattern), _NEVER, frozenset())

    def changed(self) -> None:
        """Other topics count from now on."""
        self._seen_version = _NEVER

    def refresh(self, members: Iterable[Member]) -> None:
        """Looks at the topics again if that is due."""
        if self._seen_version == self._topics.version:
            return
        self._seen_version = self._topics.version
        known = list(members)
        names = {name for member in known for name in member.names}
        used = {member.pattern for member in known}
        self._patterns = {text: self._patterns[text] for text in self._patterns if text in used}
        for text, (compiled, version, matched) in self._patterns.items():
            if version != self._seen_version:  # Thousands of names take tens of milliseconds.
                matched = compiled.among(self._topics.names())
                self._patterns[text] = (compiled, self._seen_version, matched)
            names |= matched

        facts = {name: self._topics.facts(name) for name in names}
        self._facts = {name: found for name, found in facts.items() if found is not None}
        self.checksum = zlib.crc32(repr(sorted(self._facts.items())).encode())

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._facts)

    @property
    def counts(self) -> Counts:
        """The number of partitions of each topic, by its id."""
        return dict(self._facts.values())

    def of(self, member: Member) -> frozenset[str]:
        """The ids of the topics that a member is subscribed to."""
        names: Iterable[str] = member.names
        if member.pattern is not None:
            names = member.names | self._patterns[member.pattern][2]
        return frozenset(self._facts[name][0] for name in names if name in self._facts)

    def ids(self, parts: Iterable[tuple[str, int]]) -> frozenset[Part]:
        """Partitions by the ids of their topics; those of unknown topics are left out."""
        found = set()
        for name, number in parts:
            facts = self._topics.facts(name)
            if facts is not None:
                found.add((facts[0], number))
        return frozenset(found)

    def named(self, parts: Iterable[Part]) -> list[tuple[str, int]]:
        """Partitions by the names of their topics; those of topics that are gone are left out."""
        names = {topic_id: name for name, (topic_id, _) in self._facts.items()}
        return [(names[topic], number) for topic, number in sorted(parts) if topic in names]
