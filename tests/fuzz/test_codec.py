"""Frames that nobody meant: random bytes, random bodies, valid frames with damage.

Hypothesis prints the failing example and how to replay it.
"""

import tracemalloc
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.kafka.message_strategies import all_versions, header_of, sample, unframed

from dovetail.errors import ProtocolViolation
from dovetail.kafka.codec.apis import Api
from dovetail.kafka.codec.frames import (
    answers,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    refuse,
)
from dovetail.kafka.codec.headers import decode_header, encode_header, encode_response_header

#: The densest struct takes under 40 times its bytes; the rest is the frame itself and an error.
MEMORY_FACTOR_MAX = 40
MEMORY_BYTES_BASE = 64 * 1024

_CASES = all_versions()
_MANY = settings(
    max_examples=1500,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
#: Bytes that begin lengths and counts: small, null, large, or a varint that goes on.
_TELLING = st.sampled_from([0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF])
_BYTE = _TELLING | st.integers(0, 255)


@st.composite
def damaged(draw: st.DrawFn, frame: bytes) -> bytes:
    """The frame with one to four bytes changed, put in or taken out."""
    made = bytearray(frame)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(made) - 1))
        action = draw(st.sampled_from(["change", "insert", "remove", "overwrite"]))
        if action == "change":
            made[place] = draw(_BYTE)
        elif action == "insert":
            made.insert(place, draw(_BYTE))
        elif action == "remove" and len(made) > 1:
            del made[place]
        else:
            made[place : place + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 4]))
    return bytes(made)


def decoded_request(frame: bytes) -> Any:
    """The request, or None if it was refused; anything else raised fails the test."""
    try:
        return decode_request(memoryview(frame))
    except ProtocolViolation:
        return None


@_MANY
@given(frame=st.binary(max_size=64))
def test_random_frames(frame: bytes) -> None:
    """R3: random bytes are a request or a protocol violation, nothing else."""
    decoded_request(frame)
    try:
        header, body_start = decode_header(memoryview(frame))
        if not answers(header):
            refuse(header, memoryview(frame), body_start)
    except ProtocolViolation:
        pass


@_MANY
@given(case=st.sampled_from(_CASES), body=st.lists(_BYTE, max_size=48).map(bytes))
def test_random_bodies(case: tuple[Api, int], body: bytes) -> None:
    """R3: a good header does not make a random body dangerous, on either side."""
    header = header_of(*case)
    decoded_request(encode_header(header) + body)
    try:
        decode_response(header, memoryview(encode_response_header(header) + body))
    except ProtocolViolation:
        pass


@_MANY
@given(data=st.data())
def test_damaged_requests(data: st.DataObject) -> None:
    """R3: a damaged request is refused, or is another request that survives the wire."""
    api, version = data.draw(st.sampled_from(_CASES))
    whole = unframed(encode_request(header_of(api, version), sample(api.request, version)))
    request = decoded_request(data.draw(damaged(bytes(whole))))
    if request is not None:
        frame = unframed(encode_request(request.header, request.body))
        again = decode_request(frame)
        # Bytes, and not values: a float may be NaN, which equals nothing.
        assert unframed(encode_request(again.header, again.body)) == frame


@_MANY
@given(data=st.data())
def test_damaged_responses(data: st.DataObject) -> None:
    """R3: a damaged response is refused, or is another response that survives the wire."""
    api, version = data.draw(st.sampled_from(_CASES))
    header = header_of(api, version)
    whole = unframed(encode_response(header, sample(api.response, version)))
    try:
        body = decode_response(header, memoryview(data.draw(damaged(bytes(whole)))))
    except ProtocolViolation:
        return
    frame = unframed(encode_response(header, body))
    again = decode_response(header, frame)
    assert unframed(encode_response(header, again)) == frame


@settings(_MANY, max_examples=300)
@given(case=st.sampled_from(_CASES), fill=_TELLING, prefix=st.lists(_BYTE, max_size=12).map(bytes))
def test_memory_follows_the_frame(case: tuple[Api, int], fill: int, prefix: bytes) -> None:
    """R3: decoding takes a small multiple of the frame, whatever the counts in it say."""
    frame = encode_header(header_of(*case)) + prefix + bytes([fill]) * 4096
    decoded_request(frame)
    tracemalloc.start()
    try:
        decoded_request(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_BASE + MEMORY_FACTOR_MAX * len(frame)
