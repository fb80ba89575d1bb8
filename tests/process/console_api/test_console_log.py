"""Topics, messages and groups over HTTP, on a real node."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.console_kit import Site, wait_for


@pytest.fixture
def group(site: Site) -> Iterator[Consumer]:
    """A member of group `billing` that has committed something."""
    consumer = Consumer(
        {"bootstrap.servers": site.node.bootstrap, "group.id": "billing", "client.id": "biller"}
    )
    consumer.subscribe(["orders"])
    wait_for("assignment", lambda: consumer.poll(0.1) or consumer.assignment())
    consumer.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
    yield consumer
    consumer.close()


def offsets_of(page: Any) -> list[tuple[int, int]]:
    return [(m["partition"], m["offset"]) for m in page["messages"]]


def test_topics_are_listed_and_shown(site: Site) -> None:
    """U5: partitions, owners, terms, ensembles, sizes, offsets, settings with their meaning."""
    rows = {row["topic"]: row for row in site.get("/v1/topics")["topics"]}
    assert rows["orders"]["records"] == 20
    assert rows["orders"]["partitions"] == 2
    assert "__dovetail_groups" not in rows
    everything = site.get("/v1/topics", internal="true")["topics"]
    assert any(row["internal"] for row in everything)
    shown = site.get("/v1/topics/orders")
    assert [(p["first"], p["end"], p["leader"]) for p in shown["partitions"]] == [(0, 10, 1)] * 2
    assert all(p["term"] >= 1 and p["ensemble"] == [1] for p in shown["partitions"])
    assert all(p["bytes"] > 0 and p["bytes_complete"] for p in shown["partitions"])
    settings = {setting["name"]: setting for setting in shown["config"]}
    assert settings["retention.ms"]["default"] is True
    assert "Age" in settings["retention.ms"]["doc"]


def test_a_topic_is_made_altered_and_deleted(site: Site) -> None:
    """U5: each change is seen at once, and the name is free again."""
    made = site.send(
        "POST", "/v1/topics", {"topic": "t1", "partitions": 2, "config": {"retention.ms": "60000"}}
    )
    assert made.status_code == 201
    assert len(made.json()["partitions"]) == 2
    change = {"partitions": 3, "config": {"segment.ms": "5000"}, "unset": ["retention.ms"]}
    altered = site.send("PATCH", "/v1/topics/t1", change)
    assert altered.status_code == 200, altered.text
    settings = {setting["name"]: setting for setting in altered.json()["config"]}
    assert settings["segment.ms"]["value"] == "5000"
    assert settings["retention.ms"]["default"] is True
    assert len(altered.json()["partitions"]) == 3
    assert site.send("DELETE", "/v1/topics/t1").status_code == 204
    assert "t1" in site.refused(404, "GET", "/v1/topics/t1")


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "says"),
    [
        (409, "POST", "/v1/topics", {"topic": "orders"}, "orders"),
        (400, "POST", "/v1/topics", {"topic": "a b"}, "topic"),
        (400, "POST", "/v1/topics", {"topic": "x" * 250}, "249"),
        (400, "POST", "/v1/topics", {"topic": "t9", "partitions": 0}, "1"),
        (400, "POST", "/v1/topics", {"topic": "t9", "config": {"no.such": "1"}}, "no.such"),
        (400, "POST", "/v1/topics", {"topic": "t9", "colour": "red"}, "colour"),
        (400, "POST", "/v1/topics", ["t9"], "object"),
        (400, "PATCH", "/v1/topics/orders", {}, "nothing to alter"),
        (400, "PATCH", "/v1/topics/orders", {"partitions": 1}, "partition"),
        (400, "PATCH", "/v1/topics/orders", {"config": {"retention.ms": "soon"}}, "retention.ms"),
        (404, "PATCH", "/v1/topics/none", {"partitions": 2}, "none"),
        (404, "DELETE", "/v1/topics/none", None, "none"),
        (400, "DELETE", "/v1/topics/__dovetail_groups", None, "internal"),
        (400, "GET", "/v1/topics?internal=perhaps", None, "internal"),
        (400, "GET", "/v1/topics?intern=true", None, "internal"),
        (404, "GET", "/v1/topics/none/messages", None, "none"),
        (404, "GET", "/v1/topics/orders/messages?partition=2", None, "0 to 1"),
        (400, "GET", "/v1/topics/orders/messages?limit=0", None, "limit"),
        (400, "GET", "/v1/topics/orders/messages?limit=501", None, "500"),
        (400, "GET", "/v1/topics/orders/messages?from=soon", None, "offset:1200"),
        (400, "GET", "/v1/topics/orders/messages?before=5", None, "partition"),
        (400, "GET", "/v1/topics/orders/messages?key=a&key=b", None, "twice"),
        (404, "POST", "/v1/topics/none/messages", {"value": "x"}, "none"),
        (404, "POST", "/v1/topics/orders/messages", {"value": "x", "partition": 9}, "0 to 1"),
        (400, "POST", "/v1/topics/orders/messages", {"value": 5}, "value"),
        (400, "POST", "/v1/topics/__dovetail_groups/messages", {"value": "x"}, "internal"),
        (404, "GET", "/v1/groups/none", None, "none"),
        (404, "POST", "/v1/groups/none/reset", {"to": "latest"}, "topics"),
        (400, "POST", "/v1/groups/none/reset", {"to": "soon", "topics": ["orders"]}, "offset:1200"),
        (404, "POST", "/v1/groups/none/reset", {"to": "latest", "topics": ["none"]}, "none"),
        (404, "DELETE", "/v1/groups/none", None, "none"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    site: Site, status: int, method: str, path: str, body: Any, says: str
) -> None:
    """R3, U7: the error says what is wrong, and everything is as it was."""
    before = site.get("/v1/topics", internal="true")["topics"], site.get("/v1/groups")
    assert says in site.refused(status, method, path, body)
    after = site.get("/v1/topics", internal="true")["topics"], site.get("/v1/groups")
    for row in (*before[0], *after[0]):
        row.pop("records_per_s")
        row.pop("bytes")
    assert before[0] == after[0]
    assert [g["group"] for g in before[1]["groups"]] == [g["group"] for g in after[1]["groups"]]


def test_messages_are_found_by_offset_time_key_and_text(site: Site) -> None:
    """U5: the message browser; newest first, with pages in both directions."""
    path = "/v1/topics/orders/messages"
    last = site.get(path, limit=3)
    assert offsets_of(last) == [(1, 9), (0, 9), (1, 8)]
    message = last["messages"][0]
    assert message["value"] == {
        "encoding": "utf-8",
        "data": '{"order": 19}',
        "size": 13,
        "truncated": False,
    }
    assert message["headers"][0]["value"]["data"] == "t19"
    assert message["timestamp_ms"] == 1_700_000_019_000
    at = site.get(path, **{"partition": 0, "from": "offset:4", "limit": 2})
    assert offsets_of(at) == [(0, 5), (0, 4)]
    assert at["next"] == {"0": 6}
    assert at["complete"] is False
    earlier = site.get(path, partition=0, before=4, limit=2)
    assert offsets_of(earlier) == [(0, 3), (0, 2)]
    assert earlier["previous"] == {"0": 2}
    since = site.get(path, **{"from": "time:1700000017000"})
    assert offsets_of(since) == [(1, 9), (0, 9), (1, 8)]
    assert offsets_of(site.get(path, key="k1", limit=2)) == [(1, 8), (1, 6)]
    coded = base64.b64encode(b"k1").decode()
    assert offsets_of(site.get(path, key_base64=coded, limit=2)) == [(1, 8), (1, 6)]
    found = site.get(path, **{"contains": '"order": 7}', "from": "earliest"})
    assert offsets_of(found) == [(1, 3)]
    assert found["scanned"] == 20
    few = site.get(path, key="k1", scan=4)
    assert few["scanned"] <= 4


def test_a_message_is_produced_as_it_was_given(site: Site) -> None:
    """U5: key, value, headers and bytes that are no text come back."""
    assert site.send("POST", "/v1/topics", {"topic": "inbox", "partitions": 2}).status_code == 201
    path = "/v1/topics/inbox/messages"
    raw = {"encoding": "base64", "data": base64.b64encode(b"\x00\xff").decode()}
    body = {
        "key": "ann",
        "value": raw,
        "headers": [{"name": "h", "value": "v"}, {"name": "none"}],
        "partition": 1,
        "timestamp_ms": 1_700_000_000_123,
    }
    stored = site.send("POST", path, body)
    assert stored.status_code == 201, stored.text
    assert stored.json() == {
        "topic": "inbox",
        "partition": 1,
        "offset": 0,
        "timestamp_ms": 1_700_000_000_123,
    }
    (message,) = site.get(path)["messages"]
    assert message["value"] == {**raw, "size": 2, "truncated": False}
    assert message["key"]["data"] == "ann"
    assert [(h["name"], h["value"] and h["value"]["data"]) for h in message["headers"]] == [
        ("h", "v"),
        ("none", None),
    ]
    assert site.send("POST", path, {"key": "gone", "partition": 0}).status_code == 201
    assert site.get(path, partition=0)["messages"][0]["value"] is None
    assert site.send("POST", path, {"value": "x" * 50_000, "partition": 0}).status_code == 201
    cut = site.get(path, partition=0, limit=1, value_bytes=100)["messages"][0]["value"]
    assert (cut["size"], len(cut["data"]), cut["truncated"]) == (50_000, 100, True)
    assert site.send("DELETE", "/v1/topics/inbox").status_code == 204


def test_bodies_are_json_and_have_a_limit(site: Site) -> None:
    """R3, R4: nothing else is taken, and a large one is refused before it is read."""
    path = "/v1/topics/orders/messages"
    form = site.client.post(path, data={"value": "x"})
    assert form.status_code == 415
    assert "application/json" in form.json()["error"]["message"]
    plain = site.client.post(path, content='{"value": "x"}', headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    json_type = {"content-type": "application/json"}
    large = site.client.post(path, content=b'"' + b"x" * 3_000_000 + b'"', headers=json_type)
    assert large.status_code == 413
    chunks = site.client.post(path, content=iter([b"x" * 1_500_000] * 2), headers=json_type)
    assert chunks.status_code == 413
    broken = site.client.post(path, content=b'{"value": ', headers=json_type)
    assert broken.status_code == 400
    deep = site.client.post(path, content=b"[" * 60_000, headers=json_type)
    assert deep.status_code == 400
    assert site.get("/v1/topics/orders")["records"] == 20


def test_groups_are_shown_moved_and_deleted(site: Site, group: Consumer) -> None:
    """U5: members, lag; a group with members is not moved; a dry run changes nothing."""
    shown = site.get("/v1/groups/billing")
    assert shown["state"] == "stable"
    assert shown["member_list"][0]["client"] == "biller"
    rows = {row["partition"]: row for row in shown["partitions"]}
    assert (rows[0]["committed"], rows[0]["lag"]) == (3, 7)
    assert (rows[1]["committed"], rows[1]["lag"]) == (None, None)
    listed = {row["group"]: row for row in site.get("/v1/groups")["groups"]}
    assert listed["billing"]["members"] == 1
    assert listed["billing"]["topics"] == ["orders"]
    assert "stop them" in site.refused(409, "POST", "/v1/groups/billing/reset", {"to": "earliest"})
    assert "stop them" in site.refused(409, "DELETE", "/v1/groups/billing")
    group.close()
    dry = site.send("POST", "/v1/groups/billing/reset", {"to": "latest", "dry_run": True}).json()
    assert dry["changed"] is False
    assert site.get("/v1/groups/billing")["partitions"][0]["committed"] == 3
    for to, after in (
        ("earliest", [0, 0]),
        ("offset:5", [5, 5]),
        ("time:1700000017000", [9, 8]),
        ("latest", [10, 10]),
    ):
        moved = site.send("POST", "/v1/groups/billing/reset", {"to": to}).json()
        assert [m["after"] for m in moved["partitions"]] == after
        committed = [p["committed"] for p in site.get("/v1/groups/billing")["partitions"]]
        assert committed == after
    only = {"to": "earliest", "topics": ["orders"], "partition": 1}
    site.send("POST", "/v1/groups/billing/reset", only)
    assert [p["committed"] for p in site.get("/v1/groups/billing")["partitions"]] == [10, 0]
    assert site.send("DELETE", "/v1/groups/billing").status_code == 204
    site.refused(404, "GET", "/v1/groups/billing")


def test_names_with_slashes_are_names(site: Site) -> None:
    """U5: a group's name may be anything; it travels percent-encoded."""
    path = "/v1/groups/team%2Fa%20b%2Freset"
    answer = site.send("POST", f"{path}/reset", {"to": "earliest", "topics": ["orders"]})
    assert answer.status_code == 200, answer.text
    assert site.get(path)["group"] == "team/a b/reset"
    assert site.send("DELETE", path).status_code == 204
