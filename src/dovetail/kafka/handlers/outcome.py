"""Our errors as Kafka's codes: the one table.

A client acts on the code alone: retry, look for the leader, or give up. So the table follows what
a client should do, not how the error is called.
"""

from dovetail import errors
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.log.groups.types import GroupError

#: Looked up along the class tree: the nearest ancestor counts.
_CODES: dict[type[errors.DovetailError], ErrorCode] = {
    errors.InvalidInput: ErrorCode.INVALID_REQUEST,
    errors.InvalidBatch: ErrorCode.INVALID_RECORD,
    errors.ChecksumMismatch: ErrorCode.CORRUPT_MESSAGE,
    errors.BatchTooLarge: ErrorCode.MESSAGE_TOO_LARGE,
    errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    errors.NotFound: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    errors.TopicExists: ErrorCode.TOPIC_ALREADY_EXISTS,
    errors.Fenced: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.NotOwner: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    errors.SequenceGap: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.ProducerFenced: ErrorCode.INVALID_PRODUCER_EPOCH,
    errors.Throttled: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    errors.Unavailable: ErrorCode.KAFKA_STORAGE_ERROR,
    errors.CoordinationDown: ErrorCode.REQUEST_TIMED_OUT,
    errors.Uncertain: ErrorCode.REQUEST_TIMED_OUT,
    errors.Damaged: ErrorCode.KAFKA_STORAGE_ERROR,
}

_GROUP_CODES: dict[GroupError, ErrorCode] = {
    GroupError.NONE: ErrorCode.NONE,
    GroupError.UNKNOWN_MEMBER: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupError.ILLEGAL_GENERATION: ErrorCode.ILLEGAL_GENERATION,
    GroupError.REBALANCE_IN_PROGRESS: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupError.INCONSISTENT_PROTOCOL: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    GroupError.MEMBER_ID_REQUIRED: ErrorCode.MEMBER_ID_REQUIRED,
    GroupError.FENCED_INSTANCE: ErrorCode.FENCED_INSTANCE_ID,
    GroupError.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    GroupError.NON_EMPTY_GROUP: ErrorCode.NON_EMPTY_GROUP,
    GroupError.INVALID_SESSION_TIMEOUT: ErrorCode.INVALID_SESSION_TIMEOUT,
    GroupError.GROUP_SUBSCRIBED_TO_TOPIC: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    GroupError.GROUP_MAX_SIZE: ErrorCode.GROUP_MAX_SIZE_REACHED,
    GroupError.INVALID_GROUP_ID: ErrorCode.INVALID_GROUP_ID,
    GroupError.OFFSET_METADATA_TOO_LARGE: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    GroupError.COORDINATOR_LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    GroupError.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    GroupError.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    GroupError.FORBIDDEN: ErrorCode.GROUP_AUTHORIZATION_FAILED,
}


_FORBIDDEN = {
    "topic": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "group": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "cluster": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def code_of(error: BaseException) -> ErrorCode:
    """The code that makes a client do the right thing."""
    if isinstance(error, errors.Forbidden):
        return _FORBIDDEN[error.kind]
    for ancestor in type(error).__mro__:
        code = _CODES.get(ancestor)
        if code is not None:
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def group_code(error: GroupError) -> ErrorCode:
    """The code of a group's answer."""
    return _GROUP_CODES[error]
