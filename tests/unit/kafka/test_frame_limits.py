"""No frame raises anything but ProtocolViolation, and none takes memory that it did not bring."""

import tracemalloc

import pytest
from tests.unit.kafka.message_strategies import (
    all_versions,
    header_of,
    sample,
    unframed,
    version_name,
)

from dovetail.errors import ProtocolViolation
from dovetail.kafka.codec import frames
from dovetail.kafka.codec.apis import Api, ApiKey
from dovetail.kafka.codec.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from dovetail.kafka.codec.headers import (
    RequestHeader,
    correlation_id_of,
    decode_header,
    encode_header,
)
from dovetail.kafka.codec.messages import (
    CreatePartitionsRequest,
    HeartbeatRequest,
    ProduceRequest,
)

#: What a refusal may take: an exception, its text and its traceback.
REFUSAL_BYTES_MAX = 32 * 1024


def frame_of(api_key: ApiKey, version: int, body: str) -> memoryview:
    """A request with a body in hexadecimal."""
    header = encode_header(RequestHeader(int(api_key), version, 1, "c"))
    return memoryview(header + bytes.fromhex(body))


@pytest.mark.parametrize(("api", "version"), all_versions(), ids=version_name)
def test_every_cut_is_refused(api: Api, version: int) -> None:
    """R3: a request or response that ends early is refused, wherever it ends."""
    header = header_of(api, version)
    request = unframed(encode_request(header, sample(api.request, version)))
    response = unframed(encode_response(header, sample(api.response, version)))
    for end in range(len(request)):
        with pytest.raises(ProtocolViolation):
            decode_request(request[:end])
    for end in range(len(response)):
        with pytest.raises(ProtocolViolation):
            decode_response(header, response[:end])


@pytest.mark.parametrize(("api", "version"), all_versions(), ids=version_name)
def test_trailing_bytes_are_passed_over(api: Api, version: int) -> None:
    """K1: bytes after the body change nothing; librdkafka sends some, and Kafka skips them."""
    header = header_of(api, version)
    frame = bytes(unframed(encode_request(header, sample(api.request, version))))
    assert decode_request(memoryview(frame + b"\1\0\0")) == decode_request(memoryview(frame))


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        pytest.param(ApiKey.METADATA, 1, "7fffffff", id="array"),
        pytest.param(ApiKey.METADATA, 9, "ffffffff0f", id="compact array"),
        pytest.param(ApiKey.METADATA, 9, "00 00 00 00 ffffffff0f", id="tags"),
        pytest.param(ApiKey.METADATA, 9, "00 00 00 00 01 7f ffffffff0f", id="tag size"),
        pytest.param(ApiKey.DELETE_TOPICS, 3, "7fffffff", id="array of strings"),
        pytest.param(ApiKey.OFFSET_FETCH, 5, "0001 67 00000001 0001 74 7fffffff", id="integers"),
        pytest.param(ApiKey.PRODUCE, 3, "ffff ffff 00000000 7fffffff", id="topics"),
        pytest.param(
            ApiKey.PRODUCE,
            3,
            "ffff ffff 00000000 00000001 0000 00000001 00000000 7fffffff",
            id="records",
        ),
        pytest.param(
            ApiKey.PRODUCE, 9, "00 ffff 00000000 02 01 02 00000000 ffffffff0f", id="compact records"
        ),
        pytest.param(ApiKey.SYNC_GROUP, 0, "0000 00000000 0000 00000001 0000 7fffffff", id="bytes"),
    ],
)
def test_large_counts_take_no_memory(api_key: ApiKey, version: int, body: str) -> None:
    """R3: a count or length is compared with what remains before memory is taken for it."""
    frame = frame_of(api_key, version, body)
    with pytest.raises(ProtocolViolation, match="bytes remain"):
        decode_request(frame)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation, match="bytes remain"):
            decode_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < REFUSAL_BYTES_MAX


def test_densest_request_takes_a_small_multiple() -> None:
    """R3: the smallest structs there are, two bytes each, take under 40 times their bytes."""
    count = 99_999
    body = b"\x02\x02t\0\0\0\1" + b"\xa0\x8d\x06" + b"\x01\x00" * count + b"\0\0\0\0\0\0\0"
    header = encode_header(RequestHeader(int(ApiKey.CREATE_PARTITIONS), 2, 1, "c"))
    frame = memoryview(header + body)
    tracemalloc.start()
    try:
        request = decode_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(request.body, CreatePartitionsRequest)
    assert len(request.body.topics[0].assignments or ()) == count
    assert peak < 40 * len(frame)


@pytest.mark.parametrize(
    ("api_key", "version", "body", "reason"),
    [
        pytest.param(ApiKey.METADATA, 0, "ffffffff", "count -1", id="null array in version 0"),
        pytest.param(ApiKey.METADATA, 1, "fffffffe", "count -2", id="count below null"),
        pytest.param(ApiKey.HEARTBEAT, 0, "ffff", "length -1|cut off", id="null string"),
        pytest.param(ApiKey.HEARTBEAT, 0, "fffe 00000000", "length -2", id="length below null"),
        pytest.param(ApiKey.HEARTBEAT, 4, "00 00000000 01 00 00", "length -1", id="compact null"),
        pytest.param(ApiKey.HEARTBEAT, 0, "0002 c328 00000000 0000", "garbled", id="no utf-8"),
        pytest.param(ApiKey.HEARTBEAT, 4, "ffffffff1f", "wider than 32", id="33-bit varint"),
        pytest.param(ApiKey.HEARTBEAT, 4, "808080808000", "wider than 32", id="endless varint"),
        pytest.param(ApiKey.HEARTBEAT, 4, "818002", "the most is", id="string of 32 KiB"),
        pytest.param(
            ApiKey.FETCH, 12,
            "ffffffff 00000000 00000000 00000000 00 00000000 00000000 01 01 01 01 00 03 02 61 62",
            "claims to be", id="tag longer than its value",
        ),
    ],
)  # fmt: skip
def test_defects_are_named(api_key: ApiKey, version: int, body: str, reason: str) -> None:
    """R3: null, negative, garbled and overlong values are refused with their values."""
    with pytest.raises(ProtocolViolation, match=reason):
        decode_request(frame_of(api_key, version, body))


def test_unknown_tags_are_skipped() -> None:
    """K1: tagged fields from the future, in header and body, do no harm."""
    header = bytes.fromhex("000c 0004 00000001 0001 63 01 05 02 ffff")
    body = bytes.fromhex("02 67 00000007 02 6d 00 02 00 00 fa01 03 010203")
    request = decode_request(memoryview(header + body))
    assert request.body == HeartbeatRequest(group_id="g", generation_id=7, member_id="m")


def test_known_tag_beside_unknown_ones() -> None:
    """K1: a tagged field is read wherever it stands among unknown ones."""
    plain = "ffffffff 00000000 00000001 00000002 00 00000000 00000000 01 01 01"
    tags = "03 00 03 03 61 62 07 00 09 01 ff"
    request = decode_request(frame_of(ApiKey.FETCH, 12, f"{plain} {tags}"))
    assert request.body.cluster_id == "ab"


@pytest.mark.parametrize("size", range(10))
def test_short_headers_are_refused(size: int) -> None:
    """R3: a frame that is shorter than a header is refused."""
    with pytest.raises(ProtocolViolation):
        decode_header(memoryview(bytes(10))[:size])


def test_header_of_an_unknown_request_is_read() -> None:
    """K5: the header of what is not supported can be read; its body is refused by name."""
    frame = memoryview(bytes.fromhex("0022 0000 00000009 0001 63 ffffff"))
    header, body_start = decode_header(frame)
    assert header == RequestHeader(34, 0, 9, "c")
    assert body_start == 11
    with pytest.raises(ProtocolViolation, match="api key 34 is not supported"):
        decode_request(frame)


def test_controlled_shutdown_0_has_no_client_id() -> None:
    """K1: the oldest request header ends after the correlation id."""
    frame = memoryview(bytes.fromhex("0007 0000 00000009 00000001"))
    assert decode_header(frame) == (RequestHeader(7, 0, 9), 8)
    assert encode_header(RequestHeader(7, 0, 9)) == bytes(frame[:8])


def test_response_to_another_request_is_refused() -> None:
    """K1: a response belongs to the request with its correlation id."""
    header = RequestHeader(12, 0, 5)
    frame = memoryview(bytes.fromhex("00000006 0000"))
    assert correlation_id_of(frame) == 6
    with pytest.raises(ProtocolViolation, match="correlation id 6, the request had 5"):
        decode_response(header, frame)


def test_records_are_slices_of_the_frame() -> None:
    """K2: decoding a batch copies nothing."""
    data = bytes(
        frame_of(ApiKey.PRODUCE, 9, "00 ffff 00000000 02 01 02 00000000 04 616263 00 00 00")
    )
    body = decode_request(memoryview(data)).body
    assert isinstance(body, ProduceRequest)
    records = body.topic_data[0].partition_data[0].records
    assert records is not None
    assert bytes(records) == b"abc"
    assert records.obj is data


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("api_key", [ApiKey.LIST_OFFSETS, ApiKey.PRODUCE, ApiKey.OFFSET_FETCH])
def test_a_request_names_so_much_and_no_more(
    api_key: ApiKey, over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7, R8: all its arrays together; one request of 8 MiB would hold up everybody for seconds."""
    monkeypatch.setattr(frames, "ELEMENTS_MAX", 20)
    head, element = {
        ApiKey.LIST_OFFSETS: ("ffffffff", "00000000 ffffffffffffffff"),
        ApiKey.PRODUCE: ("ffff 0001 00000000", "00000000 ffffffff"),
        ApiKey.OFFSET_FETCH: ("0001 67", "00000000"),
    }[api_key]
    topics = "".join(f"0001 74 {count:08x} {element * count}" for count in (8 + over, 8, 1))
    version = {ApiKey.LIST_OFFSETS: 1, ApiKey.PRODUCE: 3, ApiKey.OFFSET_FETCH: 1}[api_key]
    frame = frame_of(api_key, version, f"{head} 00000003 {topics}")
    for _ in range(2):  # The second has as much room as the first.
        if over:
            with pytest.raises(ProtocolViolation, match="more than one request may ask for"):
                decode_request(frame)
        else:
            decode_request(frame)


def test_a_flood_of_tags_is_refused() -> None:
    """R7: unknown tags do no harm, but are looked at one by one."""
    header = bytes.fromhex("000c 0004 00000001 0001 63")
    body = bytes.fromhex("00 02 67 00000007 02 6d 00")
    at_most, more = (bytes([count]) + bytes.fromhex("fa01 00") * count for count in (16, 17))
    decode_request(memoryview(header + body + at_most))
    for frame in (header + body + more, header + more + body):
        with pytest.raises(ProtocolViolation, match="has 17 tags, the most is 16"):
            decode_request(memoryview(frame))
