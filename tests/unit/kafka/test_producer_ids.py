"""Who gets an id for an idempotent producer."""

from types import SimpleNamespace
from typing import cast

import pytest

from dovetail.access import Guard, Kind, Operation
from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.handlers.backend import Backend, Call
from dovetail.kafka.handlers.produce import init_producer_id


class _Log:
    async def next_producer_id(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("idempotent", "writes", "code"),
    [
        (False, False, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (True, False, ErrorCode.NONE),
        (False, True, ErrorCode.NONE),
    ],
)
async def test_who_may_write_nothing_gets_none(
    idempotent: bool, writes: bool, code: ErrorCode
) -> None:
    """F50: as with Kafka, it takes the right over the cluster or to write some topic."""

    def judge(who: str, host: str, what: Operation, kind: Kind, name: str) -> bool:
        return idempotent and (what, kind) == (Operation.IDEMPOTENT_WRITE, Kind.CLUSTER)

    access = Guard(judge, lambda *_: writes, ()).bind("alice", "10.0.0.1")
    backend = cast(Backend, SimpleNamespace(log=_Log()))
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    answer = await init_producer_id(backend, Call(4, "", "", access), request)
    assert answer.error_code == code
    assert answer.producer_id == (7 if code is ErrorCode.NONE else -1)
