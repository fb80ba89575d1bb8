"""What the errors of a Kafka client mean in our own words; for the command line and the console.

Not in `kafka`, the protocol's server, which takes longer to load than a command may. A node imports
it when its console asks for the first time, because of the client.
"""

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError

from dovetail.errors import (
    DovetailError,
    InvalidInput,
    NotFound,
    OffsetOutOfRange,
    Refused,
    TopicExists,
    TopicUnknown,
    Unavailable,
    Uncertain,
)

#: Nobody answered, or not in time.
SILENT: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
    }
)

_KINDS: Final[Mapping[int, type[DovetailError]]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: TopicUnknown,
    KafkaError._UNKNOWN_TOPIC: TopicUnknown,
    KafkaError._UNKNOWN_PARTITION: TopicUnknown,
    KafkaError.GROUP_ID_NOT_FOUND: NotFound,
    KafkaError.TOPIC_ALREADY_EXISTS: TopicExists,
    KafkaError.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    KafkaError.TOPIC_EXCEPTION: InvalidInput,
    KafkaError.INVALID_PARTITIONS: InvalidInput,
    KafkaError.INVALID_REPLICATION_FACTOR: InvalidInput,
    KafkaError.INVALID_CONFIG: InvalidInput,
    KafkaError.INVALID_REQUEST: InvalidInput,
    KafkaError.MSG_SIZE_TOO_LARGE: InvalidInput,
    KafkaError._INVALID_ARG: InvalidInput,
    KafkaError.NOT_LEADER_FOR_PARTITION: Unavailable,
    KafkaError.LEADER_NOT_AVAILABLE: Unavailable,
    KafkaError.COORDINATOR_NOT_AVAILABLE: Unavailable,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: Unavailable,
    KafkaError.NOT_COORDINATOR: Unavailable,
    KafkaError.REQUEST_TIMED_OUT: Uncertain,
    KafkaError._MSG_TIMED_OUT: Uncertain,
}


def meaning_of(doing: str, error: KafkaError) -> DovetailError:
    """The error of ours for an answer that was no; `doing` is what was tried."""
    kind = _KINDS.get(error.code(), Refused)
    return kind(f"{doing}: {error.str()} ({error.name()})")
