"""What is not supported is refused in the protocol's own words; what does not fit is not sent."""

from typing import Any

import pytest
from tests.unit.kafka.message_strategies import unframed

from dovetail.buffers import Buffer
from dovetail.errors import InvalidInput
from dovetail.kafka.codec.apis import SUPPORTED, ApiKey, advertised
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import (
    answers,
    decode_response,
    encode_request,
    encode_response,
    refuse,
)
from dovetail.kafka.codec.headers import RequestHeader, decode_header
from dovetail.kafka.codec.messages import (
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    HeartbeatResponse,
    MetadataResponse,
    MetadataResponseTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)


def refused(frame: bytes) -> list[Buffer] | None:
    """What `refuse` says to a frame that nobody answers."""
    header, body_start = decode_header(memoryview(frame))
    assert not answers(header)
    return refuse(header, memoryview(frame), body_start)


@pytest.mark.parametrize("version", [5, 99, 0x7FFF, -1])
def test_api_versions_of_the_future(version: int) -> None:
    """K5: an unknown ApiVersions version is answered in version 0, with error 35."""
    start = b"\0\x12" + version.to_bytes(2, "big", signed=True) + b"\0\0\0\x09\0\1c"
    answer = refused(start + (b"\0" if version >= 3 else b"") + b"whatever")
    assert answer is not None
    body = decode_response(RequestHeader(18, 0, 9), unframed(answer))
    assert body.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(api.api_key, api.min_version, api.max_version) for api in body.api_keys] == [
        (18, 0, 4)
    ]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_is_refused_in_its_own_version(version: int) -> None:
    """K5: Produce below 3 is advertised for librdkafka's sake, and answered with error 35."""
    header = RequestHeader(0, version, 9, "old")
    answer = refused(bytes(unframed(encode_request(header, produce(acks=1)))))
    assert answer is not None
    body = decode_response(header, unframed(answer))
    (topic,) = body.responses
    (partition,) = topic.partition_responses
    assert (topic.name, partition.index) == ("t", 4)
    assert partition.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_old_produce_without_acks_closes() -> None:
    """K5: a client that wants no answer is told by closing the connection."""
    header = RequestHeader(0, 2, 9, "old")
    assert refused(bytes(unframed(encode_request(header, produce(acks=0))))) is None


def produce(acks: int) -> ProduceRequest:
    """One batch for one partition."""
    partition = ProduceRequestPartition(index=4, records=memoryview(b"batch"))
    topic = ProduceRequestTopic(name="t", partition_data=(partition,))
    return ProduceRequest(acks=acks, timeout_ms=1, topic_data=(topic,))


@pytest.mark.parametrize(("api_key", "version"), [(58, 0), (0, 14), (1, 3), (1, 19), (999, 0)])
def test_other_versions_close(api_key: int, version: int) -> None:
    """K5: for other types and versions Kafka has no answer but to close."""
    start = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x09\xff\xff"
    assert refused(start + b"\0") is None


def test_produce_alone_is_advertised_lower() -> None:
    """K5: than what is answered, for librdkafka's sake."""
    lower = [api for api in advertised() if api.min_version != SUPPORTED[api.api_key].lowest]
    assert [(api.api_key, api.min_version, api.max_version) for api in lower] == [(0, 0, 13)]


def test_record_buffers_pass_through() -> None:
    """K2: the batches of a fetch leave as the very buffers that were given, lengths in front."""
    batches: tuple[Buffer, ...] = (b"first", memoryview(b"second"), bytearray(b"third"))
    empty = FetchResponsePartition(partition_index=2, error_code=0, high_watermark=3, records=())
    full = FetchResponsePartition(
        partition_index=1, error_code=0, high_watermark=3, records=batches
    )
    topic = FetchResponseTopic(topic="t", partitions=(full, empty, full))
    header = RequestHeader(1, 11, 9)
    buffers = encode_response(header, FetchResponse(responses=(topic,)))
    assert [buffer for buffer in buffers if any(buffer is batch for batch in batches)] == [
        *batches,
        *batches,
    ]
    decoded = decode_response(header, unframed(buffers))
    joined = [b"".join(partition.records) for partition in decoded.responses[0].partitions]
    assert joined == [b"firstsecondthird", b"", b"firstsecondthird"]


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (RequestHeader(12, 0, 1), MetadataResponse(brokers=(), topics=())),
        (RequestHeader(12, 0, 1), HeartbeatResponse(error_code=40_000)),
        (
            RequestHeader(3, 1, 1),
            MetadataResponse(
                brokers=(),
                topics=(MetadataResponseTopic(error_code=0, name=None, partitions=()),),
            ),
        ),
        (
            RequestHeader(3, 12, 1),
            MetadataResponse(
                brokers=(),
                topics=(
                    MetadataResponseTopic(error_code=0, name="t", topic_id=b"short", partitions=()),
                ),
            ),
        ),
    ],
    ids=["another class", "number too large", "null name", "short uuid"],
)
def test_what_does_not_fit_is_not_sent(header: RequestHeader, body: Any) -> None:
    """U7: a body that does not fit its version is refused by name."""
    with pytest.raises(InvalidInput, match=r"Heartbeat|MetadataResponse v"):
        encode_response(header, body)


def test_error_codes_are_numbers_on_the_wire() -> None:
    """K1: handlers set error codes by name."""
    header = RequestHeader(int(ApiKey.HEARTBEAT), 0, 1)
    (buffer,) = encode_response(header, HeartbeatResponse(error_code=ErrorCode.NOT_COORDINATOR))
    assert bytes(buffer)[-2:] == b"\0\x10"
