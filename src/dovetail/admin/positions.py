"""Positions in a partition: one grammar for people, and what each position means as an offset.

    beginning, earliest                the first record that the partition still holds
    end, latest                        behind the last record
    1200, offset:1200                  an offset
    2026-01-31T08:00, time:2026-...    the first record of that time or later
    time:1767225600000                 the same, in milliseconds since the epoch

A time without a zone is in the zone of the machine that reads it. An offset outside what the
partition holds moves to the nearer end; a time later than every record is the end.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from dovetail.errors import DovetailError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from dovetail.admin.kafka import Kafka, Metadata, Partition

#: Largest offset and time: 63 bits, as everywhere in the protocol.
NUMBER_MAX = 2**63 - 1
#: A broker that lives answers in milliseconds; nobody waits long for one that died just now.
ANSWER_S_MAX = 2.0
#: A partition that did not answer is asked once more after this: its leader may have moved.
_LOOK_AGAIN_S = 0.15

_WORDS: dict[str, Literal["beginning", "end"]] = {
    "beginning": "beginning",
    "earliest": "beginning",
    "end": "end",
    "latest": "end",
}


@dataclass(frozen=True, slots=True)
class Position:
    """`number` is the offset, or the time in milliseconds since the epoch."""

    kind: Literal["beginning", "end", "offset", "time"]
    number: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """First offset that a partition holds, and the next one to be written."""

    first: int
    end: int


def parse_position(text: str) -> Position:
    """The position that `text` names. Raises `InvalidInput`."""
    word = _WORDS.get(text.lower())
    if word is not None:
        return Position(word)

    # A time of day has colons of its own, so only these two words are split off.
    kind = next((kind for kind in ("offset", "time") if text.startswith(f"{kind}:")), "")
    rest = text.removeprefix(f"{kind}:")
    if rest.isascii() and rest.isdigit() and len(rest) <= 19 and int(rest) <= NUMBER_MAX:
        return Position("time" if kind == "time" else "offset", int(rest))
    if kind != "offset":
        try:
            return Position("time", max(0, round(datetime.fromisoformat(rest).timestamp() * 1000)))
        except (ValueError, OverflowError, OSError):
            pass
    raise InvalidInput(
        f"{text[:80]!r} is not a position; write beginning, end, an offset (1200 or offset:1200) "
        "or a time (2026-01-31T08:00, 2026-01-31T08:00:00Z or time:1767225600000)"
    )


def bounds_of(
    kafka: "Kafka", partitions: "Iterable[Partition]", *, metadata: "Metadata | None" = None
) -> "dict[Partition, Bounds]":
    """First and next offset of each partition that answers; the others are left out.

    `metadata` saves a request if it is from just now. Raises `Unreachable` if nobody answers.
    """
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    asked = list(partitions)
    if not asked:
        return {}
    metadata = metadata or kafka.metadata()
    first = _listed(kafka, asked, OffsetSpec.earliest(), metadata)  # type: ignore[no-untyped-call]
    alive = [place for place in asked if isinstance(first[place], int)]
    end = _listed(kafka, alive, OffsetSpec.latest(), metadata)  # type: ignore[no-untyped-call]
    return {
        place: Bounds(start, stop)
        for place in alive
        if isinstance(start := first[place], int) and isinstance(stop := end[place], int)
    }


def all_bounds_of(
    kafka: "Kafka", partitions: "Iterable[Partition]", *, metadata: "Metadata | None" = None
) -> "dict[Partition, Bounds]":
    """As `bounds_of`, of every one. Raises `Unavailable` if one does not answer."""
    asked = list(partitions)
    found = bounds_of(kafka, asked, metadata=metadata)
    silent = [f"{topic}-{number}" for topic, number in asked if (topic, number) not in found]
    if silent:
        raise Unavailable(
            f"no broker answers for {', '.join(silent[:5])}: the partition has no leader, or its "
            "leader does not respond; try again in some seconds"
        )
    return found


def resolve(
    kafka: "Kafka", position: Position, bounds: "Mapping[Partition, Bounds]"
) -> "dict[Partition, int]":
    """The offset of a position in each partition, moved into what the partition holds."""
    if position.kind == "time":
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        found = _listed(kafka, list(bounds), OffsetSpec.for_timestamp(position.number), None)
        offsets = {}
        for place, bound in bounds.items():
            at = found[place]
            if isinstance(at, DovetailError):
                raise at
            offsets[place] = at if at >= 0 else bound.end
        return offsets

    if position.kind == "offset":
        return {
            place: min(max(position.number, bound.first), bound.end)
            for place, bound in bounds.items()
        }
    return {
        place: bound.first if position.kind == "beginning" else bound.end
        for place, bound in bounds.items()
    }


def _listed(
    kafka: "Kafka", partitions: "list[Partition]", spec: Any, metadata: "Metadata | None"
) -> "dict[Partition, int | DovetailError]":
    """For each partition the offset that `spec` names, or why there is none.

    A partition without a leader is not asked: the client would wait for one.
    """
    if not partitions:
        return {}
    leaders = (metadata or kafka.metadata()).leaders()
    led = [place for place in partitions if leaders.get(place) is not None]
    answers = {place: _without_leader(place) for place in partitions} | _ask(kafka, led, spec)

    failed = [place for place in led if isinstance(answers[place], DovetailError)]
    if failed:
        time.sleep(_LOOK_AGAIN_S)
        kafka.metadata()
        answers |= _ask(kafka, failed, spec)
    return answers


def _ask(
    kafka: "Kafka", partitions: "list[Partition]", spec: Any
) -> "dict[Partition, int | DovetailError]":
    from confluent_kafka import TopicPartition

    if not partitions:
        return {}
    request = {TopicPartition(*place): spec for place in partitions}
    limit_s = min(ANSWER_S_MAX, kafka.timeout_s)
    found = kafka.try_each(
        "listing offsets", lambda admin: admin.list_offsets(request, request_timeout=limit_s)
    )
    return {
        (key.topic, key.partition): answer if isinstance(answer, DovetailError) else answer.offset
        for key, answer in found.items()
    }


def _without_leader(partition: "Partition") -> DovetailError:
    return Unavailable(f"partition {partition[0]}-{partition[1]} has no leader, or does not exist")
