"""What a client that has not logged in can make the node do: next to nothing."""

from typing import Any, cast

import pytest

from dovetail.access import Authenticator
from dovetail.errors import ProtocolViolation
from dovetail.kafka.codec.apis import ApiKey
from dovetail.kafka.codec.headers import RequestHeader, encode_header
from dovetail.kafka.handlers import KafkaDispatch, front
from dovetail.kafka.handlers.backend import Backend
from dovetail.wire import Connection


class _Nobody:
    """An authenticator that knows nobody."""

    mechanisms = ("SCRAM-SHA-512",)

    def access_of(self, connection: object) -> None:
        return None


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (ApiKey.METADATA, 9),
        (ApiKey.PRODUCE, 9),
        (ApiKey.PRODUCE, 2),
        (ApiKey.FETCH, 11),
        (ApiKey.CREATE_TOPICS, 5),
    ],
)
def test_no_body_is_decoded(monkeypatch: pytest.MonkeyPatch, key: ApiKey, version: int) -> None:
    """F40: a request of a stranger is refused by its header alone."""

    def decode(*_: Any) -> None:
        raise AssertionError("the body was decoded")

    monkeypatch.setattr(front, "decode_body", decode)
    monkeypatch.setattr(front, "refuse", decode)
    dispatch = KafkaDispatch(cast(Backend, None), cast(Authenticator, _Nobody()))
    frame = encode_header(RequestHeader(key, version, 1, "stranger")) + bytes(1000)
    with pytest.raises(ProtocolViolation, match="log in first"):
        dispatch(cast(Connection, None), memoryview(frame))
