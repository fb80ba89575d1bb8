"""The private calls of transactions between brokers. `wire/calls.py` is the codec.

Admit       the owner of a partition → the coordinator of a transactional id
EndHere     the coordinator → the owner of partitions that a transaction has written to
"""

from typing import Annotated, Final

from msgspec import Meta

from dovetail.wire.calls import TRANSACTION_KEYS, Answer, CallTable, Failure, Request

#: Largest body of a request: the partitions of a transaction on one broker, 20 to 270 bytes each.
REQUEST_BODY_BYTES_MAX: Final = 8 * 1024 * 1024

_Name = Annotated[str, Meta(max_length=32_767)]
_Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Producer = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Epoch = Annotated[int, Meta(ge=0, le=2**15 - 1)]


class Admit(Request, frozen=True):
    """May the producer write here? With `adds` the partition joins the transaction."""

    transactional_id: _Name
    producer_id: _Producer
    epoch: _Epoch
    topic: _Name
    number: _Number
    adds: bool


class Admitted(Answer, frozen=True):
    """It may; the number of the transaction."""

    number: int


class EndHere(Request, frozen=True):
    """The transaction is committed or aborted in these partitions."""

    producer_id: _Producer
    epoch: _Epoch
    commit: bool
    coordinator_epoch: int
    number: int
    partitions: list[tuple[_Name, _Number]]


class EndedHere(Answer, frozen=True):
    """For each partition, in order: None if the marker is stored, or why not."""

    outcomes: list[Failure | None]


CALLS: Final = CallTable(
    "transactions",
    TRANSACTION_KEYS,
    {TRANSACTION_KEYS[0]: Admit, TRANSACTION_KEYS[1]: EndHere},
    body_bytes_max=REQUEST_BODY_BYTES_MAX,
)
