"""Shared streams as their logs have them: every environment of a log, folded as members do it.

A shared log is a topic with one partition that is kept for ever, which is how members make it; a
log that was made otherwise is found by its name. What was read once is remembered, and only what is
new is read again. Nothing is ever written to a log from here. The room of streams is imported when
the first log is read: a node that has none need not load it.
"""

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from dovetail.clock import Clock
from dovetail.console.kafka_link import KafkaLink
from dovetail.console.nouns.offsets import Bounds, bounds_of
from dovetail.console.nouns.records import Reader, ReadLimits, Record, Span
from dovetail.errors import TopicUnknown, Unavailable

if TYPE_CHECKING:
    from dovetail.election.fold import LogState
    from dovetail.election.shared_log import LogFollower

#: Records of a log; members trim it long before.
_SCAN_MAX = 200_000
#: Logs whose state is remembered.
_LOGS_MAX = 200


class _Log:
    """What was read of one log so far."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.next: int | None = None
        self.followers: dict[str, LogFollower] = {}

    def take(self, records: list[Record], *, opening: bool) -> None:
        from dovetail.election.fold import decode_record
        from dovetail.election.shared_log import LogFollower

        for record in records:
            name = (record.key or b"").decode(errors="replace")
            told = decode_record(record.value or b"")
            if name not in self.followers and told is not None:
                follower = self.followers[name] = LogFollower(self._clock)
                follower.index_next = 0 if opening else record.offset
            for environment, follower in self.followers.items():
                mine = told if environment == name else None
                follower.take(record.offset, mine, record.timestamp_ms)
        if opening:
            for follower in self.followers.values():
                follower.close_gap()


class StreamFeed:
    """The state of shared logs by topic and environment."""

    def __init__(self, link: KafkaLink, reader: Reader, clock: Clock) -> None:
        self._link = link
        self._reader = reader
        self._clock = clock
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        self._turn = asyncio.Lock()

    async def environments(self, topic: str) -> "dict[str, LogState]":
        """The state of each environment of a log; none if the topic is no shared log.

        Raises `TopicUnknown`, `Unavailable`.
        """
        async with self._turn:
            bounds = (await bounds_of(self._link, [(topic, 0)])).get((topic, 0))
            if bounds is None:
                raise TopicUnknown(f"no topic {topic!r}, or its owner does not answer")
            if topic not in self._logs and not await self._looks_like_one(topic, bounds):
                return {}
            log = await self._read(topic, bounds)
            return {name: follower.state for name, follower in log.followers.items()}

    async def _looks_like_one(self, topic: str, bounds: Bounds) -> bool:
        """Whether the last record is one of a shared log; a large other topic is not read."""
        from dovetail.election.fold import decode_record

        last = [Span(0, bounds.end - 1, bounds.end)] if bounds.first < bounds.end else []
        reading = await self._reader.read(topic, last, ReadLimits(scan=1))
        return any(decode_record(record.value or b"") for record in reading.records)

    async def _read(self, topic: str, bounds: Bounds) -> _Log:
        log = self._logs.get(topic)
        if log is None or log.next is None or not bounds.first <= log.next <= bounds.end:
            # Read anew: never read, or trimmed below where we were, or made anew.
            log = self._logs[topic] = _Log(self._clock)
        self._logs.move_to_end(topic)
        while len(self._logs) > _LOGS_MAX:
            self._logs.popitem(last=False)
        opening = log.next is None
        start = bounds.first if log.next is None else log.next
        span = Span(0, start, bounds.end)
        reading = await self._reader.read(topic, [span], ReadLimits(scan=_SCAN_MAX))
        if not reading.complete:
            raise Unavailable(
                f"the shared log {topic!r} could not be read to its end in time; try again"
            )
        log.take(reading.records, opening=opening)
        log.next = reading.next.get(0, bounds.end)
        return log
