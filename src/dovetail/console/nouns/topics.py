"""Topics over HTTP: list, describe, create, alter, delete.

Names, states, terms and chains come from the shared catalog, offsets from the owners of the
partitions. What an owner does not answer is None.
"""

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.admin import topics
from dovetail.admin.positions import Bounds, bounds_of
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.node.insight import PartitionFacts, TopicFacts

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
    internal = asked.query.internal
    listed = [facts for facts in desk.insight.topics() if internal or not facts.internal]
    ready = [facts for facts in listed if facts.state == "ready"]
    places = [(facts.name, number) for facts in ready for number in range(facts.partitions)]
    bounds = await desk.kafka.run(bounds_of, places)
    sizes = await desk.insight.sizes()

    rows = []
    for facts in listed:
        numbers = range(facts.partitions)
        found = [bounds[facts.name, n] for n in numbers if (facts.name, n) in bounds]
        rows.append(
            TopicRow(
                topic=facts.name,
                partitions=facts.partitions,
                records=topics.records_in(found, partitions=facts.partitions),
                internal=facts.internal,
                state=facts.state,
                bytes=sizes.get(facts.name, 0),
                records_per_s=_rate_of_all(desk, facts, found),
                partitions_without_owner=facts.partitions_without_owner,
                term_highest=facts.term_highest,
            )
        )
    return TopicList(rows)


async def show_topic(desk: Desk, asked: Asked[None, None]) -> TopicShown:
    """Partitions with owner, term, offsets, ledgers and storage nodes; settings with defaults."""
    return await _shown(desk, asked.path["topic"])


async def _shown(desk: Desk, name: str) -> TopicShown:
    facts = desk.insight.topic(name)
    partitions = await desk.insight.partitions(name)
    bounds = await desk.kafka.run(bounds_of, [(name, each.number) for each in partitions])
    found = list(bounds.values())

    rows = [
        _partition(desk, facts.id, each, bounds.get((name, each.number))) for each in partitions
    ]
    return TopicShown(
        topic=name,
        id=facts.id,
        internal=facts.internal,
        state=facts.state,
        created_ms=facts.created_ms,
        records=topics.records_in(found, partitions=facts.partitions),
        bytes=sum(row.bytes for row in rows),
        records_per_s=_rate_of_all(desk, facts, found),
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


def _rate_of_all(desk: Desk, facts: TopicFacts, bounds: list[Bounds]) -> float | None:
    """None unless every partition answered."""
    return _rate(desk, facts.id, "all", bounds) if len(bounds) == facts.partitions else None


def _rate(desk: Desk, topic_id: str, part: str, bounds: list[Bounds]) -> float | None:
    """Records a second that came in; by id, since a deleted topic may have had the same name."""
    return desk.rate(f"topic/{topic_id}/{part}", sum(bound.end for bound in bounds))


async def create_topic(desk: Desk, asked: Asked[None, TopicNew]) -> TopicShown:
    """Without `partitions` it gets as many as the node's setting says."""
    new = asked.body
    await desk.kafka.run(
        topics.create_topic, new.topic, partitions=new.partitions, config=new.config
    )
    return await _shown(desk, new.topic)


async def alter_topic(desk: Desk, asked: Asked[None, TopicChange]) -> TopicShown:
    """Partitions can only become more. Settings change first; the node checks each."""
    name, wanted = asked.path["topic"], asked.body
    await desk.kafka.run(
        topics.alter_topic,
        name,
        partitions=wanted.partitions,
        config=wanted.config,
        unset=wanted.unset,
    )
    return await _shown(desk, name)


async def delete_topic(desk: Desk, asked: Asked[None, None]) -> None:
    """Deletes all its records, for good. The name is free again when the storage is."""
    await desk.kafka.run(topics.delete_topics, [asked.path["topic"]])


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
