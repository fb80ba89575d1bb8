"""Storage nodes of this process as a cluster."""

from collections.abc import Collection, Mapping, Sequence

from dovetail.errors import Unavailable
from dovetail.storage import LocalStorageNode, StorageNode


class LocalNodes:
    """All of them, by number; those that are `absent` cannot be reached."""

    def __init__(self, nodes: Mapping[int, LocalStorageNode]) -> None:
        self.local = dict(nodes)
        self.absent: set[int] = set()

    def node(self, number: int) -> StorageNode:
        if number in self.absent:
            raise Unavailable(f"{number} is away")
        return self.local[number]

    def near(self, number: int) -> bool:
        return False

    def choose(
        self,
        count: int,
        *,
        without: Sequence[int],
        beside: Sequence[int] = (),
        among: Collection[int] | None = None,
    ) -> tuple[int, ...]:
        return tuple(n for n in self.local if n not in without)[:count]

    def away(self) -> tuple[int, ...]:
        return ()
