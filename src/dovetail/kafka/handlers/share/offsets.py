"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets (KIP-932)."""

from collections.abc import Collection, Mapping

from dovetail.access import Kind, Operation
from dovetail.errors import DovetailError
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.schema import ZERO_UUID
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.group_codes import group_code
from dovetail.kafka.handlers.groups import coordinator_of
from dovetail.log.groups.types import GroupError, GroupId, PartitionKey
from dovetail.log.share.calls import Looked
from dovetail.log.share.types import ShareState
from dovetail.log.topic import TopicRecord

#: What stands for a group that has not begun in a partition.
_NOWHERE = -1


async def describe_offsets(
    backend: Backend, call: Call, request: m.DescribeShareGroupOffsetsRequest
) -> m.DescribeShareGroupOffsetsResponse:
    """Where each group begins in its partitions, and how much it has left to do."""
    groups = [await _describe(backend, call, group) for group in request.groups]
    return m.DescribeShareGroupOffsetsResponse(groups=tuple(groups))


async def _describe(
    backend: Backend, call: Call, asked: m.DescribeShareGroupOffsetsRequestGroup
) -> m.DescribeShareGroupOffsetsResponseGroup:
    coordinator = coordinator_of(backend, call, Operation.DESCRIBE, asked.group_id)
    states = coordinator.share_states(GroupId(asked.group_id))
    if isinstance(states, GroupError):
        message = None
        if states is GroupError.GROUP_ID_NOT_FOUND:
            message = f"Group {asked.group_id} not found."
        return m.DescribeShareGroupOffsetsResponseGroup(
            group_id=asked.group_id,
            topics=(),
            error_code=group_code(states),
            error_message=message,
        )

    wanted: dict[str, Collection[int]] = {}
    if asked.topics is not None:
        wanted = {topic.topic_name: topic.partitions for topic in asked.topics}
    else:
        for key in sorted(states):
            wanted.setdefault(key.topic, []).append(key.partition)  # type: ignore[attr-defined]
        wanted = {
            topic: numbers
            for topic, numbers in wanted.items()
            if call.access.allows(Operation.DESCRIBE, Kind.TOPIC, topic)
        }
    topics = [
        await _topic(backend, call, asked.group_id, topic, numbers, states)
        for topic, numbers in wanted.items()
    ]
    return m.DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, topics=tuple(topics))


async def _topic(
    backend: Backend,
    call: Call,
    group_id: str,
    topic: str,
    numbers: Collection[int],
    states: Mapping[PartitionKey, ShareState],
) -> m.DescribeShareGroupOffsetsResponseTopic:
    record, code = _topic_of(backend, call, Operation.DESCRIBE, topic)
    if record is None:
        return m.DescribeShareGroupOffsetsResponseTopic(
            topic_name=topic,
            topic_id=ZERO_UUID,
            partitions=tuple(
                m.DescribeShareGroupOffsetsResponsePartition(
                    partition_index=number,
                    start_offset=_NOWHERE,
                    leader_epoch=0,
                    error_code=code,
                    error_message=None,
                )
                for number in numbers
            ),
        )

    places = [PartitionKey(topic, n) for n in numbers if 0 <= n < record.partitions]
    looked = await backend.shares.look(group_id, places)
    rows = []
    for number in numbers:
        place = PartitionKey(topic, number)
        found = states.get(place)
        if found is not None and found.topic_id != record.id:
            found = None
        at = places.index(place) if place in places else -1
        start, lag = _progress(found, looked, at)
        view = looked.views[at] if at >= 0 else None

        rows.append(
            m.DescribeShareGroupOffsetsResponsePartition(
                partition_index=number,
                start_offset=start,
                leader_epoch=0 if found is None else found.term,
                lag=lag,
                error_code=ErrorCode.NONE
                if place in places
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                acquired=-1 if view is None else view.acquired,
                again=-1 if view is None else view.again,
                deliveries=-1 if view is None else view.deliveries,
                dying=-1 if view is None else view.dying,
                counts=looked.counts[at] if at >= 0 else (),
            )
        )
    return m.DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic, topic_id=bytes.fromhex(record.id), partitions=tuple(rows)
    )


def _progress(found: ShareState | None, looked: Looked, at: int) -> tuple[int, int]:
    """Where the group begins and what it has left, by its owner if it is in use there."""
    view = looked.views[at] if at >= 0 else None
    if found is None or found.start < 0:
        return _NOWHERE, _NOWHERE
    if view is not None:
        return view.start, view.lag
    end = looked.ends[at] if at >= 0 else -1
    return found.start, max(end - found.start - found.done, 0) if end >= 0 else _NOWHERE


def _topic_of(
    backend: Backend, call: Call, operation: Operation, topic: str
) -> tuple[TopicRecord | None, ErrorCode]:
    if not call.access.allows(operation, Kind.TOPIC, topic):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    try:
        return backend.log.topic(topic), ErrorCode.NONE
    except DovetailError:
        return None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def alter_offsets(
    backend: Backend, call: Call, request: m.AlterShareGroupOffsetsRequest
) -> m.AlterShareGroupOffsetsResponse:
    """Moves a group that has no members, to where its logs reach."""
    coordinator = coordinator_of(backend, call, Operation.READ, request.group_id)
    starts: dict[PartitionKey, tuple[str, int]] = {}
    codes: dict[PartitionKey, ErrorCode] = {}
    ids: dict[str, bytes] = {}
    for topic in request.topics:
        record, code = _topic_of(backend, call, Operation.READ, topic.topic_name)
        ids[topic.topic_name] = ZERO_UUID if record is None else bytes.fromhex(record.id)
        for partition in topic.partitions:
            place = PartitionKey(topic.topic_name, partition.partition_index)
            codes[place] = code
            if record is None:
                continue
            if not 0 <= place.partition < record.partitions:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif partition.start_offset < 0:
                codes[place] = ErrorCode.INVALID_REQUEST
            else:
                starts[place] = (record.id, partition.start_offset)

    if coordinator.refusal(GroupId(request.group_id)) is GroupError.NONE:
        # Behind the end of its log a group would wait, perhaps for ever, and say nothing.
        looked = await backend.shares.look(request.group_id, [*starts])
        for place, end in zip([*starts], looked.ends, strict=True):
            if 0 <= end < starts[place][1]:
                codes[place] = ErrorCode.OFFSET_OUT_OF_RANGE
                del starts[place]

    error = await coordinator.move_share(GroupId(request.group_id), starts)
    if error is not GroupError.NONE:
        return m.AlterShareGroupOffsetsResponse(
            error_code=group_code(error), error_message=_words(error, request.group_id)
        )
    return m.AlterShareGroupOffsetsResponse(
        responses=tuple(
            m.AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=ids[topic.topic_name],
                partitions=tuple(
                    m.AlterShareGroupOffsetsResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes[PartitionKey(topic.topic_name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


async def delete_offsets(
    backend: Backend, call: Call, request: m.DeleteShareGroupOffsetsRequest
) -> m.DeleteShareGroupOffsetsResponse:
    """A group without members forgets where it was in topics."""
    coordinator = coordinator_of(backend, call, Operation.DELETE, request.group_id)
    found = {
        topic.topic_name: _topic_of(backend, call, Operation.READ, topic.topic_name)
        for topic in request.topics
    }
    free = [name for name, (record, _) in found.items() if record is not None]
    error = await coordinator.forget_share(GroupId(request.group_id), free)
    if error is not GroupError.NONE:
        return m.DeleteShareGroupOffsetsResponse(
            error_code=group_code(error), error_message=_words(error, request.group_id)
        )
    return m.DeleteShareGroupOffsetsResponse(
        responses=tuple(
            m.DeleteShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=ZERO_UUID if record is None else bytes.fromhex(record.id),
                error_code=code,
            )
            for name, (record, code) in found.items()
        )
    )


def _words(error: GroupError, group_id: str) -> str | None:
    """Kafka's own."""
    if error is GroupError.NON_EMPTY_GROUP:
        return "The group is not empty."
    if error is GroupError.GROUP_ID_NOT_FOUND:
        return f"Group {group_id} not found."
    return None
