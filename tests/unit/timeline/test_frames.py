"""Frames of timelines: what comes in is checked, what goes out comes back."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import errors
from dovetail.errors import DovetailError, ProtocolViolation, Throttled, Unavailable
from dovetail.timeline import frames
from dovetail.timeline.config import TimelineConfig
from dovetail.timeline.dispatch import ROUTES
from dovetail.timeline.frames import CALLS
from dovetail.timeline.message import BatchId, Handle, MessageId, NewMessage, Version
from dovetail.wire.calls import (
    HELLO_KEY,
    TIMELINE_KEYS,
    VERSION,
    Failure,
    Request,
    Welcome,
    answer_hello,
    api_key_of,
    decode_answer,
    encode_answer,
    encode_request,
    error_of,
    failure_of,
)

keys = st.sampled_from(sorted(CALLS.requests))
SAMPLES = [
    frames.Create("t", TimelineConfig(buckets=7)),
    frames.Open("t", "me", "rack", 30_000),
    frames.Insert(1, [NewMessage(5, b"x", b"h", "k", 3)], BatchId(1, 2)),
    frames.Consume(1, 10, 1_000),
    frames.Delete(1, [Handle(MessageId(1), Version(2))]),
    frames.PutSchedule("t", "n", b"b", cron="* * * * *"),
]


def frame_of(key: int, body: bytes, *, version: int = VERSION, client: bytes = b"c") -> memoryview:
    head = struct.pack("!hhih", key, version, 7, len(client))
    return memoryview(head + client + body)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_request_comes_back_as_it_was(message: Request) -> None:
    """B6: with its key, correlation id and client."""
    (body,) = encode_request(message)
    frame = frame_of(CALLS.key(type(message)), bytes(body))
    assert api_key_of(frame) in TIMELINE_KEYS
    asked = CALLS.decode(frame)
    assert (asked.message, asked.correlation_id, asked.client_id) == (message, 7, "c")


@given(keys, st.binary(max_size=200))
def test_garbage_is_a_violation_and_nothing_else(key: int, body: bytes) -> None:
    """B18, R3: whatever the bytes are."""
    try:
        CALLS.decode(frame_of(key, body))
    except ProtocolViolation:
        pass


@given(st.sampled_from(SAMPLES), st.data())
def test_a_damaged_request_is_a_violation_or_another_request(
    message: Request, data: st.DataObject
) -> None:
    """B18, R3: any byte changed, any length cut."""
    body = bytearray(bytes(encode_request(message)[0]))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    try:
        CALLS.decode(frame_of(CALLS.key(type(message)), bytes(body[:cut])))
    except ProtocolViolation:
        pass


def test_what_is_out_of_bounds_does_not_come_in() -> None:
    """B18: names, limits, times, numbers; unknown keys and versions; headers that do not fit."""
    bad = [
        frames.Open("no good name", "me"),
        frames.Open("t", ""),
        frames.Consume(1, 10_001, 0),
        frames.Consume(1, 0, 0),
        frames.Consume(0, 1, 0),
        frames.Consume(1, 1, 30_001),
        frames.Insert(1, [NewMessage(-1, b"")]),
        frames.Insert(1, [NewMessage(2**60, b"")]),
        frames.Insert(1, [NewMessage(1, b"", b"", "k" * 256)]),
        frames.Insert(1, [NewMessage(1, b"", b"", None, 10)]),
        frames.Delete(1, [Handle(MessageId(-1), Version(0))]),
    ]
    for message in bad:
        with pytest.raises(ProtocolViolation):
            CALLS.decode(frame_of(CALLS.key(type(message)), bytes(encode_request(message)[0])))
    with pytest.raises(ProtocolViolation, match="is unknown"):
        CALLS.decode(frame_of(11_999, b""))
    with pytest.raises(ProtocolViolation, match="this node speaks 3"):
        CALLS.decode(frame_of(11_008, b"", version=2))
    with pytest.raises(ProtocolViolation, match="no header"):
        CALLS.decode(memoryview(b"abc"))
    with pytest.raises(ProtocolViolation, match="does not fit"):
        CALLS.decode(memoryview(struct.pack("!hhih", 11_008, VERSION, 7, 1_000)))
    assert api_key_of(frame_of(10_001, b"")) not in TIMELINE_KEYS
    assert api_key_of(frame_of(3, b"")) not in TIMELINE_KEYS


def test_hello_is_answered_whatever_version_asks() -> None:
    """B6: both sides find out that they differ; a newer one may say more."""
    body = msgspec.msgpack.encode([9, "more"])
    frame = frame_of(HELLO_KEY, len(body).to_bytes(4, "big") + body, version=9)
    (answer,) = answer_hello(frame, node="n", now_ms=5, services=["timelines"])
    found = decode_answer(Welcome, memoryview(answer)[8:])
    assert found == Welcome(VERSION, "n", 5, ["timelines"])


def test_every_request_has_a_route() -> None:
    """R4: with its permission and its handler, in the one table."""
    assert set(ROUTES) == set(CALLS.requests.values())
    assert len({route.name for route in ROUTES.values()}) == len(ROUTES)


def test_answers_and_errors_come_back_as_they_were() -> None:
    """B6: an error is raised again as the same class; one that is not known is `Unavailable`."""
    (answer,) = encode_answer(7, frames.Opened(5, TimelineConfig()))
    assert decode_answer(frames.Opened, memoryview(answer)[8:]) == frames.Opened(
        5, TimelineConfig()
    )
    (failed,) = encode_answer(7, failure_of(Throttled("slowly")))
    error = decode_answer(frames.Opened, memoryview(failed)[8:])
    assert isinstance(error, Throttled)
    assert str(error) == "slowly"
    unknown = error_of(Failure("NewlyMade", "text"))
    assert type(unknown) is Unavailable
    assert "NewlyMade: text" in str(unknown)
    for found in vars(errors).values():
        if isinstance(found, type) and issubclass(found, DovetailError):
            assert type(error_of(failure_of(found("x")))) is found
    with pytest.raises(ProtocolViolation):
        decode_answer(frames.Opened, memoryview(b"garbage"))
