"""Kafka's error codes by Kafka's names, and the one table that maps them to our errors.

A code is part of the protocol: by it clients decide whether to retry, to look for a new leader or
to give up. The numbers never change; newer Kafka versions add to the end.

A broker answers with the code that makes a client do the right thing (`code_of`). Our client raises
the error for the code that it got (`error_of`); the error's `retriable` says whether to retry.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from dovetail import errors
from dovetail.errors import DovetailError


class ErrorCode(IntEnum):
    """What went wrong, as a 16-bit number on the wire."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


#: Each error with its codes. A broker answers with the first one; the table is searched along the
#: class tree, so that the nearest ancestor counts. A client takes a code for the first error that
#: lists it, and for `Refused` if none does.
_CODES: Final[Mapping[type[DovetailError], tuple[ErrorCode, ...]]] = {
    errors.InvalidInput: (
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_CONFIG,
    ),
    errors.InvalidBatch: (
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    errors.ChecksumMismatch: (ErrorCode.CORRUPT_MESSAGE,),
    errors.BatchTooLarge: (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE),
    errors.InvalidTimestamp: (ErrorCode.INVALID_TIMESTAMP,),
    errors.OffsetOutOfRange: (ErrorCode.OFFSET_OUT_OF_RANGE,),
    errors.PolicyViolation: (ErrorCode.POLICY_VIOLATION,),
    errors.TopicUnknown: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,),
    errors.TopicIdUnknown: (ErrorCode.UNKNOWN_TOPIC_ID,),
    errors.NotFound: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND),
    errors.TopicExists: (ErrorCode.TOPIC_ALREADY_EXISTS,),
    errors.SequenceGap: (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID),
    errors.ProducerFenced: (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED),
    errors.TransactionRefused: (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE),
    errors.TransactionMapping: (ErrorCode.INVALID_PRODUCER_ID_MAPPING,),
    errors.TransactionBusy: (ErrorCode.CONCURRENT_TRANSACTIONS,),
    errors.NotOwner: (ErrorCode.NOT_LEADER_OR_FOLLOWER,),
    errors.Fenced: (ErrorCode.NOT_LEADER_OR_FOLLOWER,),
    errors.TooFewCopies: (
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ),
    errors.Throttled: (ErrorCode.THROTTLING_QUOTA_EXCEEDED,),
    errors.Unavailable: (
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ),
    errors.Uncertain: (ErrorCode.REQUEST_TIMED_OUT,),
    errors.CoordinationDown: (ErrorCode.REQUEST_TIMED_OUT,),
    errors.Damaged: (ErrorCode.KAFKA_STORAGE_ERROR,),
}

#: `Forbidden` has a code for each kind of thing.
_FORBIDDEN: Final = {
    "topic": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    "group": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    "cluster": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    "transactional_id": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_ERRORS: Final[dict[int, type[DovetailError]]] = {
    code: error for error, codes in reversed([*_CODES.items()]) for code in codes
}
_FORBIDDEN_KINDS: Final = {code: kind for kind, code in _FORBIDDEN.items()}

#: Every code that a broker of ours answers for an error.
ANSWERED: Final = frozenset(
    [*(codes[0] for codes in _CODES.values()), *_FORBIDDEN.values(), ErrorCode.UNKNOWN_SERVER_ERROR]
)


def code_of(error: BaseException) -> ErrorCode:
    """The code that makes a client do the right thing."""
    if isinstance(error, errors.Forbidden):
        return _FORBIDDEN[error.kind]
    for ancestor in type(error).__mro__:
        codes = _CODES.get(ancestor)
        if codes is not None:
            return codes[0]
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_for(code: int, message: str) -> DovetailError:
    """The error that a code stands for, with this message."""
    if code in _FORBIDDEN_KINDS:
        return errors.Forbidden(message, kind=_FORBIDDEN_KINDS[ErrorCode(code)])
    return _ERRORS.get(code, errors.Refused)(message)


def error_of(code: int, doing: str, detail: str | None = None) -> DovetailError:
    """The error for a code that a broker answered with; `doing` is what was tried."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = f"the broker answered error {code}"
    return error_for(code, f"{doing}: {name}" + (f" ({detail})" if detail else ""))
