"""Transactions: list them, and end one that hangs.

Every broker lists those that it coordinates. To abort one, its transactional id is taken over
briefly, as a new producer with that name would: the old one is fenced, and its open transaction
aborted.
"""

from collections.abc import Iterator
from contextlib import closing

from msgspec import Struct

from dovetail.admin.kafka import Kafka
from dovetail.errors import NotFound
from dovetail.kafka.client.brokers import Brokers
from dovetail.kafka.client.client import KafkaClient


class TransactionalId(Struct, frozen=True):
    """A transactional id, and the transaction that is under way."""

    id: str
    state: str
    producer: int
    epoch: int
    timeout_ms: int
    #: Milliseconds since the epoch; None if none has begun.
    started_ms: int | None
    partitions: list[str]


def list_transactions(kafka: Kafka) -> list[TransactionalId]:
    """All of them, by their ids."""
    with closing(_client(kafka)) as client:
        return sorted(_found(client), key=lambda one: one.id)


def _client(kafka: Kafka) -> KafkaClient:
    brokers = Brokers.at(kafka.bootstrap, kafka.security)
    return KafkaClient(brokers, client_id=kafka.client_id, timeout_s=kafka.timeout_s)


def _found(client: KafkaClient) -> Iterator[TransactionalId]:
    for one in client.transactions():
        yield TransactionalId(
            one.transactional_id,
            one.transaction_state,
            one.producer_id,
            one.producer_epoch,
            one.transaction_timeout_ms,
            None if one.transaction_start_time_ms < 0 else one.transaction_start_time_ms,
            [f"{topic.topic}-{number}" for topic in one.topics for number in topic.partitions],
        )


def abort_transaction(kafka: Kafka, transactional_id: str) -> None:
    """Fences the producer and aborts what it has open. Raises `NotFound` if there is no such id."""
    with closing(_client(kafka)) as client:
        known = [one for one in client.transactions() if one.transactional_id == transactional_id]
        if not known:
            raise NotFound(f"transactional id {transactional_id!r} is not known")
        client.take_over(transactional_id, timeout_ms=known[0].transaction_timeout_ms)
