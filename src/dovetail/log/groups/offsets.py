"""The committed positions of a group: one per topic and partition.

Only stored positions are here; a fetch does not see one that is on its way to the journal. A
position of a group without members expires `offsets_retention_ms` after the later of its commit and
the moment when the group became empty.
"""

from collections.abc import Iterable, Iterator, Mapping

from dovetail.log.groups.types import CommittedOffset, PartitionKey


class OffsetTable:
    """The stored positions of one group."""

    __slots__ = ("_offsets",)

    def __init__(self) -> None:
        self._offsets: dict[PartitionKey, CommittedOffset] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._offsets)

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._offsets

    def put(self, key: PartitionKey, committed: CommittedOffset) -> None:
        """Takes a position that is stored."""
        self._offsets[key] = committed

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """Forgets positions; no error if they are not there."""
        for key in keys:
            self._offsets.pop(key, None)

    def fetch(
        self, keys: Iterable[PartitionKey] | None = None
    ) -> Mapping[PartitionKey, CommittedOffset]:
        """The named positions that exist, or all."""
        if keys is None:
            return dict(self._offsets)
        return {key: self._offsets[key] for key in keys if key in self._offsets}

    def of_topic(self, topic: str) -> list[PartitionKey]:
        return [key for key in self._offsets if key.topic == topic]

    def expired(
        self, *, now_wall_ms: int, empty_since_wall_ms: int, retention_ms: int
    ) -> list[PartitionKey]:
        """The positions that a group without members need not keep any longer.

        A `retention_ms` of -1 keeps them for ever.
        """
        if retention_ms < 0:
            return []
        return [
            key
            for key, committed in self._offsets.items()
            if max(committed.committed_wall_ms, empty_since_wall_ms) + retention_ms <= now_wall_ms
        ]
