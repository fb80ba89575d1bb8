"""Maps decisions of a group coordinator to Kafka's codes."""

from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.log.groups.types import GroupError

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
    GroupError.STALE_MEMBER_EPOCH: ErrorCode.STALE_MEMBER_EPOCH,
    GroupError.FENCED_MEMBER_EPOCH: ErrorCode.FENCED_MEMBER_EPOCH,
    GroupError.UNRELEASED_INSTANCE: ErrorCode.UNRELEASED_INSTANCE_ID,
    GroupError.UNSUPPORTED_ASSIGNOR: ErrorCode.UNSUPPORTED_ASSIGNOR,
    GroupError.INVALID_PATTERN: ErrorCode.INVALID_REGULAR_EXPRESSION,
    GroupError.INVALID_REQUEST: ErrorCode.INVALID_REQUEST,
    GroupError.TRANSACTION_ENDED: ErrorCode.INVALID_TXN_STATE,
}


def group_code(error: GroupError) -> ErrorCode:
    """The code of a group's answer."""
    return _GROUP_CODES[error]
