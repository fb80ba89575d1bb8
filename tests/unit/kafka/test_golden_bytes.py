"""Frames written by hand from the protocol's description."""

from dovetail.kafka.codec.frames import decode_request, encode_request, encode_response
from dovetail.kafka.codec.headers import RequestHeader
from dovetail.kafka.codec.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApi,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)

TOPIC_ID = bytes(range(16))


def from_hex(*parts: str) -> bytes:
    """Bytes from hexadecimal; what is between apostrophes is text."""
    made = b""
    for part in parts:
        for index, piece in enumerate(part.split("'")):
            made += piece.encode() if index % 2 else bytes.fromhex(piece)
    return made


def framed(body: bytes) -> bytes:
    """The body with its length in front."""
    return len(body).to_bytes(4, "big") + body


def check_request(header: RequestHeader, body: object, golden: bytes) -> None:
    """Encoding gives the golden bytes, decoding them gives the request."""
    assert b"".join(encode_request(header, body)) == framed(golden)
    request = decode_request(memoryview(golden))
    assert (request.header, request.body) == (header, body)


def check_response(header: RequestHeader, body: object, golden: bytes) -> None:
    """Encoding gives the golden bytes."""
    assert b"".join(encode_response(header, body)) == framed(golden)


def test_api_versions_0() -> None:
    """K1: ApiVersions 0 is a bare header, answered by a plain array."""
    header = RequestHeader(18, 0, 1, "abc")
    check_request(header, ApiVersionsRequest(), from_hex("0012 0000 00000001 0003 'abc'"))
    response = ApiVersionsResponse(
        error_code=0,
        api_keys=(ApiVersionsResponseApi(api_key=18, min_version=0, max_version=4),),
    )
    golden = from_hex("00000001 0000 00000001 0012 0000 0004")
    check_response(header, response, golden)


def test_api_versions_3() -> None:
    """K1: ApiVersions 3 is flexible, yet its response header has no tags."""
    header = RequestHeader(18, 3, 7, "abc")
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
    check_request(
        header, request, from_hex("0012 0003 00000007 0003 'abc' 00", "05 'test' 04 '1.0' 00")
    )
    response = ApiVersionsResponse(
        error_code=0,
        api_keys=(
            ApiVersionsResponseApi(api_key=0, min_version=0, max_version=11),
            ApiVersionsResponseApi(api_key=18, min_version=0, max_version=4),
        ),
        throttle_time_ms=5,
        finalized_features_epoch=9,
    )
    golden = from_hex(
        "00000007",
        "0000 03 0000 0000 000b 00 0012 0000 0004 00",
        "00000005 01 01 08 0000000000000009",
    )
    check_response(header, response, golden)


def test_metadata_1() -> None:
    """K1: Metadata 1 asks by name, or for all with a null array."""
    header = RequestHeader(3, 1, 2)
    everything = from_hex("0003 0001 00000002 ffff ffffffff")
    check_request(header, MetadataRequest(topics=None), everything)
    one = from_hex("0003 0001 00000002 ffff 00000001 0001 't'")
    check_request(header, MetadataRequest(topics=(MetadataRequestTopic(name="t"),)), one)
    check_response(
        header,
        cluster(),
        from_hex(
            "00000002",
            "00000001 00000001 0004 'host' 00002384 ffff",
            "00000001",
            "00000001 0000 0001 't' 00",
            "00000001 0000 00000000 00000001 00000001 00000001 00000002 00000002 00000001",
        ),
    )


def test_metadata_12() -> None:
    """K1: Metadata 12 is flexible, with topic ids and leader epochs."""
    header = RequestHeader(3, 12, 2, "")
    request = MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=TOPIC_ID, name=None),),
        allow_auto_topic_creation=False,
    )
    topic_id = TOPIC_ID.hex()
    golden = from_hex("0003 000c 00000002 0000 00", f"02 {topic_id} 00 00 00 00 00")
    check_request(header, request, golden)
    check_response(
        header,
        cluster(),
        from_hex(
            "00000002 00",
            "00000000 02 00000001 05 'host' 00002384 00 00",
            "05 'prod' 00000001",
            f"02 0000 02 't' {topic_id} 00",
            "02 0000 00000000 00000001 00000003 02 00000001 03 00000002 00000001 02 00000002 00",
            "80000000 00",
            "00",
        ),
    )


def cluster() -> MetadataResponse:
    """One broker, one topic, one partition."""
    return MetadataResponse(
        brokers=(MetadataResponseBroker(node_id=1, host="host", port=9092),),
        cluster_id="prod",
        controller_id=1,
        topics=(
            MetadataResponseTopic(
                error_code=0,
                name="t",
                topic_id=TOPIC_ID,
                partitions=(
                    MetadataResponsePartition(
                        error_code=0,
                        partition_index=0,
                        leader_id=1,
                        leader_epoch=3,
                        replica_nodes=(1,),
                        isr_nodes=(2, 1),
                        offline_replicas=(2,),
                    ),
                ),
            ),
        ),
    )


def test_produce_9() -> None:
    """K1: Produce 9 is flexible; K2: its batch is a slice of the frame, not a copy."""
    header = RequestHeader(0, 9, 3, "p")
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=(
            ProduceRequestTopic(
                name="t",
                partition_data=(
                    ProduceRequestPartition(index=1, records=memoryview(b"batch")),
                    ProduceRequestPartition(index=2, records=None),
                ),
            ),
        ),
    )
    golden = from_hex(
        "0000 0009 00000003 0001 'p' 00",
        "00 ffff 00007530 02 02 't' 03 00000001 06 'batch' 00 00000002 00 00 00 00",
    )
    check_request(header, request, golden)
    response = ProduceResponse(
        responses=(
            ProduceResponseTopic(
                name="t",
                partition_responses=(
                    ProduceResponsePartition(
                        index=1, error_code=0, base_offset=42, log_start_offset=0
                    ),
                ),
            ),
        )
    )
    check_response(
        header,
        response,
        from_hex(
            "00000003 00",
            "02 02 't' 02 00000001 0000 000000000000002a ffffffffffffffff 0000000000000000",
            "01 00 00 00",
            "00000000 00",
        ),
    )
