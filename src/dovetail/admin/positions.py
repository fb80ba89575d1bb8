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
from typing import TYPE_CHECKING, Literal

from dovetail.errors import DovetailError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from dovetail.admin.kafka import Kafka, Metadata, Partition

#: Largest offset and time: 63 bits, as everywhere in the protocol.
NUMBER_MAX = 2**63 - 1
#: The first record, and the place behind the last one, where a request asks by time.
_EARLIEST, _LATEST = -2, -1
#: A partition that did not answer is asked once more after this: its leader may have moved.
_LOOK_AGAIN_S = 0.15
#: Leaders of so many topics are asked for by name; an answer about all may be of thousands.
_TOPICS_FEW = 20

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
    asked = list(partitions)
    if not asked:
        return {}
    metadata = metadata or _metadata(kafka, asked)
    first = _listed(kafka, asked, _EARLIEST, metadata)
    alive = [place for place in asked if isinstance(first[place], int)]
    end = _listed(kafka, alive, _LATEST, metadata)
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
            "leader does not respond; try again in a few seconds"
        )
    return found


def resolve(
    kafka: "Kafka", position: Position, bounds: "Mapping[Partition, Bounds]"
) -> "dict[Partition, int]":
    """The offset of a position in each partition, moved into what the partition holds."""
    if position.kind == "time":
        found = _listed(kafka, list(bounds), position.number, None)
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
    kafka: "Kafka", partitions: "list[Partition]", at_ms: int, metadata: "Metadata | None"
) -> "dict[Partition, int | DovetailError]":
    """For each partition the first offset of that time, or why there is none."""
    if not partitions:
        return {}
    answers = _ask(kafka, partitions, at_ms, metadata or _metadata(kafka, partitions))
    failed = [place for place, answer in answers.items() if isinstance(answer, DovetailError)]
    if failed:
        time.sleep(_LOOK_AGAIN_S)
        answers |= _ask(kafka, failed, at_ms, _metadata(kafka, failed))
    return answers


def _metadata(kafka: "Kafka", partitions: "Iterable[Partition]") -> "Metadata":
    """Leaders of these partitions at least: of all topics if these are of many."""
    topics = {topic for topic, _ in partitions}
    return kafka.metadata(*(sorted(topics) if len(topics) <= _TOPICS_FEW else ()))


def _ask(
    kafka: "Kafka", partitions: "list[Partition]", at_ms: int, metadata: "Metadata"
) -> "dict[Partition, int | DovetailError]":
    """Asks the leader of each partition, once."""
    leaders = metadata.leaders()
    answers: dict[Partition, int | DovetailError] = {
        place: _without_leader(place) for place in partitions
    }
    led: dict[int, dict[Partition, int]] = {}
    for place in partitions:
        leader = leaders.get(place)
        if leader is not None:
            led.setdefault(leader, {})[place] = at_ms

    for leader, mine in led.items():
        try:
            with kafka.plain() as client:
                answers |= client.offsets_at(metadata.brokers[leader], mine)
        except DovetailError as error:
            answers |= dict.fromkeys(mine, error)
    return answers


def _without_leader(partition: "Partition") -> DovetailError:
    return Unavailable(f"partition {partition[0]}-{partition[1]} has no leader, or does not exist")
