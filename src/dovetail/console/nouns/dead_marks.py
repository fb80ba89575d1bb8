"""Which dead letters of topics were dealt with: a log keeps its records, so they are marked.

A dead letter of a team is a record of a topic, and one record cannot be taken out of a log. So who
replays or drops it writes a mark to the topic `dovetail.dead-letters`, whose key names the record
by the id of its topic, partition and offset; marked ones are not shown any more. Where marked
records stand at the beginning of a partition, they are deleted there.

Survives: a death between the replay and its mark (the letter is still shown, and may be replayed
twice, which teams take as a repetition or do again); topics made anew under the same name.
"""

import asyncio

import msgspec

from dovetail.clock import Clock
from dovetail.console.kafka_link import KafkaLink
from dovetail.console.nouns.offsets import bounds_of
from dovetail.console.nouns.records import NewRecord, Reader, ReadLimits, Span, write
from dovetail.errors import Exists, Unavailable

TOPIC = "dovetail.dead-letters"
#: Marks of one look. Each is some hundred bytes; people make them one page at a time.
_SCAN_MAX = 200_000

#: A record: the id of its topic, partition, offset.
Place = tuple[str, int, int]


class DeadMarks:
    """The places of records that were dealt with."""

    def __init__(self, link: KafkaLink, reader: Reader, clock: Clock) -> None:
        self._link = link
        self._reader = reader
        self._clock = clock
        self._next: int | None = None
        self._marked: set[Place] = set()
        self._turn = asyncio.Lock()

    async def marked(self) -> frozenset[Place]:
        """All places that are marked. Raises `Unavailable`."""
        async with self._turn:
            bounds = (await bounds_of(self._link, [(TOPIC, 0)])).get((TOPIC, 0))
            if bounds is None:
                return frozenset(self._marked)
            if self._next is None or not bounds.first <= self._next <= bounds.end:
                self._next = bounds.first
                self._marked.clear()
            span = Span(0, self._next, bounds.end)
            reading = await self._reader.read(TOPIC, [span], ReadLimits(scan=_SCAN_MAX))
            if not reading.complete:
                raise Unavailable(f"the marks in {TOPIC!r} could not be read in time; try again")
            self._marked |= {
                place for record in reading.records if (place := _place_of(record.key)) is not None
            }
            self._next = reading.next.get(0, self._next)
            return frozenset(self._marked)

    async def mark(self, places: list[Place], *, action: str, who: str) -> None:
        """Marks records as dealt with; makes the topic if it is not there. Raises `Uncertain`."""
        if not await bounds_of(self._link, [(TOPIC, 0)]):
            await self._make_topic()
        value = msgspec.json.encode({"action": action, "who": who, "at_ms": self._clock.wall_ms()})
        await write(
            self._link,
            [
                NewRecord(TOPIC, f"{topic}/{partition}/{offset}".encode(), value, partition=0)
                for topic, partition, offset in places
            ],
        )

    async def _make_topic(self) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        kept = {"retention.ms": "-1"}
        new = NewTopic(TOPIC, num_partitions=1, replication_factor=-1, config=kept)
        try:
            await self._link.ask(
                f"creating topic {TOPIC!r}", lambda admin: admin.create_topics([new])
            )
        except Exists:
            # Somebody else was faster.
            return


def _place_of(key: bytes | None) -> Place | None:
    parts = (key or b"").decode(errors="replace").split("/")
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    return parts[0], int(parts[1]), int(parts[2])
