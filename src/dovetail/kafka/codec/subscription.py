"""A consumer's subscription, which it sends when it joins a group, and its assignment.

The formats belong to the clients (Kafka's "consumer" protocol). The log treats them as opaque and
calls this module: to protect positions of topics that are being consumed, and for groups that have
members of both protocols.

    subscription   version | topics | user data | from version 1: the partitions it has | ...
    assignment     version | partitions | user data
"""

import struct
from collections.abc import Iterable

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_Parts = frozenset[tuple[str, int]]

#: From this version on a subscription says which partitions the member has.
_OWNED_SINCE = 1


class _Malformed(ValueError):
    """These bytes are something else."""


class _Reader:
    """Reads such bytes from front to back; whatever they are, nothing but `_Malformed` comes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: struct.Struct) -> int:
        if self._at + form.size > len(self._data):
            raise _Malformed
        (found,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return int(found)

    def count(self, bytes_min: int) -> int:
        """How many follow; no more than there is room for."""
        found = self.number(_INT32)
        if not 0 <= found <= (len(self._data) - self._at) // bytes_min:
            raise _Malformed
        return found

    def text(self) -> str:
        length = self.number(_INT16)
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise _Malformed
        start, self._at = self._at, end
        try:
            return self._data[start:end].decode()
        except UnicodeDecodeError as error:
            raise _Malformed from error

    def skip_bytes(self) -> None:
        length = self.number(_INT32)
        self._at += max(length, 0)

    def topics(self) -> frozenset[str]:
        return frozenset(self.text() for _ in range(self.count(_INT16.size)))

    def parts(self) -> _Parts:
        found: set[tuple[str, int]] = set()
        for _ in range(self.count(_INT16.size + _INT32.size)):
            topic = self.text()
            numbers = [self.number(_INT32) for _ in range(self.count(_INT32.size))]
            found.update((topic, number) for number in numbers)
        return frozenset(found)


def topics_of(protocol_type: str, metadata: bytes) -> frozenset[str] | None:
    """The subscribed topics, or None if these bytes are not a consumer's subscription."""
    if protocol_type != "consumer":
        return None
    reader = _Reader(metadata)
    try:
        reader.number(_INT16)
        return reader.topics()
    except _Malformed:
        return None


class ConsumerFormats:
    """The `MemberFormats` of Kafka's consumers."""

    def subscription(self, metadata: bytes) -> tuple[frozenset[str], _Parts] | None:
        """The topics that a member wants and the partitions that it has; None: something else."""
        reader = _Reader(metadata)
        try:
            version = reader.number(_INT16)
            topics = reader.topics()
            reader.skip_bytes()
            return topics, reader.parts() if version >= _OWNED_SINCE else frozenset()
        except _Malformed:
            return None

    def assigned(self, assignment: bytes) -> _Parts:
        """The partitions of an assignment; none if it is something else."""
        reader = _Reader(assignment)
        try:
            reader.number(_INT16)
            return reader.parts()
        except _Malformed:
            return frozenset()

    def assignment(self, parts: Iterable[tuple[str, int]]) -> bytes:
        """The assignment of these partitions, in the version that every client reads."""
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(parts):
            by_topic.setdefault(topic, []).append(number)
        made = [_INT16.pack(0), _INT32.pack(len(by_topic))]
        for topic, numbers in by_topic.items():
            name = topic.encode()
            made += [_INT16.pack(len(name)), name]
            made.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
        return b"".join([*made, _INT32.pack(-1)])
