"""The offsets of a batch, how they are split into tasks, and how far a stream is; pure.

Positions have the form that Spark's Kafka source has in its checkpoint, {"topic": {"0": 12}}, so
that people and other tools can read them.

Spark takes no metrics from a source in Python, and describes it by the name of its Java class. But
it reports positions: where a micro-batch ended and where the topics ended then. From these follow
the topics' names and their lag (`progress_of`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from dovetail.errors import Damaged
from dovetail.kafka.client.client import Partition

Positions = Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends.

    `everywhere` holds for partitions that `each` does not name: an offset (`EARLIEST`, `LATEST`)
    or, if `by_time`, milliseconds since the epoch.
    """

    by_time: bool = False
    everywhere: int | None = None
    each: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """start <= offset < end."""

    topic: str
    partition: int
    start: int
    end: int


def to_document(positions: Positions) -> dict[str, dict[str, int]]:
    """Positions as the checkpoint keeps them, in an order that does not change."""
    document: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(positions.items()):
        document.setdefault(topic, {})[str(number)] = offset
    return document


def from_document(document: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    """Positions of a checkpoint. Raises `Damaged`."""
    try:
        return {
            (topic, int(number)): int(offset)
            for topic, numbers in document.items()
            for number, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise Damaged(f"the checkpoint has malformed positions: {document!r}") from error


def limited(start: Positions, latest: Positions, rows_max: int | None) -> dict[Partition, int]:
    """Ends of the next batch: all records, or `rows_max` of them in proportion to what each has.

    `start` has every partition of `latest`. One whose end lies before its start (the topic was
    created again, and that is allowed) goes back to its end.
    """
    start = {key: min(start[key], end) for key, end in latest.items()}
    waiting = {key: end - start[key] for key, end in latest.items()}
    total = sum(waiting.values())
    if rows_max is None or total <= rows_max:
        return {key: start[key] + count for key, count in waiting.items()}

    shares = {key: count * rows_max // total for key, count in waiting.items()}
    # The remainder goes to those that have most; no partition with data waits for ever.
    left = rows_max - sum(shares.values())
    for key in sorted(waiting, key=lambda key: (shares[key] - waiting[key], key)):
        more = min(left, waiting[key] - shares[key], 1)
        shares[key] += more
        left -= more
    return {key: start[key] + shares[key] for key in waiting}


def enough(waiting: int, *, rows_min: int | None, waited_ms: int | None, delay_ms_max: int) -> bool:
    """Whether a stream reads now what is `waiting`, or waits for `rows_min`.

    `waited_ms` is how long ago it last read; None: never, and then it does.
    """
    if rows_min is None or waiting >= rows_min or waited_ms is None:
        return True
    return waited_ms >= delay_ms_max


def split(
    start: Positions,
    end: Positions,
    partitions_min: int | None,
    rows_max: int | None = None,
    each_max: Positions = MappingProxyType({}),
) -> list[OffsetRange]:
    """Ranges for tasks: one for each partition with records, or more to make `partitions_min`.

    No range has more than `rows_max` offsets, or than `each_max` says for its partition. Depends on
    its arguments alone: a batch that is run again is split in the same places.
    """
    whole = [
        OffsetRange(topic, number, start[topic, number], end[topic, number])
        for topic, number in sorted(end)
        if end[topic, number] > start[topic, number]
    ]
    total = sum(one.end - one.start for one in whole)
    tasks_min = partitions_min if partitions_min and len(whole) < partitions_min else 0

    ranges = []
    for one in whole:
        size = one.end - one.start
        most = min(rows_max or size, each_max.get((one.topic, one.partition), size))
        # Rounded up, so that there are never fewer than wanted if there are enough rows.
        parts = min(size, max(1, -(-size * tasks_min // total), -(-size // most)))
        cuts = [one.start + size * part // parts for part in range(parts + 1)]
        ranges += [OffsetRange(one.topic, one.partition, low, high) for low, high in pairwise(cuts)]
    return ranges


def lost(start: Positions, first: Positions, latest: Positions) -> list[str]:
    """What a query still had to read and is gone, in words."""
    found = []
    for (topic, number), offset in sorted(start.items()):
        name = f"{topic}-{number}"
        if (topic, number) not in latest:
            found.append(f"{name} is gone (its position was {offset})")
        elif offset < first[topic, number]:
            found.append(f"{name} begins at {first[topic, number]} (its position was {offset})")
        elif offset > latest[topic, number]:
            found.append(f"{name} ends at {latest[topic, number]} (its position was {offset})")
    return found


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source of a query: a stream of topics."""

    topics: tuple[str, ...]
    #: Records that wait, by partition. None: Spark 4.0 and 4.1 do not report where topics end.
    behind: Mapping[Partition, int] | None
    rows: int
    rows_per_s: float

    @property
    def lag(self) -> int | None:
        """Records that wait in all partitions."""
        return None if self.behind is None else sum(self.behind.values())


def progress_of(reported: Mapping[str, Any] | None) -> list[SourceProgress]:
    """The sources that are topics, of `query.lastProgress` or of a listener's `event.progress`.

    Empty before the first micro-batch.
    """
    found = [_source(one) for one in (reported or {}).get("sources", ())]
    return [one for one in found if one is not None]


def _source(one: Mapping[str, Any]) -> SourceProgress | None:
    end, latest = _positions(one.get("endOffset")), _positions(one.get("latestOffset"))
    if end is None:
        return None
    behind = latest and {key: max(0, at - end.get(key, at)) for key, at in latest.items()}
    topics = tuple(sorted({topic for topic, _ in end}))
    rate = float(one.get("processedRowsPerSecond") or 0)
    return SourceProgress(topics, behind, int(one.get("numInputRows") or 0), rate)


def _positions(offsets: Any) -> dict[Partition, int] | None:
    """None for those of another kind of source."""
    try:
        found = json.loads(offsets) if isinstance(offsets, str) else offsets
        return from_document(found) or None
    except (ValueError, Damaged):
        return None
