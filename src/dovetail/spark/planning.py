"""The partitions and offsets of a query, with the brokers' answers, on the driver.

Promise: what a query will read, and what is gone, is known before a task starts. `offsets` has the
part that needs no broker.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from dovetail.errors import Damaged, InvalidInput, OffsetOutOfRange, TopicUnknown
from dovetail.kafka.client.client import EARLIEST, LATEST, Partition
from dovetail.logging import get_logger
from dovetail.spark.fetching import Reader
from dovetail.spark.offsets import Bound, OffsetRange, lost, split
from dovetail.spark.options import ReadOptions

#: Fewer records are one task, without a look at how large they are.
_OFFSETS_MIN = 1000
#: Of a fetch that tells how large records are.
_SAMPLE_BYTES = 64 * 1024

_log = get_logger("spark")


def partitions_of(options: ReadOptions) -> list[Partition]:
    """The partitions that the options name now. Raises `TopicUnknown`."""
    client = options.client()
    if options.assigned:
        known = client.partitions({topic for topic, _ in options.assigned})
        for topic, number in options.assigned:
            if number not in known[topic]:
                raise TopicUnknown(
                    f"topic {topic!r} has no partition {number}; it has {len(known[topic])}"
                )
        return sorted(set(options.assigned))

    if options.pattern is not None:
        found = client.partitions(None)
        matching = {name: n for name, n in found.items() if re.fullmatch(options.pattern, name)}
        return [(topic, number) for topic in sorted(matching) for number in matching[topic]]
    found = client.partitions(options.topics)
    return [(topic, number) for topic in sorted(found) for number in found[topic]]


def ranges(
    options: ReadOptions,
    start: Mapping[Partition, int],
    end: Mapping[Partition, int],
    each_max: Mapping[Partition, int] = MappingProxyType({}),
) -> list[OffsetRange]:
    return split(start, end, options.partitions_min, options.task_rows_max, each_max)


def since(
    options: ReadOptions,
    start: Mapping[Partition, int],
    end: Mapping[Partition, int],
    since_ms: int,
) -> dict[Partition, int]:
    """Starts behind records that are all older. The ends were asked for before: a record that
    comes meanwhile is behind them."""
    asked = {key: since_ms for key in end if start[key] < end[key]}
    found = options.client().offsets(asked, committed=options.committed) if asked else {}
    return {
        key: max(first, end[key] if found[key] < 0 else found[key]) if key in found else first
        for key, first in start.items()
    }


def offsets_of_tasks(
    options: ReadOptions, start: Mapping[Partition, int], end: Mapping[Partition, int]
) -> dict[Partition, int]:
    """How many offsets a task of a batch reads at most: as many as have `task_bytes_max`.

    A fetch in the middle of each large range tells how large its records are. Streams are not split
    so: a micro-batch that is run again must be split in the same places.
    """
    found = {}
    client = options.client()
    for place, last in end.items():
        if last - start[place] <= _OFFSETS_MIN:
            continue
        reader = Reader(client, place)
        reader.bytes_max = _SAMPLE_BYTES
        try:
            sample = reader.read((start[place] + last) // 2)
        except OffsetOutOfRange:
            # Deleted just now; whether that is allowed is decided by the task.
            continue
        finally:
            reader.close()
        if sample.batches:
            fitting = int(options.task_bytes_max / sample.density)
            found[place] = max(1, fitting)
    return found


def resolved(
    options: ReadOptions, partitions: list[Partition], bound: Bound, role: str
) -> dict[Partition, int]:
    """The offsets of a bound. Raises `InvalidInput`."""
    if bound.each and set(bound.each) != set(partitions):
        missing = sorted(set(partitions) - set(bound.each))
        surplus = sorted(set(bound.each) - set(partitions))
        raise InvalidInput(
            f"the {role} offsets must name exactly the partitions that are read: "
            f"missing {_names(missing)}, unknown {_names(surplus)}"
        )

    asked = dict(bound.each) or dict.fromkeys(partitions, bound.everywhere or 0)
    if not bound.by_time:
        named = {key: value for key, value in asked.items() if value < 0}
        return (
            asked | options.client().offsets(named, committed=options.committed) if named else asked
        )

    found = options.client().offsets(asked, committed=options.committed)
    late = sorted(key for key, offset in found.items() if offset < 0)
    if late and role == "starting" and options.time_without_record == "error":
        raise InvalidInput(
            f"{_names(late)}: no record at or after {asked[late[0]]}; begin earlier, or set "
            "startingOffsetsByTimestampStrategy to latest"
        )
    return found | offsets_at(options, late, LATEST) if late else found


def offsets_at(options: ReadOptions, partitions: list[Partition], at: int) -> dict[Partition, int]:
    wanted = dict.fromkeys(partitions, at)
    return options.client().offsets(wanted, committed=options.committed)


def check_loss(
    options: ReadOptions, start: Mapping[Partition, int], latest: Mapping[Partition, int]
) -> None:
    """Raises `Damaged` if records that were to be read are gone, unless that is allowed."""
    first = offsets_at(options, list(latest), EARLIEST)
    report_loss(options, lost(start, first, latest))


def check_ends(ends: Mapping[Partition, int], latest: Mapping[Partition, int]) -> None:
    """Raises `InvalidInput` for an end that no record has yet: a task would wait for it (F7b)."""
    beyond = sorted(key for key, end in ends.items() if end > latest[key])
    if beyond:
        key = beyond[0]
        raise InvalidInput(
            f"endingOffsets has {ends[key]} for {_names([key])}, which ends at {latest[key]}; take "
            "that, or latest"
        )


def report_loss(options: ReadOptions, reasons: list[str]) -> None:
    if not reasons:
        return
    text = (
        f"records that were to be read are gone: {'; '.join(reasons)}. Retention removed them, or "
        "the topic was deleted and created again"
    )
    if options.fail_on_data_loss:
        raise Damaged(f"{text}. To continue without them, set failOnDataLoss to false")
    _log.warning("records are gone", reasons="; ".join(reasons))


def _names(partitions: list[Partition]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in partitions) or "none"
