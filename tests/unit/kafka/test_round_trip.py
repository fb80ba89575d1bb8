"""What was encoded decodes to the same message, in every version."""

import importlib
import pkgutil
from dataclasses import is_dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.unit.kafka.message_strategies import (
    all_versions,
    header_of,
    messages,
    unframed,
    version_name,
)

from dovetail.kafka.codec import messages as declared
from dovetail.kafka.codec.apis import Api
from dovetail.kafka.codec.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

#: Without shrinking: the messages are small, and one mistake fails in many versions at once.
_QUICK = settings(
    phases=[Phase.generate],
    max_examples=6,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize(("api", "version"), all_versions(), ids=version_name)
@_QUICK
@given(data=st.data())
def test_request_survives_the_wire(api: Api, version: int, data: st.DataObject) -> None:
    """K1: every request of every version decodes to what was encoded."""
    header = header_of(api, version)
    body = data.draw(messages(api.request, version))
    request = decode_request(unframed(encode_request(header, body)))
    assert request.header == header
    assert request.body == body


@pytest.mark.parametrize(("api", "version"), all_versions(), ids=version_name)
@_QUICK
@given(data=st.data())
def test_response_survives_the_wire(api: Api, version: int, data: st.DataObject) -> None:
    """K1: every response of every version decodes to what was encoded."""
    header = header_of(api, version)
    body = data.draw(messages(api.response, version))
    assert decode_response(header, unframed(encode_response(header, body))) == body


def test_every_message_is_found_under_its_name() -> None:
    """U4: the table of names knows each message of each module, and no other module's."""
    for module in pkgutil.iter_modules(declared.__path__):
        found = importlib.import_module(f"{declared.__name__}.{module.name}")
        names = {
            name
            for name, value in vars(found).items()
            if is_dataclass(value) and value.__module__.startswith(declared.__name__)
        }
        for name in names:
            assert getattr(declared, name) is getattr(found, name), name
    with pytest.raises(AttributeError, match="no message is named 'Nothing'"):
        _ = declared.Nothing  # type: ignore[attr-defined]
