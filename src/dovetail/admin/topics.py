"""Topics: list, describe, create, alter, delete.

What a broker knows beyond the Kafka protocol (terms, ledgers, sizes) is not here: the console adds
it from its own node.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined] # Its exports are implicit.
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from msgspec import Struct

from dovetail.admin.compaction import PartitionCompaction, compaction_of, compacts
from dovetail.admin.kafka import Kafka, PartitionMetadata, check_not_internal, is_internal
from dovetail.admin.positions import Bounds, bounds_of
from dovetail.errors import DovetailError, InvalidInput, TopicUnknown
from dovetail.foreign import check_topic


class TopicSummary(Struct, frozen=True):
    """A topic in a list; `records` and `end` (over all partitions) are None if one is silent."""

    topic: str
    partitions: int
    records: int | None
    end: int | None
    without_leader: int
    internal: bool


class TopicPartitionShown(Struct, frozen=True):
    """A partition; offsets are None while its leader does not answer."""

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    first: int | None
    end: int | None
    records: int | None


class TopicSetting(Struct, frozen=True):
    """A setting of a topic."""

    name: str
    value: str | None
    default: bool


class Topic(Struct, frozen=True):
    """A topic with its partitions and settings."""

    topic: str
    partitions: list[TopicPartitionShown]
    config: list[TopicSetting]
    #: Of a compacted topic, where its owners say it.
    compaction: list[PartitionCompaction] = []


def list_topics(kafka: Kafka, *, internal: bool = False) -> list[TopicSummary]:
    """All topics by name; with `internal` also those in which nodes keep their own state."""
    metadata = kafka.metadata()
    names = [name for name in metadata.topics if internal or not is_internal(name)]
    bounds = bounds_of(kafka, metadata.partitions(*names), metadata=metadata)

    rows = []
    for name in names:
        places = metadata.partitions(name)
        found = [bounds[place] for place in places if place in bounds]
        rows.append(
            TopicSummary(
                topic=name,
                partitions=len(places),
                records=records_in(found, partitions=len(places)),
                end=sum(bound.end for bound in found) if len(found) == len(places) else None,
                without_leader=sum(one.leader is None for one in metadata.topics[name]),
                internal=is_internal(name),
            )
        )
    return rows


def sum_of(values: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is unknown."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def records_in(bounds: Sequence[Bounds], *, partitions: int) -> int | None:
    """Records of a topic; None unless all its partitions answered."""
    if len(bounds) < partitions:
        return None
    return sum(bound.end - bound.first for bound in bounds)


def describe_topic(kafka: Kafka, topic: str) -> Topic:
    """One topic. Raises `TopicUnknown`."""
    metadata = kafka.metadata()
    partitions = metadata.topic(topic)
    bounds = bounds_of(kafka, metadata.partitions(topic), metadata=metadata)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = kafka.ask(
        f"reading the settings of topic {topic!r}",
        lambda admin: admin.describe_configs([resource], request_timeout=kafka.timeout_s),
    )[resource]

    compaction: list[PartitionCompaction] = []
    if compacts((name, entry.value) for name, entry in settings.items()):
        compaction = compaction_of(kafka, topic, [one.number for one in partitions])
    return Topic(
        topic,
        [_partition(one, bounds.get((topic, one.number))) for one in partitions],
        [
            TopicSetting(name, entry.value, bool(entry.is_default))
            for name, entry in sorted(settings.items())
        ],
        compaction,
    )


def topic_ids(kafka: Kafka, topics: Sequence[str]) -> dict[str, str]:
    """The ids of topics, in hexadecimal; one that does not exist is left out.

    Raises `Unreachable` and what else the broker answers.
    """
    asked = TopicCollection(topic_names=list(topics))
    answers = kafka.try_each(
        "asking for the ids of topics",
        lambda admin: admin.describe_topics(asked, request_timeout=kafka.timeout_s),
    )
    found = {}
    for name, answer in answers.items():
        if isinstance(answer, TopicUnknown):
            continue
        if isinstance(answer, DovetailError):
            raise answer
        halves = (
            answer.topic_id.get_most_significant_bits(),
            answer.topic_id.get_least_significant_bits(),
        )
        found[name] = "".join(f"{half % 2**64:016x}" for half in halves)
    return found


def _partition(metadata: PartitionMetadata, bounds: Bounds | None) -> TopicPartitionShown:
    return TopicPartitionShown(
        partition=metadata.number,
        leader=metadata.leader,
        replicas=metadata.replicas,
        first=None if bounds is None else bounds.first,
        end=None if bounds is None else bounds.end,
        records=None if bounds is None else bounds.end - bounds.first,
    )


def create_topic(
    kafka: Kafka, topic: str, *, partitions: int | None = None, config: Mapping[str, str]
) -> int:
    """Creates a topic and returns its number of partitions; without `partitions` the broker's.

    Raises `TopicExists`, `InvalidInput`, `Uncertain`.
    """
    check_topic(topic)
    new = NewTopic(
        topic, num_partitions=partitions or -1, replication_factor=-1, config=dict(config)
    )
    kafka.ask(
        f"creating topic {topic!r}",
        lambda admin: admin.create_topics([new], request_timeout=kafka.timeout_s),
        changes=True,
    )
    return partitions or len(kafka.metadata().topic(topic))


def alter_topic(
    kafka: Kafka,
    topic: str,
    *,
    partitions: int | None = None,
    config: Mapping[str, str],
    unset: Sequence[str] = (),
) -> None:
    """Changes settings first, then adds partitions, of which there can only be more.

    Raises `TopicUnknown`, `InvalidInput`, `Uncertain`.
    """
    check_not_internal([topic])
    if partitions is None and not config and not unset:
        raise InvalidInput("nothing to alter: give partitions, settings to set or to unset")
    kafka.metadata().topic(topic)

    if config or unset:
        _alter_settings(kafka, topic, config, unset)
    if partitions is not None:
        more = NewPartitions(topic, partitions)
        kafka.ask(
            f"adding partitions to topic {topic!r}",
            lambda admin: admin.create_partitions([more], request_timeout=kafka.timeout_s),
            changes=True,
        )


def _alter_settings(
    kafka: Kafka, topic: str, config: Mapping[str, str], unset: Sequence[str]
) -> None:
    changes: list[Any] = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    changes += [
        ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE) for name in unset
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    kafka.ask(
        f"changing the settings of topic {topic!r}",
        lambda admin: admin.incremental_alter_configs([resource], request_timeout=kafka.timeout_s),
        changes=True,
    )


def delete_topics(kafka: Kafka, topics: Sequence[str]) -> None:
    """Deletes topics with all their records, for good.

    Raises `TopicUnknown` before anything is deleted, `InvalidInput`, `Uncertain`.
    """
    check_not_internal(topics)
    metadata = kafka.metadata()
    for topic in topics:
        metadata.topic(topic)
    kafka.ask(
        f"deleting {'topic' if len(topics) == 1 else 'topics'} {', '.join(map(repr, topics))}",
        lambda admin: admin.delete_topics(list(topics), request_timeout=kafka.timeout_s),
        changes=True,
    )
