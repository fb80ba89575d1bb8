"""What is pure in the console: bytes in JSON, rates, the document of the API."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.console.live import KINDS, check_watch
from dovetail.console.nouns import receiving
from dovetail.console.rates import COUNTERS_MAX, Rates
from dovetail.console.web.content import GivenContent, given_bytes, shown
from dovetail.console.web.docs_page import page
from dovetail.console.web.http import ENDPOINTS
from dovetail.console.web.openapi import document
from dovetail.errors import InvalidInput


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode()))
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    """U5: what is shown in full can be given again, text or not."""
    found = shown(data)
    assert found is not None
    assert given_bytes(GivenContent(found.data, found.encoding), "value") == data
    assert not found.truncated


@given(st.text(max_size=50).map(lambda text: text.encode()), st.integers(0, 60))
def test_cut_text_stays_text(data: bytes, limit: int) -> None:
    """U5: a cut in the middle of a character does not turn text into base64."""
    whole, cut = shown(data), shown(data, limit)
    assert whole is not None
    assert cut is not None
    assert cut.size == len(data)
    assert cut.truncated == (limit < len(data))
    if whole.encoding == "utf-8":
        assert cut.encoding == "utf-8"
        assert whole.data.startswith(cut.data)


def test_bad_base64_is_refused() -> None:
    """U7: the text names what is wrong."""
    with pytest.raises(InvalidInput, match="key is not base64"):
        given_bytes(GivenContent("???", "base64"), "key")
    assert given_bytes("plain", "key") == b"plain"
    assert given_bytes(None, "key") is None


def test_rates_need_time_and_forget() -> None:
    """U5: unknown at first, then the growth over some seconds; a counter that fell starts over."""
    rates = Rates()
    assert rates.seen("a", 100, now_ms=0) is None
    assert rates.seen("a", 150, now_ms=500) is None
    assert rates.seen("a", 300, now_ms=1_000) == pytest.approx(200.0)
    for second in range(2, 20):
        rate = rates.seen("a", 300 + (second - 1) * 10, now_ms=second * 1_000)
    assert rate == pytest.approx(10.0)
    assert rates.seen("a", 5, now_ms=20_000) is None
    assert rates.seen("a", 5, now_ms=60_000) is None
    for number in range(COUNTERS_MAX + 10):
        rates.seen(str(number), 1, now_ms=60_000)
    assert rates.seen("a", 50, now_ms=61_000) is None


def test_the_document_describes_every_endpoint() -> None:
    """U5: each operation has a summary, a description and a schema for what it answers."""
    found = document(ENDPOINTS)
    names = [op["operationId"] for path in found["paths"].values() for op in path.values()]
    assert {"/v1/live", "/v1/backup"} <= found["paths"].keys(), "these two are no endpoints"
    assert len(names) == len(set(names)) == len(ENDPOINTS) + 2
    for path in found["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert operation["description"]
    references = set(_references(found))
    assert references <= {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    assert page(found).count("<section") == len(names) + len(found["components"]["schemas"])


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [ref for each in value.values() for ref in _references(each)]
    if isinstance(value, list):
        return [ref for each in value for ref in _references(each)]
    return []


def test_every_change_is_audited_and_every_read_is_not() -> None:
    """U5: what is not a GET has a name in the audit log; signing in writes its own lines, and
    messages on their way to consumers (B27) are no changes by an operator."""
    for endpoint in ENDPOINTS:
        if endpoint.path == "/v1/session" or endpoint in receiving.ENDPOINTS:
            continue
        assert (endpoint.action is None) == (endpoint.method == "GET"), endpoint.path


def test_watches_are_checked() -> None:
    """R3: unknown ones, nameless ones and such with line ends are refused."""
    for name, kind in KINDS.items():
        check_watch(f"{name}:orders" if kind.named else name)
    for watch in ("", "nothing", "topic", "topic:", "topics:x", "group:a\nb", "group:" + "x" * 999):
        with pytest.raises(InvalidInput):
            check_watch(watch)
