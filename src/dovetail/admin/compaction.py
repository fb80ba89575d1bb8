"""How far compacted topics are compacted, as the owners of their partitions report.

They report it in their answers to DescribeLogDirs, in fields of our own. For a user who may not
send that request, and on a real Kafka, the state is unknown.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from dovetail.admin.kafka import Kafka
from dovetail.errors import DovetailError

if TYPE_CHECKING:
    from dovetail.kafka.codec import messages as m

#: The setting of a topic, and the value that has it compacted.
_POLICY, _COMPACT = "cleanup.policy", "compact"


class PartitionCompaction(Struct, frozen=True):
    """A partition, as of its owner's last check."""

    partition: int
    #: Records in front of this offset were compacted.
    cleaned_to: int
    #: Bytes of closed ledgers that may be compacted and never were; their part of all that may.
    dirty_bytes: int
    dirty_ratio: float
    #: When the last pass ended, and what it read a second; None before the owner's first one.
    last_ms: int | None
    bytes_per_s: int | None


def compacts(settings: Iterable[tuple[str, str | None]]) -> bool:
    """Whether a topic with these settings is compacted."""
    values = [value or "" for name, value in settings if name == _POLICY]
    return any(_COMPACT in value.replace(" ", "").split(",") for value in values)


def compaction_of(kafka: Kafka, topic: str, partitions: Iterable[int]) -> list[PartitionCompaction]:
    """The partitions of a compacted topic whose owners say how they stand, by number."""
    from dovetail.kafka.codec import messages as m
    from dovetail.kafka.codec.apis import ApiKey

    asked = m.DescribeLogDirsRequest(
        topics=(m.DescribeLogDirsRequestTopic(topic=topic, partitions=tuple(partitions)),)
    )
    try:
        with kafka.plain() as client:
            answers = client.ask_brokers(ApiKey.DESCRIBE_LOG_DIRS, asked)
    except DovetailError:  # A topic can be described without it.
        return []

    found = [
        _shown(row)
        for answer in answers
        for result in answer.results
        for one in result.topics
        for row in one.partitions
        if row.cleaned_to >= 0
    ]
    return sorted(found, key=lambda row: row.partition)


def _shown(row: "m.DescribeLogDirsResponsePartition") -> PartitionCompaction:
    total = row.clean_bytes + row.dirty_bytes
    ran = row.compacted_ms >= 0
    return PartitionCompaction(
        partition=row.partition_index,
        cleaned_to=row.cleaned_to,
        dirty_bytes=row.dirty_bytes,
        dirty_ratio=round(row.dirty_bytes / total, 3) if total else 0.0,
        last_ms=row.compacted_ms if ran else None,
        bytes_per_s=row.compacted_bytes_per_second if ran else None,
    )
