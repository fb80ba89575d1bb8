"""Transactions: states, errors, answers."""

from enum import Enum
from typing import NamedTuple

from dovetail.errors import (
    DovetailError,
    NotOwner,
    ProducerFenced,
    TransactionBusy,
    TransactionMapping,
    TransactionRefused,
    Unavailable,
)


class TransactionState(Enum):
    """States by Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"


class TransactionError(Enum):
    """Why a coordinator does not do what it is asked."""

    FENCED = "a newer producer has this transactional id"
    MAPPING = "the transactional id belongs to another producer id"
    INVALID_STATE = "the transaction is not in a state for that"
    NOT_PART = "the partition is not part of the transaction"
    BUSY = "the transaction before it is still being ended"
    NOT_FOUND = "the transactional id is not known"
    LOADING = "the coordinator is reading its journal"
    NOT_AVAILABLE = "the coordinator could not store it"
    NOT_COORDINATOR = "another node coordinates this transactional id"


_RAISED: dict[TransactionError, type[DovetailError]] = {
    TransactionError.FENCED: ProducerFenced,
    TransactionError.MAPPING: TransactionMapping,
    TransactionError.BUSY: TransactionBusy,
    TransactionError.LOADING: Unavailable,
    TransactionError.NOT_AVAILABLE: Unavailable,
    TransactionError.NOT_COORDINATOR: NotOwner,
}


def raised(error: TransactionError, transactional_id: str) -> DovetailError:
    """The error as brokers raise it among themselves."""
    kind = _RAISED.get(error, TransactionRefused)
    return kind(f"transactional id {transactional_id!r}: {error.value}")


class Identity(NamedTuple):
    """A producer as its requests name it."""

    producer_id: int
    epoch: int


class Place(NamedTuple):
    """A partition of a topic; a group's journal stands for the group's positions."""

    topic: str
    number: int
