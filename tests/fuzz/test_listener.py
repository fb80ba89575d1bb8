"""Requests that nobody meant, sent to a real node.

Hypothesis prints the failing example and how to replay it. `FUZZ_CASES` sets how many are tried.
"""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.hostile_client import (
    FUZZ_CASES,
    KNOWN,
    PREY,
    REQUEST_ERRORS,
    VIOLATIONS,
    Caller,
    Watch,
    batch,
    fetch_request,
    framed,
    produce_request,
)

from dovetail.kafka.codec import messages as m
from dovetail.kafka.codec.apis import SUPPORTED, Api, ApiKey
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import decode_response, encode_request
from dovetail.kafka.codec.headers import RequestHeader, encode_header
from dovetail.kafka.codec.schema import FieldSpec, Primitive, specs_of

_RANDOM = settings(
    max_examples=FUZZ_CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)

#: How long a single random request may keep the test waiting; long polls may take longer.
_PATIENCE_S = 0.25

_SENTINEL_ID = 0x5EA1
_SENTINEL = b"".join(
    encode_request(
        RequestHeader(ApiKey.API_VERSIONS, 0, _SENTINEL_ID, "sentinel"), m.ApiVersionsRequest()
    )
)

_VERSIONS = [
    (api, version)
    for api in SUPPORTED.values()
    for version in range(api.advertised_lowest, api.highest + 1)
]


def throw(watch: Watch, data: bytes) -> None:
    """Sends the bytes and a good request behind them, and waits for its answer or the end."""
    with Caller(watch.node, timeout_s=_PATIENCE_S) as caller:
        caller.send(data + _SENTINEL)
        try:
            while (frame := caller.read_frame()) is not None:
                if frame[:4] == _SENTINEL_ID.to_bytes(4, "big"):
                    return
        except TimeoutError:
            return


# Valid requests of every kind, about a topic that may come to harm


def filled(message: type[Any], version: int) -> Any:
    """A message that means something: about the prey, with short times."""
    present = [spec for spec in specs_of(message) if spec.in_version(version)]
    return message(**{spec.name: _filled_field(spec, version) for spec in present})


def _filled_field(spec: FieldSpec, version: int) -> Any:
    if not isinstance(spec.element, Primitive):
        value = filled(spec.element, version)
    else:
        value = _filled_primitive(spec.name, spec.element.name)
    if spec.name == "transactional_id" and spec.null_in(version):
        return None
    return (value,) if spec.array else value


def _filled_primitive(name: str, kind: str) -> Any:
    if kind == "string":
        return "retention.ms" if name == "configuration_keys" else PREY
    if kind in ("bytes", "records"):
        data = batch()
        return memoryview(data) if kind == "records" else data
    if kind == "uuid":
        return bytes(16)
    if kind == "bool":
        return False
    if name in ("current_leader_epoch", "generation_id", "replica_id", "acks"):
        return -1
    if name in ("resource_type", "num_partitions", "count"):
        return 2
    if name in ("partition_max_bytes", "max_bytes"):
        return 1 << 20
    return 6000 if name == "session_timeout_ms" else 20 if name.endswith("_ms") else 0


def request_of(api: Api, version: int, *, acks: int = -1) -> bytes:
    """A whole valid request without its length."""
    body = filled(api.request, version)
    if api.key == ApiKey.PRODUCE:
        body = produce_request(PREY, batch(), acks=acks)
    return b"".join(encode_request(RequestHeader(api.key, version, 7, "tester"), body))[4:]


@pytest.mark.parametrize(
    ("api", "version"), _VERSIONS, ids=lambda case: getattr(case, "name", case)
)
def test_every_valid_request_is_answered(watch: Watch, api: Api, version: int) -> None:
    """K1: a request of every kind and version gets an answer of its own version."""
    header = RequestHeader(api.key, version, 7, "tester")
    with Caller(watch.node) as caller:
        caller.send(framed(request_of(api, version)))
        frame = caller.read_frame()
        assert frame is not None
        decode_response(header, memoryview(frame))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid request with some of its bytes changed, put in or taken out."""
    api, version = draw(st.sampled_from(_VERSIONS))
    made = bytearray(request_of(api, version, acks=draw(st.sampled_from([-1, 0, 1]))))
    telling = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF])
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(4, len(made) - 1))  # Behind the api key and the version.
        action = draw(st.sampled_from(["change", "insert", "remove", "overwrite", "cut"]))
        if action == "change":
            made[place] = draw(telling | st.integers(0, 255))
        elif action == "insert":
            made.insert(place, draw(telling))
        elif action == "overwrite":
            numbers = [b"\x7f\xff\xff\xff", b"\xff" * 4, b"\x80\0\0\0", b"\0" * 4]
            made[place : place + 4] = draw(st.sampled_from(numbers))
        elif action == "cut" and place > 8:
            del made[place:]
        elif len(made) > 9:
            del made[place]
    return bytes(made)


def test_damaged_requests(watch: Watch) -> None:
    """R3: whatever is changed in a valid request, it is an error, another request, or the end."""

    @_RANDOM
    @given(request=damaged())
    def attack(request: bytes) -> None:
        throw(watch, framed(request))

    with watch.undisturbed():
        attack()
    watch.settle()


def test_garbage_frames(watch: Watch) -> None:
    """R3: frames of random bytes cost their senders the connection."""

    @_RANDOM
    @given(frames=st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=5))
    def attack(frames: list[bytes]) -> None:
        throw(watch, b"".join(map(framed, frames)))

    with watch.undisturbed():
        attack()


def test_garbage_without_frames(watch: Watch) -> None:
    """R3: random bytes are no frames, or frames of garbage; either way nothing happens."""

    @_RANDOM
    @given(data=st.binary(min_size=4, max_size=300))
    def attack(data: bytes) -> None:
        throw(watch, data)

    with watch.undisturbed():
        attack()


def test_random_bodies(watch: Watch) -> None:
    """R3: a good header does not make a random body dangerous."""

    @_RANDOM
    @given(case=st.sampled_from(_VERSIONS), body=st.binary(max_size=60))
    def attack(case: tuple[Api, int], body: bytes) -> None:
        api, version = case
        throw(watch, framed(encode_header(RequestHeader(api.key, version, 1, "tester")) + body))

    with watch.undisturbed():
        attack()


def test_wrong_lengths(watch: Watch) -> None:
    """R3: a length that is no length closes the connection before memory is taken."""
    with watch.undisturbed(rss_growth_max=8 << 20):
        for length in (0, -1, -(2**31), 100 * 2**20 + 1, 2**31 - 1):
            for _ in range(20):
                with Caller(watch.node) as caller:
                    caller.send(length.to_bytes(4, "big", signed=True))
                    assert caller.closed_by_node()


def test_announced_and_not_sent(watch: Watch) -> None:
    """R3: frames of 100 MiB that are announced and never come cost no memory, and end in time."""
    announcing = [Caller(watch.node) for _ in range(6)]
    with watch.undisturbed(rss_growth_max=16 << 20):
        for caller in announcing:
            caller.send((100 << 20).to_bytes(4, "big"))
        watch.serve_well()
        for caller in announcing:
            assert caller.closed_by_node()
            caller.close()


def test_unknown_requests(watch: Watch) -> None:
    """R3: request types that are not there close the connection, and make no series."""
    keys = [key for key in range(-300, 700) if key not in SUPPORTED]
    with watch.undisturbed():
        series = watch.series_count()
        for key in keys:
            with Caller(watch.node) as caller:
                caller.send(framed(encode_header(RequestHeader(key, 0, 1, "stranger"))))
                assert caller.closed_by_node()
        assert watch.series_count() <= series + 5


def test_unknown_versions(watch: Watch) -> None:
    """R3, K5: an unknown version is refused with a word where there is one, else by the end."""
    with watch.undisturbed():
        for api in SUPPORTED.values():
            for version in (-1, api.lowest - 1, api.highest + 1, 2**15 - 1):
                if api.decodes(version):
                    continue
                with Caller(watch.node) as caller:
                    caller.send(framed(encode_header(RequestHeader(api.key, version, 1, "x"))))
                    frame = caller.read_frame()
                if api.key == ApiKey.API_VERSIONS:
                    assert frame is not None
                    header = RequestHeader(api.key, 0, 1)
                    answer = decode_response(header, memoryview(frame))
                    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
                else:
                    assert frame is None


def test_old_produce_is_told_so(watch: Watch) -> None:
    """K5: Produce below what is answered gets an error for its partition, in its own version."""
    with watch.undisturbed(counter=REQUEST_ERRORS):
        for version in range(3):
            with Caller(watch.node) as caller:
                answer = caller.ask(ApiKey.PRODUCE, version, produce_request(KNOWN, batch()))
                outcome = answer.responses[0].partition_responses[0]
                assert outcome.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_wrong_counts(watch: Watch) -> None:
    """R3: counts that are negative, or more than the frame can hold, are refused unbelieved."""
    with watch.undisturbed(rss_growth_max=8 << 20):
        for count in (-2, -(2**31), 2**31 - 1, 1 << 20):
            for key in (ApiKey.METADATA, ApiKey.DELETE_TOPICS, ApiKey.DESCRIBE_GROUPS):
                version = max(SUPPORTED[key].lowest, 1)
                head = encode_header(RequestHeader(key, version, 1, "x"))
                with Caller(watch.node) as caller:
                    caller.send(framed(head + count.to_bytes(4, "big", signed=True) + b"\0"))
                    assert caller.closed_by_node()


def test_truncated_requests(watch: Watch) -> None:
    """R3: a request that stops anywhere is refused; it is never half done."""
    chooser = random.Random(7)
    with watch.undisturbed():
        for api, version in _VERSIONS:
            whole = request_of(api, version)
            for _ in range(3):
                throw(watch, framed(whole[: chooser.randrange(1, len(whole))]))


def test_extreme_fetches(watch: Watch) -> None:
    """R3: no limits, offsets or partitions of a Fetch are taken at their word."""
    extremes = [-(2**31), -1, 0, 1, 2**31 - 1]
    with watch.undisturbed(counter=REQUEST_ERRORS), Caller(watch.node) as caller:
        for number in extremes:
            for request in (
                fetch_request(KNOWN, 0, 0, max_bytes=number),
                fetch_request(KNOWN, 0, 0, max_wait_ms=min(number, 10), min_bytes=number),
                fetch_request(KNOWN, number, 0),
                fetch_request(KNOWN, 0, number),
                fetch_request(KNOWN, 0, 0, session_id=number, session_epoch=number),
            ):
                answer = caller.ask(ApiKey.FETCH, 11, request)
                # A session that nobody has opened gets its own error, and no partition.
                assert answer.error_code or len(answer.responses[0].partitions) == 1


def repeated_requests() -> list[tuple[str, ApiKey, int, Any]]:
    """Small requests whose answers would be enormous if each repetition were answered."""
    count = 100_000
    topic = m.MetadataRequestTopic(name=KNOWN)
    node = m.DescribeConfigsRequestResource(
        resource_type=4, resource_name="1", configuration_keys=None
    )
    group = m.OffsetFetchRequestGroup(group_id="nobody", topics=None)
    return [
        ("topics", ApiKey.METADATA, 9, m.MetadataRequest(topics=(topic,) * count)),
        (
            "settings",
            ApiKey.DESCRIBE_CONFIGS,
            1,
            m.DescribeConfigsRequest(resources=(node,) * count),
        ),
        ("groups", ApiKey.DESCRIBE_GROUPS, 0, m.DescribeGroupsRequest(groups=("x",) * count)),
        (
            "positions",
            ApiKey.OFFSET_FETCH,
            8,
            m.OffsetFetchRequest(groups=(group,) * count),
        ),
    ]


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [case[1:] for case in repeated_requests()],
    ids=[case[0] for case in repeated_requests()],
)
def test_repetition_is_answered_once(watch: Watch, key: ApiKey, version: int, body: Any) -> None:
    """R3: naming one thing a hundred thousand times does not make a hundred thousand answers."""
    with Caller(watch.node) as caller:
        header = RequestHeader(key, version, 1, "parrot")
        caller.send(b"".join(encode_request(header, body)))
        frame = caller.read_frame()
        assert frame is not None
        assert len(frame) < 64 * 1024


def test_violations_are_told(watch: Watch) -> None:
    """U7: the log says what was wrong, with the values."""
    with watch.undisturbed(counter=VIOLATIONS), Caller(watch.node) as caller:
        caller.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert caller.closed_by_node()
    assert "this looks like HTTP" in watch.node.log()
