"""Marks dead letters of topics that were replayed or dropped, because a log keeps its records.

A dead letter of a team is a record of a topic, and one record cannot be taken out of a log. So a
replay or a drop writes a mark to the topic `dovetail.dead-letters`, whose key names the record by
the id of its topic, partition and offset; marked records no longer show. Marked records at the
beginning of a partition are deleted there.

Survives: a death between the replay and its mark (the letter still shows, and a second replay is a
repetition that the team drops or a job that it does again); topics recreated under a name.
"""

import threading
import time

import msgspec

from dovetail.admin.feed import Feed
from dovetail.admin.kafka import Kafka
from dovetail.admin.records import NewRecord, write
from dovetail.admin.topics import create_topic
from dovetail.errors import Exists

TOPIC = "dovetail.dead-letters"

#: A record: the id of its topic, partition, offset.
Place = tuple[str, int, int]


class DeadMarks:
    """The places of records that were dealt with. Safe between threads."""

    def __init__(self) -> None:
        self._feed = Feed(TOPIC)
        self._marked: set[Place] = set()
        self._turn = threading.Lock()

    def marked(self, kafka: Kafka) -> frozenset[Place]:
        """All places that are marked. Raises `Unavailable`."""
        with self._turn:
            found = self._feed.read(kafka)
            if found is not None:
                records, anew = found
                if anew:
                    self._marked.clear()
                places = (_place_of(record.key) for record in records)
                self._marked |= {place for place in places if place is not None}
            return frozenset(self._marked)

    def mark(self, kafka: Kafka, places: list[Place], *, action: str, who: str) -> None:
        """Marks records as dealt with; creates the topic if there is none. Raises `Uncertain`."""
        if TOPIC not in kafka.metadata(TOPIC).topics:
            try:
                create_topic(kafka, TOPIC, partitions=1, config={"retention.ms": "-1"})
            except Exists:
                # Another console was faster.
                pass
        at_ms = time.time_ns() // 1_000_000
        value = msgspec.json.encode({"action": action, "who": who, "at_ms": at_ms})
        keys = [f"{topic}/{partition}/{offset}" for topic, partition, offset in places]
        write(kafka, [NewRecord(TOPIC, key.encode(), value, partition=0) for key in keys])


def _place_of(key: bytes | None) -> Place | None:
    parts = (key or b"").decode(errors="replace").split("/")
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        return None
    return parts[0], int(parts[1]), int(parts[2])
