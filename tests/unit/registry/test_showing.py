"""Payloads with schemas as JSON text."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.fake_registry import ORDER, fake_registry

from dovetail.registry import Registry
from dovetail.registry.framing import framed
from dovetail.registry.showing import show

fastavro = pytest.importorskip("fastavro")
pytest.importorskip("confluent_kafka.schema_registry.avro")


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with fake_registry() as url:
        yield Registry(url)


def avro(schema: Any, value: Any) -> bytes:
    """The value without a head."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def test_avro_is_shown_by_the_schema_that_it_names(registry: Registry) -> None:
    """U5, T22: times, decimals and bytes too, for which JSON has no word."""
    order = {
        "sku": "A",
        "count": 3,
        "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "price": Decimal("12"),
        "raw": b"\xff\x00",
    }
    read = show(registry, "orders", framed(1, avro(ORDER, order)))
    assert (read.schema, read.kind, read.trouble) == (1, "avro", None)
    assert json.loads(read.text or "") == {
        "sku": "A",
        "count": 3,
        "at": "2026-01-02 03:04:05+00:00",
        "price": "12",
        "raw": "0xff00",
    }


def test_json_is_shown_as_it_is(registry: Registry) -> None:
    """U5, T22: figures keep their digits."""
    read = show(registry, "orders", framed(2, b'{"n": 12345678901234567890}'))
    assert (read.kind, read.text) == ("json", '{"n": 12345678901234567890}')


def test_protobuf_is_shown_with_what_it_imports(registry: Registry) -> None:
    """U5, T22: the second message of a file that imports another, and one of Protobuf's own."""
    part, stamp = b"\x0a\x01A", b"\x08\x80\xa3\x05"
    payload = b"\x0a\x03" + part + b"\x12\x04" + stamp
    read = show(registry, "orders", framed(3, payload, message=[1]))
    assert read.trouble is None
    assert json.loads(read.text or "") == {
        "part": {"sku": "A"},
        "made_at": "1970-01-02T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{}", "do not have a schema number"),
        (framed(99, b"x"), "Schema not found"),
        (framed(1, b""), "cannot apply the schemas"),
        (framed(3, b"", message=[7]), "cannot apply the schemas"),
    ],
    ids=["none", "unknown", "other bytes", "no such message"],
)
def test_what_cannot_be_read_says_why(registry: Registry, data: bytes, says: str) -> None:
    """U5, U7: and raises nothing."""
    read = show(registry, "orders", data)
    assert read.text is None
    assert says in (read.trouble or "")
