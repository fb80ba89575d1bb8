"""What the partitions of this broker hold, with numbered changes."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from dovetail.log.owners import Place
from dovetail.storage.chain import PartitionRecord


class Ends(NamedTuple):
    """What a partition holds: the first offset, the next one to be written, bytes of batches."""

    first: int
    end: int
    bytes: int


class Filled(Protocol):
    """A partition, as far as it is looked at here."""

    high_watermark: int

    @property
    def record(self) -> PartitionRecord: ...

    @property
    def payload_bytes(self) -> int: ...


class _Known(NamedTuple):
    place: Place
    #: What it was made from; a record is replaced, never changed.
    record: PartitionRecord
    high_watermark: int
    number: int
    ends: Ends


class HeldEnds:
    """The partitions of one broker."""

    def __init__(self, partitions: Callable[[], Iterable[Filled]]) -> None:
        self._partitions = partitions
        self._known: dict[Filled, _Known] = {}
        self._number = 0
        #: Numbers of another life mean nothing here.
        self.life = uuid.uuid4().hex[:12]

    def since(self, life: str, number: int) -> tuple[int, Iterator[tuple[Place, Ends]]]:
        """The newest number, and what has changed behind the one that is known to the asker."""
        self._look()
        behind = number if life == self.life else 0
        changed = (
            (known.place, known.ends) for known in self._known.values() if known.number > behind
        )
        return self._number, changed

    def _look(self) -> None:
        """Compares; computes where something has changed."""
        before, now = self._known, {}
        number = self._number + 1
        for partition in self._partitions():
            record, end = partition.record, partition.high_watermark
            known = before.get(partition)
            if known is None or known.record is not record or known.high_watermark != end:
                place = Place(record.topic_id, record.partition)
                ends = Ends(record.log_start, end, partition.payload_bytes)
                known = _Known(place, record, end, number, ends)
                self._number = number
            now[partition] = known
        self._known = now
