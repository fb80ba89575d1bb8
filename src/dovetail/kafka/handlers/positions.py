"""OffsetCommit, OffsetFetch and OffsetDelete: the positions of groups."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from dovetail.access import Kind, Operation
from dovetail.errors import DovetailError, TopicUnknown
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.codec.schema import ZERO_UUID
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.group_codes import group_code
from dovetail.kafka.handlers.groups import coordinator_of, identity
from dovetail.log.groups.types import (
    Generation,
    GroupError,
    GroupId,
    MemberId,
    MemberIdentity,
    OffsetCommit,
    PartitionKey,
)

#: From this version on a request names several groups.
_MANY_GROUPS_SINCE = 8

#: From this version on topics are named by their ids.
_TOPIC_IDS_SINCE = 10

_NO_POSITION = -1


async def offset_commit(
    backend: Backend, call: Call, request: m.OffsetCommitRequest
) -> m.OffsetCommitResponse:
    """Stores positions; those in partitions that do not exist are refused one by one."""
    codes: dict[PartitionKey, ErrorCode] = {}
    wanted: dict[PartitionKey, OffsetCommit] = {}
    named = _with_names(backend, call, request.topics)
    for topic in named:
        for partition in topic.partitions:
            key = PartitionKey(topic.name, partition.partition_index)
            if not topic.name:
                codes[key] = ErrorCode.UNKNOWN_TOPIC_ID
                continue
            refused = refusal(backend, call, key)
            if refused is not ErrorCode.NONE:
                codes[key] = refused
                continue
            wanted[key] = OffsetCommit(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
            )

    coordinator = coordinator_of(backend, call, Operation.READ, request.group_id)
    outcomes = await coordinator.commit(
        GroupId(request.group_id),
        identity(request.member_id, request.group_instance_id),
        Generation(request.generation_id_or_member_epoch),
        wanted,
    )
    codes.update((key, group_code(error)) for key, error in outcomes.items())
    return m.OffsetCommitResponse(topics=_outcomes(named, codes))


def refusal(backend: Backend, call: Call, key: PartitionKey) -> ErrorCode:
    """Why a client may not set a position in a partition; NONE if it may."""
    try:
        call.access.demand(Operation.READ, Kind.TOPIC, key.topic)
        known = backend.log.topic(key.topic)
    except DovetailError as error:
        return code_of(error)
    if not 0 <= key.partition < known.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


_Topic = TypeVar("_Topic", m.OffsetCommitRequestTopic, m.OffsetFetchRequestTopic)


def _with_names(backend: Backend, call: Call, topics: Sequence[_Topic]) -> tuple[_Topic, ...]:
    """The topics with their names also where they came by id; empty if there is none of that id."""
    if call.api_version < _TOPIC_IDS_SINCE:
        return tuple(topics)
    return tuple(replace(topic, name=_name_of(backend, topic.topic_id)) for topic in topics)


def _name_of(backend: Backend, topic_id: bytes) -> str:
    try:
        return backend.log.topic_by_id(topic_id.hex()).name
    except TopicUnknown:
        return ""


def _outcomes(
    topics: Iterable[m.OffsetCommitRequestTopic | m.OffsetDeleteRequestTopic],
    codes: Mapping[PartitionKey, ErrorCode],
) -> tuple[m.OffsetTopicOutcome, ...]:
    """The code of each partition, in the order in which they were named."""
    return tuple(
        m.OffsetTopicOutcome(
            name=topic.name,
            topic_id=getattr(topic, "topic_id", ZERO_UUID),
            partitions=tuple(
                m.OffsetPartitionOutcome(
                    partition_index=one.partition_index,
                    error_code=codes[PartitionKey(topic.name, one.partition_index)],
                )
                for one in topic.partitions
            ),
        )
        for topic in topics
    )


async def offset_fetch(
    backend: Backend, call: Call, request: m.OffsetFetchRequest
) -> m.OffsetFetchResponse:
    """Positions of one group, or from version 8 of several."""
    if call.api_version >= _MANY_GROUPS_SINCE:
        groups = []
        for group in dict.fromkeys(request.groups):
            who = MemberIdentity(MemberId(group.member_id or ""))
            code, topics = await _fetch(
                backend,
                call,
                group.group_id,
                group.topics,
                who,
                group.member_epoch,
                stable=request.require_stable,
            )
            groups.append(
                m.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=code)
            )
        return m.OffsetFetchResponse(groups=tuple(groups))
    code, topics = await _fetch(
        backend, call, request.group_id, request.topics, stable=request.require_stable
    )
    return m.OffsetFetchResponse(topics=topics, error_code=code)


async def _fetch(
    backend: Backend,
    call: Call,
    group_id: str,
    wanted: tuple[m.OffsetFetchRequestTopic, ...] | None,
    who: MemberIdentity | None = None,
    member_epoch: int = -1,
    *,
    stable: bool,
) -> tuple[ErrorCode, tuple[m.OffsetFetchResponseTopic, ...]]:
    coordinator = coordinator_of(backend, call, Operation.DESCRIBE, group_id)
    wrong = coordinator.fetch_check(GroupId(group_id), who, member_epoch)
    if wrong is not GroupError.NONE:
        return group_code(wrong), ()
    answer = await coordinator.fetch(GroupId(group_id))
    if wanted is None:
        asked: dict[tuple[str, bytes], list[int]] = {}
        for key in sorted(answer.offsets.keys() | (answer.unstable if stable else ())):
            if call.access.allows(Operation.DESCRIBE, Kind.TOPIC, key.topic):
                topic_id = _id_of(backend, call, key.topic)
                if topic_id is not None:
                    asked.setdefault((key.topic, topic_id), []).append(key.partition)
    else:
        asked = {
            (topic.name, topic.topic_id): list(topic.partition_indexes)
            for topic in _with_names(backend, call, wanted)
        }

    code = group_code(answer.error)
    topics = []
    for (topic, topic_id), partitions in asked.items():
        found = []
        seen = bool(topic) and call.access.allows(Operation.DESCRIBE, Kind.TOPIC, topic)
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic else ErrorCode.UNKNOWN_TOPIC_ID
        for partition in partitions:
            key = PartitionKey(topic, partition)
            waits = stable and seen and key in answer.unstable
            position = answer.offsets.get(key) if seen and not waits else None
            found.append(
                m.OffsetFetchResponsePartition(
                    partition_index=partition,
                    committed_offset=position.offset if position else _NO_POSITION,
                    committed_leader_epoch=position.leader_epoch if position else -1,
                    metadata=position.metadata if position else "",
                    error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT
                    if waits
                    else (code if seen else refused),
                )
            )
        topics.append(
            m.OffsetFetchResponseTopic(name=topic, topic_id=topic_id, partitions=tuple(found))
        )
    return code, tuple(topics)


def _id_of(backend: Backend, call: Call, topic: str) -> bytes | None:
    """The id that an answer names a topic by; None if it is needed and the topic is gone."""
    if call.api_version < _TOPIC_IDS_SINCE:
        return ZERO_UUID
    try:
        return bytes.fromhex(backend.log.topic(topic).id)
    except TopicUnknown:
        return None


async def offset_delete(
    backend: Backend, call: Call, request: m.OffsetDeleteRequest
) -> m.OffsetDeleteResponse:
    """Forgets positions, but not of topics that a member is subscribed to."""
    wanted = [
        PartitionKey(topic.name, p.partition_index)
        for topic in request.topics
        for p in topic.partitions
    ]
    coordinator = coordinator_of(backend, call, Operation.DELETE, request.group_id)
    refused = {key: code for key in wanted if (code := refusal(backend, call, key))}
    left = [key for key in wanted if key not in refused]
    answer = await coordinator.delete_offsets(GroupId(request.group_id), left)
    code = group_code(answer.error)
    if code is not ErrorCode.NONE:
        return m.OffsetDeleteResponse(error_code=code, topics=())
    codes = {key: group_code(error) for key, error in answer.outcomes.items()} | refused
    return m.OffsetDeleteResponse(
        error_code=ErrorCode.NONE, topics=_outcomes(request.topics, codes)
    )
