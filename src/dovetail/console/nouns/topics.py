"""Topics over HTTP: list, describe, create, alter, delete.

Names, states, terms and chains come from the shared catalog, offsets from the owners of the
partitions, which report what has changed (`log/ends`). What an owner does not report is None.
"""

from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from dovetail.admin import topics
from dovetail.admin.compaction import PartitionCompaction, compaction_of, compacts
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.console.web.query import ListQuery, page_of
from dovetail.node.insight import Ends, PartitionFacts, TopicFacts

#: Kafka's own limit of a name.
TopicName = Annotated[str, Meta(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
PartitionCount = Annotated[int, Meta(ge=1, le=10_000)]
#: Settings of one request; there are a dozen.
_SETTINGS_MAX = 50
TopicSettings = Annotated[dict[str, str], Meta(max_length=_SETTINGS_MAX)]


class TopicsQuery(ListQuery, frozen=True, forbid_unknown_fields=True):
    """Which topics, in which order."""

    internal: Annotated[bool, Meta(description="Include internal topics.")] = False


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
    """Topics, by name unless another order is wanted; `total` of them match."""

    topics: list[TopicRow]
    total: int
    #: Over all that match; None if one is unknown.
    records: int | None


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
    #: Of a compacted topic, where the owners of its partitions say it.
    compaction: list[PartitionCompaction]


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


_COLUMNS: dict[str, Callable[[TopicRow], Any]] = {
    "topic": lambda row: row.topic,
    "partitions": lambda row: row.partitions,
    "records": lambda row: row.records,
    "bytes": lambda row: row.bytes,
    "records_per_s": lambda row: row.records_per_s,
}


async def list_topics(desk: Desk, asked: Asked[TopicsQuery, None]) -> TopicList:
    """Records and rates are of all partitions together; `null` where one did not answer."""
    rows = await topic_rows(desk, internal=asked.query.internal)
    found, total = page_of(rows, asked.query, lambda row: row.topic, _COLUMNS)
    records = topics.sum_of(row.records for row in rows if asked.query.filter in row.topic)
    return TopicList(found, total, records)


async def topic_rows(desk: Desk, *, internal: bool) -> list[TopicRow]:
    """All topics by name, from what this node knows; what has changed is asked of other brokers."""
    insight = desk.insight
    await insight.look()
    return [_row(desk, facts) for facts in insight.topics() if internal or not facts.internal]


def _row(desk: Desk, facts: TopicFacts) -> TopicRow:
    ends = desk.insight.ends(facts.name) if facts.state == "ready" else None
    whole = ends is not None and ends.known == facts.partitions
    return TopicRow(
        topic=facts.name,
        partitions=facts.partitions,
        records=ends.records if ends is not None and whole else None,
        internal=facts.internal,
        state=facts.state,
        bytes=0 if ends is None else ends.bytes,
        records_per_s=_rate(desk, facts.id, "all", ends.end) if ends and whole else None,
        partitions_without_owner=facts.partitions_without_owner,
        term_highest=facts.term_highest,
    )


async def show_topic(desk: Desk, asked: Asked[None, None]) -> TopicShown:
    """Partitions with owner, term, offsets, ledgers and storage nodes; settings with defaults."""
    return await _shown(desk, asked.path["topic"])


async def _shown(desk: Desk, name: str) -> TopicShown:
    insight = desk.insight
    await insight.look()
    facts = insight.topic(name)
    row = _row(desk, facts)
    partitions = await insight.partitions(name)
    ends = dict(enumerate(insight.partition_ends(name)))
    rows = [_partition(desk, facts.id, each, ends.get(each.number)) for each in partitions]

    settings = insight.settings(name)
    compaction: list[PartitionCompaction] = []
    if compacts((each.name, each.value) for each in settings):
        compaction = await desk.kafka.run(compaction_of, name, [p.number for p in partitions])
    return TopicShown(
        topic=name,
        id=facts.id,
        internal=facts.internal,
        state=facts.state,
        created_ms=facts.created_ms,
        records=row.records,
        bytes=sum(row.bytes for row in rows),
        records_per_s=row.records_per_s,
        partitions=rows,
        config=[
            SettingShown(each.name, each.value, each.is_default, each.doc) for each in settings
        ],
        compaction=compaction,
    )


def _partition(
    desk: Desk, topic_id: str, facts: PartitionFacts, ends: Ends | None
) -> PartitionShown:
    return PartitionShown(
        partition=facts.number,
        leader=facts.owner,
        replicas=list(facts.ensemble),
        term=facts.term,
        first=None if ends is None else ends.first,
        end=None if ends is None else ends.end,
        records=None if ends is None else ends.end - ends.first,
        bytes=facts.bytes_closed + (facts.bytes_open or 0),
        bytes_complete=facts.bytes_open is not None,
        records_per_s=None if ends is None else _rate(desk, topic_id, str(facts.number), ends.end),
        ledgers=facts.ledgers,
        ensemble=list(facts.ensemble),
        write_quorum=facts.write_quorum,
        ack_quorum=facts.ack_quorum,
    )


def _rate(desk: Desk, topic_id: str, part: str, end: int) -> float | None:
    """Records a second that came in; by id, since a deleted topic may have had the same name."""
    return desk.rate(f"topic/{topic_id}/{part}", end)


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
