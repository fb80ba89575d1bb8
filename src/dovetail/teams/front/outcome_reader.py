"""Reads topics without a group: outcomes from the right place on, and windows of jobs.

Outcomes are read from the ends that were noted before a job was submitted, or from a time. Results
carry the time of the worker that wrote them, so a search by time begins `CLOCKS_MS` earlier: the
clocks of workers and brokers may differ by that much, and nothing is missed.
"""

import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from dovetail.errors import DovetailError, TopicUnknown, Unavailable
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import LATEST, USUAL_MANNERS, Partition, client_of, name_of
from dovetail.kafka.client.librdkafka import SILENT, meaning_of

#: What librdkafka reports and repairs itself. A topic that was made just now is not known to every
#: broker yet.
_PASSING = SILENT | {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}

#: How far the clocks of workers and brokers may differ.
CLOCKS_MS = 60_000
POLL_S = 0.1


def ends_of(
    brokers: Brokers, topics: Iterable[str], *, within_s: float | None = None
) -> dict[Partition, int]:
    """Where topics end now. Raises `TopicUnknown`, `Unavailable`."""
    manners = USUAL_MANNERS
    if within_s is not None and within_s < manners.timeout_s:
        # Whole seconds: clients of equal manners are shared, and all are kept.
        manners = replace(manners, timeout_s=max(1, math.ceil(within_s)))
    client = client_of(brokers, manners)
    try:
        there = client.partitions(topics)
    except TopicUnknown as error:
        raise TopicUnknown(
            f"{error}: start the pipeline, or create its topics (create_topics)"
        ) from error
    places = [(topic, number) for topic, numbers in there.items() for number in numbers]
    return client.offsets(dict.fromkeys(places, LATEST))


def since(brokers: Brokers, ends: Mapping[Partition, int], at_ms: int) -> dict[Partition, int]:
    """Where outcomes of a time begin; at the `ends` where there are none yet."""
    wanted = dict.fromkeys(ends, max(0, at_ms - CLOCKS_MS))
    found = client_of(brokers).offsets(wanted)
    return {place: ends[place] if first < 0 else first for place, first in found.items()}


class Reader:
    """Reads partitions from given positions on."""

    def __init__(self, brokers: Brokers, positions: Mapping[Partition, int]) -> None:
        self._consumer = Consumer(
            {
                **brokers.for_librdkafka(),
                # It is never joined; librdkafka wants one.
                "group.id": f"dovetail-frontend-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                # Retention may have removed the position by now.
                "auto.offset.reset": "earliest",
            }
        )
        #: Partitions of which what was there at first is not read yet.
        self.behind = set(positions)
        places = [TopicPartition(*place, offset) for place, offset in positions.items()]
        self._consumer.assign(places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._consumer.close()

    def poll(self) -> list[Message]:
        """What arrived within a moment. Raises what will not pass."""
        messages = []
        for message in self._consumer.consume(1000, timeout=POLL_S):
            error = message.error()
            if error is None:
                messages.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.behind.discard((message.topic() or "", message.partition() or 0))
            elif (lasting := _lasting(message, error)) is not None:
                raise lasting
        return messages


def window(
    brokers: Brokers, place: Partition, *, since_ms: int, below: int
) -> Iterator[tuple[int, int, Message]]:
    """The records of a partition from a time on and below an offset: offset, time, record.

    Raises `Unavailable` if they do not come.
    """
    client = client_of(brokers)
    start = client.offsets({place: max(0, since_ms)})[place]
    if start < 0 or start >= below:
        return
    position, quiet_since = start, time.monotonic()
    with Reader(brokers, {place: start}) as reader:
        while position < below:
            messages = reader.poll()
            if messages:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > client.request_s:
                raise Unavailable(
                    f"reading {name_of(place)}: no record at offset {position} within "
                    f"{client.request_s:g} s, though one is stored at {below}"
                )
            for message in messages:
                position = int(message.offset() or 0)
                if position >= below:
                    return
                yield position, message.timestamp()[1], message
                position += 1


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    """The headers of a record; one without a value is empty."""
    given: Any = message.headers()
    return [(name, value or b"") for name, value in given or ()]


def _lasting(message: Message, error: KafkaError) -> DovetailError | None:
    """What an error means, if it does not pass by itself."""
    found = meaning_of(f"reading {message.topic()}", error)
    passes = found.retriable or error.retriable() or error.code() in _PASSING
    return None if passes and not error.fatal() else found
