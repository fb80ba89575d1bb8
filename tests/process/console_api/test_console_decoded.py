"""Messages by the schemas of a registry, over HTTP."""

import io
import json
from decimal import Decimal

import pytest
from tests.console_kit import Site
from tests.fake_registry import ORDER

from dovetail.registry.framing import framed

fastavro = pytest.importorskip("fastavro")
pytest.importorskip("confluent_kafka.schema_registry.avro")


def test_a_message_is_shown_by_its_schema(site: Site) -> None:
    """U5, T22: by the schema that its value names; a key without one is left alone."""
    out = io.BytesIO()
    order = {"sku": "A", "count": 3, "at": 0, "price": Decimal(1), "raw": b"r"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(ORDER), order)
    site.make_topic("typed")
    site.produce("typed", framed(1, out.getvalue()), b"plain", key=b"k")
    found = site.get("/v1/topics/typed/messages/0/0/decoded")
    assert (found["key"], found["value"]["kind"], found["value"]["schema"]) == (None, "avro", 1)
    assert json.loads(found["value"]["text"])["count"] == 3
    plain = site.get("/v1/topics/typed/messages/0/1/decoded")
    assert (plain["key"], plain["value"]) == (None, None)
    for place, says in (("0/2", "no message 2"), ("1/0", "no partition 1"), ("x/0", "number")):
        status = 400 if place == "x/0" else 404
        assert says in site.refused(status, "GET", f"/v1/topics/typed/messages/{place}/decoded")


def test_a_few_bytes_cannot_take_the_node(site: Site) -> None:
    """R7: a list of a billion nulls is six bytes; it is read in a process with limits."""
    site.make_topic("bomb")
    billion = b"\x80\xa8\xd6\xb9\x07"
    site.produce("bomb", framed(4, billion + b"\x00"))
    answer = site.client.get("/v1/topics/bomb/messages/0/0/decoded")
    # The process says it with its last memory, or it has ended, or had no time to end.
    ends = ("MemoryError", "limits of memory and time", "was not decoded within")
    assert any(one in answer.text for one in ends), answer.text
    assert site.client.get("/readyz").status_code == 200


def test_without_a_registry_it_says_what_to_set(signed_site: Site) -> None:
    """U7: the setting, by name."""
    headers = {"authorization": "Bearer correct-horse-battery-staple"}
    path = "/v1/topics/none/messages/0/0/decoded"
    answer = signed_site.client.get(path, headers=headers)
    assert answer.status_code == 404
    assert "http.schema_registry" in answer.json()["error"]["message"]
