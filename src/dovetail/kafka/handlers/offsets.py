"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: the offsets of a partition."""

from dovetail.access import Kind, Operation
from dovetail.errors import DovetailError, InvalidInput, OffsetOutOfRange, PolicyViolation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode, code_of
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.fetch import READ_COMMITTED, epoch_code
from dovetail.log.partition import Partition
from dovetail.log.reading import TimedOffset, newest_record, offset_for_time, term_end

_LATEST = -1
_EARLIEST = -2
_NEWEST_TIMESTAMP = -3
_EARLIEST_LOCAL = -4

#: "Everything there is", in DeleteRecords.
_ALL = -1


async def list_offsets(
    backend: Backend, call: Call, request: m.ListOffsetsRequest
) -> m.ListOffsetsResponse:
    """Offsets by timestamp, or one of the named places."""
    topics = []
    for topic in request.topics:
        partitions = [
            await _list_one(backend, call, topic.name, wanted, request.isolation_level)
            for wanted in topic.partitions
        ]
        topics.append(m.ListOffsetsResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return m.ListOffsetsResponse(topics=tuple(topics))


async def _list_one(
    backend: Backend,
    call: Call,
    topic: str,
    wanted: m.ListOffsetsRequestPartition,
    isolation_level: int,
) -> m.ListOffsetsResponsePartition:
    index = wanted.partition_index
    try:
        call.access.demand(Operation.DESCRIBE, Kind.TOPIC, topic)
        partition = backend.log.partition(topic, index)
        code = epoch_code(wanted.current_leader_epoch, partition.term)
        if code is not ErrorCode.NONE:
            return m.ListOffsetsResponsePartition(partition_index=index, error_code=code)
        committed = isolation_level == READ_COMMITTED
        end = partition.last_stable if committed else partition.high_watermark
        found = await _find(partition, wanted.timestamp, end)
    except DovetailError as error:
        return m.ListOffsetsResponsePartition(partition_index=index, error_code=code_of(error))

    if found is None:
        return m.ListOffsetsResponsePartition(partition_index=index, error_code=ErrorCode.NONE)
    return m.ListOffsetsResponsePartition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=partition.term,
    )


async def _find(partition: Partition, timestamp: int, end: int) -> TimedOffset | None:
    """The place that is asked for; `end` is where the log ends for this reader."""
    if timestamp == _LATEST:
        return TimedOffset(end, -1)
    if timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        return TimedOffset(partition.log_start, -1)
    if timestamp == _NEWEST_TIMESTAMP:
        found = await newest_record(partition)
    else:
        found = await offset_for_time(partition, timestamp) if timestamp >= 0 else None
    return None if found is None or found.offset >= end else found


async def offset_for_leader_epoch(
    backend: Backend, call: Call, request: m.OffsetForLeaderEpochRequest
) -> m.OffsetForLeaderEpochResponse:
    """Where a term's records end, so that a client finds out that it read records since lost."""
    topics = []
    for topic in request.topics:
        partitions = [await _epoch_end(backend, call, topic.topic, p) for p in topic.partitions]
        topics.append(
            m.OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=tuple(partitions))
        )
    return m.OffsetForLeaderEpochResponse(topics=tuple(topics))


async def _epoch_end(
    backend: Backend, call: Call, topic: str, wanted: m.OffsetForLeaderEpochRequestPartition
) -> m.OffsetForLeaderEpochResponsePartition:
    index = wanted.partition
    try:
        call.access.demand(Operation.DESCRIBE, Kind.TOPIC, topic)
        partition = backend.log.partition(topic, index)
    except DovetailError as error:
        return m.OffsetForLeaderEpochResponsePartition(error_code=code_of(error), partition=index)
    code = epoch_code(wanted.current_leader_epoch, partition.term)
    if code is not ErrorCode.NONE or not 0 <= wanted.leader_epoch <= partition.term:
        return m.OffsetForLeaderEpochResponsePartition(error_code=code, partition=index)

    try:
        epoch, end = await term_end(partition, wanted.leader_epoch)
    except DovetailError as error:
        return m.OffsetForLeaderEpochResponsePartition(error_code=code_of(error), partition=index)
    return m.OffsetForLeaderEpochResponsePartition(
        error_code=ErrorCode.NONE, partition=index, leader_epoch=epoch, end_offset=end
    )


async def delete_records(
    backend: Backend, call: Call, request: m.DeleteRecordsRequest
) -> m.DeleteRecordsResponse:
    """Drops everything below an offset."""
    topics = []
    for topic in request.topics:
        partitions = [await _delete_one(backend, call, topic.name, p) for p in topic.partitions]
        topics.append(m.DeleteRecordsResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return m.DeleteRecordsResponse(topics=tuple(topics))


async def _delete_one(
    backend: Backend, call: Call, topic: str, wanted: m.DeleteRecordsRequestPartition
) -> m.DeleteRecordsResponsePartition:
    index = wanted.partition_index
    try:
        call.access.demand(Operation.DELETE, Kind.TOPIC, topic)
        partition = backend.log.partition(topic, index)
        if backend.log.topic(topic).internal:
            raise InvalidInput(f"topic {topic!r} is internal")
        if not partition.config.deletes:
            raise PolicyViolation(
                f"cannot delete records: the cleanup.policy of topic {topic!r} lacks 'delete'"
            )
        offset = partition.high_watermark if wanted.offset == _ALL else wanted.offset
        if not 0 <= offset <= partition.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} is above the high watermark {partition.high_watermark}"
            )
        await partition.trim(offset)
    except DovetailError as error:
        return m.DeleteRecordsResponsePartition(
            partition_index=index, low_watermark=-1, error_code=code_of(error)
        )

    return m.DeleteRecordsResponsePartition(
        partition_index=index, low_watermark=partition.log_start, error_code=ErrorCode.NONE
    )
