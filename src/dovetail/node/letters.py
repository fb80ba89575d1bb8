"""Appends dead letters of timelines to a topic (see `timeline/forwarding.py`).

They take the same path as a share group's dead letters: the partition's owner, on whichever broker
it is, appends them.
"""

from collections.abc import Sequence
from zlib import crc32

from dovetail.clock import Clock
from dovetail.errors import DovetailError, TopicUnknown
from dovetail.log.share.registry import ShareRegistry
from dovetail.record_batch import NewRecord
from dovetail.timeline.forwarding import Letter


class LetterTopics:
    """The topics of the cluster, for dead letters of timelines."""

    def __init__(self, shares: ShareRegistry, clock: Clock) -> None:
        self._shares = shares
        self._clock = clock

    def check(self, topic: str) -> None:
        """Raises `TopicUnknown`."""
        if not self._shares.is_or_will_be(topic):
            raise TopicUnknown(f"dead letters cannot go to topic {topic!r}: it does not exist")

    async def put(self, topic: str, letters: Sequence[Letter]) -> list[DovetailError | None]:
        """Stores letters, those of one key in one partition, in their order."""
        records = [self._record(letter) for letter in letters]
        lanes: dict[int, list[NewRecord]] = {}
        for record in records:
            lanes.setdefault(_lane(record), []).append(record)
        failed = await self._shares.put(topic, lanes)
        return [failed.get(_lane(record)) for record in records]

    def _record(self, letter: Letter) -> NewRecord:
        """A letter without a key has its id for one: a compacted topic keeps each of them."""
        shown = letter.shown
        key = shown.key or shown.order_key or letter.id
        return NewRecord(
            shown.died_ms or self._clock.wall_ms(), key.encode(), shown.body, list(letter.headers)
        )


def _lane(record: NewRecord) -> int:
    return crc32(record.key or b"")
