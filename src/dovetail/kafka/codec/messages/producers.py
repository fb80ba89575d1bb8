"""InitProducerId: an id and epoch for an idempotent producer."""

from typing import Annotated

from dovetail.kafka.codec.schema import Int16, Int32, Int64, String, Wire, message


@message
class InitProducerIdRequest:
    """A null transactional id asks for idempotence alone."""

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Wire(since=3)] = -1
    producer_epoch: Annotated[Int16, Wire(since=3)] = -1


@message
class InitProducerIdResponse:
    """The id and its epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16
