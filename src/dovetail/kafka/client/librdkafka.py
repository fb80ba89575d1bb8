"""Maps librdkafka's errors to ours.

librdkafka uses Kafka's codes (`codec.error_codes`), and negative ones of its own for what it
detects without a broker.
"""

from typing import Final

from confluent_kafka import KafkaError

from dovetail.errors import DovetailError, InvalidInput, TopicUnknown, Uncertain
from dovetail.kafka.codec.error_codes import error_for

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

_LOCAL: Final[dict[int, type[DovetailError]]] = {
    KafkaError._UNKNOWN_TOPIC: TopicUnknown,
    KafkaError._UNKNOWN_PARTITION: TopicUnknown,
    KafkaError._INVALID_ARG: InvalidInput,
    KafkaError._MSG_TIMED_OUT: Uncertain,
}


def meaning_of(doing: str, error: KafkaError) -> DovetailError:
    """The error of ours for a failed call; `doing` is what was tried."""
    message = f"{doing}: {error.str()} ({error.name()})"
    local = _LOCAL.get(error.code())
    return error_for(error.code(), message) if local is None else local(message)
