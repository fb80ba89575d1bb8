"""Topics over HTTP: list, describe, create, alter, delete.

Names, states, terms and chains are those of the shared catalog; offsets are asked from the owners
of the partitions. What an owner does not answer is None.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from dovetail.console.desk import Desk
from dovetail.console.nouns.offsets import Bounds, bounds_of
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import InvalidInput
from dovetail.node.insight import PartitionFacts

#: Kafka's own limit of a name.
TopicName = Annotated[str, Meta(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
PartitionCount = Annotated[int, Meta(ge=1, le=10_000)]
#: Settings of one request; there are a dozen.
_SETTINGS_MAX = 50
TopicSettings = Annotated[dict[str, str], Meta(max_length=_SETTINGS_MAX)]


class TopicsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which topics."""

    internal: Annotated[bool, Meta(description="Also those that the node keeps for itself.")] = (
        False
    )


class TopicRow(Struct, frozen=True):
    """A topic in the list; counts are None if a partition did not answer."""

    topic: str
    partitions: int
    records: int | None
    internal: bool
    state: str
    bytes: int
    records_per_s: float | None
    partitions_without_owner: int
    term_highest: int


class TopicList(Struct, frozen=True):
    """All topics by name."""

    topics: list[TopicRow]


class PartitionShown(Struct, frozen=True):
    """A partition. `leader` is None while nobody owns it, offsets while its owner is silent."""

    partition: int
    leader: int | None
    replicas: list[int]
    term: int
    first: int | None
    end: int | None
    records: int | None
    bytes: int
    #: Whether `bytes` has the ledger that is being written; only its owner knows its size.
    bytes_complete: bool
    records_per_s: float | None
    ledgers: int
    ensemble: list[int]
    write_quorum: int | None
    ack_quorum: int | None


class SettingShown(Struct, frozen=True):
    """A setting of a topic."""

    name: str
    value: str
    default: bool
    doc: str


class TopicShown(Struct, frozen=True):
    """A topic with its partitions and settings."""

    topic: str
    id: str
    internal: bool
    state: str
    created_ms: int
    records: int | None
    bytes: int
    records_per_s: float | None
    partitions: list[PartitionShown]
    config: list[SettingShown]


class TopicNew(Struct, frozen=True, forbid_unknown_fields=True):
    """A topic to create."""

    topic: TopicName
    partitions: PartitionCount | None = None
    config: TopicSettings = {}


class TopicChange(Struct, frozen=True, forbid_unknown_fields=True):
    """More partitions, settings to set, settings to bring back to the default."""

    partitions: PartitionCount | None = None
    config: TopicSettings = {}
    unset: Annotated[list[str], Meta(max_length=_SETTINGS_MAX)] = []


async def list_topics(desk: Desk, asked: Asked[TopicsQuery, None]) -> TopicList:
    """Records and rates are of all partitions together; `null` where one did not answer."""
    return await topic_list(desk, internal=asked.query.internal)


async def topic_list(desk: Desk, *, internal: bool) -> TopicList:
    """The list, as the page and the live stream show it."""
    topics = [facts for facts in desk.insight.topics() if internal or not facts.internal]
    ready = [facts for facts in topics if facts.state == "ready"]
    bounds = await bounds_of(
        desk.kafka, [(each.name, number) for each in ready for number in range(each.partitions)]
    )
    sizes = await desk.insight.sizes()
    rows = []
    for facts in topics:
        places = [(facts.name, number) for number in range(facts.partitions)]
        found = [bounds[place] for place in places if place in bounds]
        whole = len(found) == facts.partitions
        rows.append(
            TopicRow(
                topic=facts.name,
                partitions=facts.partitions,
                records=sum(b.end - b.first for b in found) if whole else None,
                internal=facts.internal,
                state=facts.state,
                bytes=sizes.get(facts.name, 0),
                records_per_s=_rate(desk, facts.id, "all", found) if whole else None,
                partitions_without_owner=facts.partitions_without_owner,
                term_highest=facts.term_highest,
            )
        )
    return TopicList(rows)


async def show_topic(desk: Desk, asked: Asked[None, None]) -> TopicShown:
    """Partitions with owner, term, offsets, ledgers and storage nodes; settings with defaults."""
    return await topic_shown(desk, asked.path["topic"])


async def topic_shown(desk: Desk, name: str) -> TopicShown:
    """One topic. Raises `TopicUnknown`."""
    facts = desk.insight.topic(name)
    partitions = await desk.insight.partitions(name)
    bounds = await bounds_of(desk.kafka, [(name, each.number) for each in partitions])
    found = [bounds[name, each.number] for each in partitions if (name, each.number) in bounds]
    whole = len(found) == len(partitions)
    rows = [
        _partition(desk, facts.id, each, bounds.get((name, each.number))) for each in partitions
    ]
    return TopicShown(
        topic=name,
        id=facts.id,
        internal=facts.internal,
        state=facts.state,
        created_ms=facts.created_ms,
        records=sum(b.end - b.first for b in found) if whole else None,
        bytes=sum(row.bytes for row in rows),
        records_per_s=_rate(desk, facts.id, "all", found) if whole else None,
        partitions=rows,
        config=[
            SettingShown(each.name, each.value, each.is_default, each.doc)
            for each in desk.insight.settings(name)
        ],
    )


def _partition(
    desk: Desk, topic_id: str, facts: PartitionFacts, bounds: Bounds | None
) -> PartitionShown:
    return PartitionShown(
        partition=facts.number,
        leader=facts.owner,
        replicas=list(facts.ensemble),
        term=facts.term,
        first=None if bounds is None else bounds.first,
        end=None if bounds is None else bounds.end,
        records=None if bounds is None else bounds.end - bounds.first,
        bytes=facts.bytes_closed + (facts.bytes_open or 0),
        bytes_complete=facts.bytes_open is not None,
        records_per_s=None
        if bounds is None
        else _rate(desk, topic_id, str(facts.number), [bounds]),
        ledgers=facts.ledgers,
        ensemble=list(facts.ensemble),
        write_quorum=facts.write_quorum,
        ack_quorum=facts.ack_quorum,
    )


def _rate(desk: Desk, topic_id: str, part: str, bounds: list[Bounds]) -> float | None:
    """Records a second that came in. The id tells a topic from one that had its name before."""
    return desk.rate(f"topic/{topic_id}/{part}", sum(bound.end for bound in bounds))


async def create_topic(desk: Desk, asked: Asked[None, TopicNew]) -> TopicShown:
    """Without `partitions` it gets as many as the node's setting says."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    wanted = asked.body
    new = NewTopic(
        wanted.topic,
        num_partitions=wanted.partitions or -1,
        replication_factor=-1,
        config=dict(wanted.config),
    )
    await desk.kafka.ask(
        f"creating topic {wanted.topic!r}", lambda admin: admin.create_topics([new]), changes=True
    )
    return await topic_shown(desk, wanted.topic)


async def alter_topic(desk: Desk, asked: Asked[None, TopicChange]) -> TopicShown:
    """Partitions can only become more. Settings are changed first; each is checked by the node."""
    name, wanted = asked.path["topic"], asked.body
    _check_not_internal(desk, name)
    if wanted.partitions is None and not wanted.config and not wanted.unset:
        raise InvalidInput("nothing to alter; give partitions, config or unset")
    if wanted.config or wanted.unset:
        await _alter_settings(desk, name, wanted)
    if wanted.partitions is not None:
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        more = NewPartitions(name, wanted.partitions)
        await desk.kafka.ask(
            f"adding partitions to topic {name!r}",
            lambda admin: admin.create_partitions([more]),
            changes=True,
        )
    return await topic_shown(desk, name)


def _check_not_internal(desk: Desk, name: str) -> None:
    if desk.insight.topic(name).internal:
        raise InvalidInput(
            f"topic {name!r} is internal: the node keeps its own state in it, such as positions of "
            "groups, and nobody else changes it"
        )


async def _alter_settings(desk: Desk, name: str, wanted: TopicChange) -> None:
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    changes: list[Any] = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in wanted.config.items()
    ]
    changes += [
        ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE)
        for key in wanted.unset
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
    await desk.kafka.ask(
        f"changing the settings of topic {name!r}",
        lambda admin: admin.incremental_alter_configs([resource]),
        changes=True,
    )


async def delete_topic(desk: Desk, asked: Asked[None, None]) -> None:
    """Deletes all its records, for good. The name is free again when the storage is."""
    name = asked.path["topic"]
    _check_not_internal(desk, name)
    await desk.kafka.ask(
        f"deleting topic {name!r}", lambda admin: admin.delete_topics([name]), changes=True
    )


ENDPOINTS = (
    Endpoint("GET", "/v1/topics", list_topics, "List topics", TopicList, query=TopicsQuery),
    Endpoint(
        "POST",
        "/v1/topics",
        create_topic,
        "Create a topic",
        TopicShown,
        body=TopicNew,
        status=201,
        action="topic.create",
    ),
    Endpoint("GET", "/v1/topics/{topic}", show_topic, "Show a topic", TopicShown),
    Endpoint(
        "PATCH",
        "/v1/topics/{topic}",
        alter_topic,
        "Add partitions, change settings",
        TopicShown,
        body=TopicChange,
        action="topic.alter",
    ),
    Endpoint(
        "DELETE",
        "/v1/topics/{topic}",
        delete_topic,
        "Delete a topic with its records",
        status=204,
        action="topic.delete",
    ),
)
