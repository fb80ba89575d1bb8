"""Where partitions begin and end, and where positions lie: what a Kafka broker says about them."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from dovetail.console.kafka_link import KafkaLink, Partition, told, within
from dovetail.errors import DovetailError, InvalidInput, Unavailable

#: Largest offset and time: 63 bits, as everywhere in the protocol.
NUMBER_MAX = 2**63 - 1
#: A partition that is silent, or too new for the client, is asked once more after this.
_LOOK_AGAIN_S = 0.15
#: An owner that lives answers in milliseconds; a page does not wait for one that died just now.
_ANSWER_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """First offset, and the next one to be written."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Position:
    """`number` is an offset, or milliseconds since the epoch."""

    kind: Literal["earliest", "latest", "offset", "time"]
    number: int = 0


def parse_position(text: str) -> Position:
    """`earliest`, `latest`, `offset:12`, `time:1700000000000` or `time:2026-01-31T08:00`.

    A time without a zone is in that of the node. Raises `InvalidInput`.
    """
    if text in ("earliest", "latest"):
        return Position("earliest" if text == "earliest" else "latest")
    kind, _, rest = text.partition(":")
    if kind in ("offset", "time") and rest.isascii() and rest.isdigit() and len(rest) <= 18:
        return Position("offset" if kind == "offset" else "time", int(rest))
    if kind == "time":
        try:
            return Position("time", max(0, round(datetime.fromisoformat(rest).timestamp() * 1000)))
        except (ValueError, OverflowError, OSError):
            pass
    raise InvalidInput(
        f"{text[:80]!r} is no position; write earliest, latest, offset:1200, time:1767225600000 "
        "(milliseconds) or time:2026-01-31T08:00"
    )


async def bounds_of(link: KafkaLink, partitions: Iterable[Partition]) -> dict[Partition, Bounds]:
    """First and next offset of each partition that answers; the others are left out."""
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    wanted = list(partitions)
    earliest: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    first, end = await asyncio.gather(
        _listed(link, wanted, earliest), _listed(link, wanted, latest)
    )
    return {
        partition: Bounds(at, next_offset)
        for partition in wanted
        if isinstance(at := first[partition], int)
        and isinstance(next_offset := end[partition], int)
    }


async def all_bounds_of(
    link: KafkaLink, partitions: Iterable[Partition]
) -> dict[Partition, Bounds]:
    """As `bounds_of`, of every one. Raises if one does not answer."""
    wanted = list(partitions)
    found = await bounds_of(link, wanted)
    missing = [partition for partition in wanted if partition not in found]
    if missing:
        # Asked again for the sake of its error.
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        answers = await _listed(link, missing, latest)
        for failure in answers.values():
            if isinstance(failure, DovetailError):
                raise failure
        found |= await bounds_of(link, missing)
    return found


async def resolve(
    link: KafkaLink, position: Position, bounds: Mapping[Partition, Bounds]
) -> dict[Partition, int]:
    """The offset of a position in each partition, moved into what the partition holds."""
    if position.kind == "time":
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        found = await _listed(link, list(bounds), OffsetSpec.for_timestamp(position.number))
        offsets = {}
        for partition, bound in bounds.items():
            at = found[partition]
            if isinstance(at, DovetailError):
                raise at
            offsets[partition] = at if at >= 0 else bound.end
        return offsets
    if position.kind == "offset":
        return {
            partition: min(max(position.number, bound.first), bound.end)
            for partition, bound in bounds.items()
        }
    if position.kind == "earliest":
        return {partition: bound.first for partition, bound in bounds.items()}
    return {partition: bound.end for partition, bound in bounds.items()}


def _without_owner(partition: Partition) -> DovetailError:
    return Unavailable(f"partition {partition[0]}-{partition[1]} has no owner, or is not there")


async def _listed(
    link: KafkaLink, partitions: list[Partition], spec: Any
) -> dict[Partition, int | DovetailError]:
    """For each partition the offset, or why there is none."""
    nobody = {each: _without_owner(each) for each in partitions if not link.owned(each)}
    answers: dict[Partition, int | DovetailError] = {**nobody}
    asked = [each for each in partitions if each not in nobody]
    answers |= await _ask(link, asked, spec)
    failed = [each for each in asked if isinstance(answers[each], DovetailError)]
    if failed:
        # The client remembers for a while who owned a partition, and that a topic was not there.
        await asyncio.sleep(_LOOK_AGAIN_S)
        await link.look_around()
        answers |= await _ask(link, failed, spec)
    return answers


async def _ask(
    link: KafkaLink, partitions: list[Partition], spec: Any
) -> dict[Partition, int | DovetailError]:
    from confluent_kafka import TopicPartition

    if not partitions:
        return {}
    admin = await link.admin()
    doing = "listing offsets"
    try:
        futures = admin.list_offsets(
            {TopicPartition(*each): spec for each in partitions}, request_timeout=_ANSWER_S_MAX
        )
    except Exception as error:
        raise told(doing, error) from error
    waits = {
        (key.topic, key.partition): asyncio.wrap_future(future) for key, future in futures.items()
    }
    await within(doing, asyncio.wait(waits.values()))
    answers: dict[Partition, int | DovetailError] = {}
    for partition, wait in waits.items():
        failure = wait.exception()
        if isinstance(failure, Exception):
            answers[partition] = told(f"{doing} of {partition[0]}-{partition[1]}", failure)
        else:
            answers[partition] = int(wait.result().offset)
    return answers
