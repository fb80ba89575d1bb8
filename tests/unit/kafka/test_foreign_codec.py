"""Our bytes against those of an independent implementation, kafka-python's protocol classes."""

import importlib
import warnings
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.unit.kafka.message_strategies import (
    all_versions,
    header_of,
    is_own,
    messages,
    unframed,
    version_name,
)

from dovetail.kafka.codec.apis import Api
from dovetail.kafka.codec.error_codes import ErrorCode
from dovetail.kafka.codec.frames import encode_request, encode_response
from dovetail.kafka.codec.headers import RequestHeader, encode_header, encode_response_header
from dovetail.kafka.codec.schema import UUID, FieldSpec, Primitive, specs_of

_MODULES = (
    "admin.acl",
    "admin.client_quotas",
    "admin.cluster",
    "admin.configs",
    "admin.groups",
    "admin.topics",
    "admin.transactions",
    "admin.users",
    "consumer.fetch",
    "consumer.group",
    "consumer.offsets",
    "metadata.api_versions",
    "metadata.find_coordinator",
    "metadata.metadata",
    "producer.produce",
    "producer.transaction",
    "sasl",
)

#: Without shrinking: the messages are small, and one mistake fails in many versions at once.
_QUICK = settings(
    phases=[Phase.generate],
    max_examples=4,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _foreign_classes() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # It reads its schemas the old way.
        modules = [importlib.import_module(f"kafka.protocol.{name}") for name in _MODULES]
    return {name: kind for module in modules for name, kind in vars(module).items()}


_FOREIGN = _foreign_classes()

#: What kafka-python does not speak: Java's and librdkafka's clients do, in tests/compat.
_NOT_THERE = {"ConsumerGroupDescribe", "ConsumerGroupHeartbeat"}
_VERSIONS = [
    (api, version)
    for api, version in all_versions()
    if api.name not in _NOT_THERE and "Share" not in api.name
]


def test_all_others_are_there() -> None:
    """K1: each request is compared, but for those that the other side does not know."""
    known = {api.name for api, _ in all_versions() if api.request.__name__ in _FOREIGN}
    assert known == {api.name for api, _ in _VERSIONS}


def assert_same(ours: Any, theirs: Any, version: int) -> None:
    """Every field that the version has is equal, name by name."""
    for spec in specs_of(type(ours)):
        if is_own(spec):
            continue
        if not spec.in_version(version) or spec.name.endswith("authorized_operations"):
            continue  # Operations become a set of names there; the bytes are compared instead.
        assert_field_same(spec, getattr(ours, spec.name), getattr(theirs, spec.name), version)


def assert_field_same(spec: FieldSpec, ours: Any, theirs: Any, version: int) -> None:
    """One field is equal; a tagged struct that was left out is None there."""
    if theirs is None and spec.tag is not None:
        assert ours in (None, spec.default), spec.name
    elif ours is None or theirs is None:
        assert ours is theirs, spec.name
    elif not isinstance(spec.element, Primitive):
        our_items = ours if spec.array else (ours,)
        their_items = theirs if spec.array else (theirs,)
        for our_item, their_item in zip(our_items, their_items, strict=True):
            assert_same(our_item, their_item, version)
    elif spec.element.name == "records list":
        assert b"".join(ours) == theirs, spec.name
    elif spec.element is UUID:
        assert ours == theirs.bytes, spec.name
    else:
        assert (list(ours) if spec.array else ours) == theirs, spec.name


def assert_agreed(body: Any, frame: memoryview, header_size: int, version: int) -> None:
    """The other side reads the same values, and writes the same bytes."""
    encoded = bytes(frame[header_size:])
    theirs = _FOREIGN[type(body).__name__].decode(encoded, version=version)
    assert_same(body, theirs, version)
    theirs._header = None
    assert bytes(theirs.encode()) == encoded


@pytest.mark.parametrize(("api", "version"), _VERSIONS, ids=version_name)
@_QUICK
@given(data=st.data())
def test_requests_agree(api: Api, version: int, data: st.DataObject) -> None:
    """K1: a foreign client reads and writes the same request, field by field, byte by byte."""
    header = header_of(api, version)
    body = data.draw(messages(api.request, version))
    frame = unframed(encode_request(header, body))
    assert_agreed(body, frame, len(encode_header(header)), version)


@pytest.mark.parametrize(("api", "version"), _VERSIONS, ids=version_name)
@_QUICK
@given(data=st.data())
def test_responses_agree(api: Api, version: int, data: st.DataObject) -> None:
    """K1: a foreign client reads and writes the same response, field by field, byte by byte."""
    header = header_of(api, version)
    body = data.draw(messages(api.response, version, own=False))
    if api.name == "ApiVersions":
        body = replace(body, error_code=0)  # It reads any error as version 0.
    frame = unframed(encode_response(header, body))
    assert_agreed(body, frame, len(encode_response_header(header)), version)


@pytest.mark.parametrize(("api", "version"), _VERSIONS, ids=version_name)
def test_headers_agree(api: Api, version: int) -> None:
    """K1: a foreign client reads our response header and we write its request header."""
    header = RequestHeader(int(api.key), version, 77, "tester")
    theirs = _FOREIGN[api.request.__name__][version]()
    theirs.with_header(correlation_id=77, client_id="tester")
    flexible = theirs.flexible_version_q(version)
    assert bytes(theirs.encode_header(flexible=flexible)) == encode_header(header)
    response_class = _FOREIGN[api.response.__name__]
    if api.name == "ApiVersions":
        flexible = False
    response_header = response_class.header_class(correlation_id=77)
    assert bytes(response_header.encode(flexible=flexible)) == encode_response_header(header)


#: Codes that kafka-python calls by an older or shorter name.
_OLD_NAMES = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
}


def test_error_codes_agree() -> None:
    """K1: our error codes carry the numbers and names that a foreign client knows."""
    kinds: list[Any] = list(vars(importlib.import_module("kafka.errors")).values())
    known = {kind.errno: kind.message for kind in kinds if getattr(kind, "errno", None) is not None}
    assert len(known) > 100
    assert set(known) <= set(ErrorCode)
    for number in set(known) - _OLD_NAMES:
        assert ErrorCode(number).name == known[number]
