"""Timelines, dead letters, streams, pipelines and the outbox over HTTP, on a real node."""

import json
import time
from typing import Any

import pytest
from tests.console_kit import Site, make_dead_letters

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def letters(site: Site, source: str, name: str) -> list[Any]:
    found = site.get("/v1/dead", source=source, name=name)
    (counted,) = found["sources"]
    assert counted["count"] == len(found["letters"])
    return list(found["letters"])


def test_a_timeline_from_its_making_to_its_end(site: Site) -> None:
    """U5, B23: waiting messages with their windows; schedule, look up, move, cancel; schedules;
    altered, paused and purged."""
    made = site.send("POST", "/v1/timelines", {"timeline": "calls", "config": {"attempts_max": 3}})
    assert made.status_code == 201, made.text
    assert made.json()["config"]["attempts_max"] == 3
    path = "/v1/timelines/calls/messages"
    due = now_ms() + HOUR_MS
    body = {
        "body": "call Ada",
        "due_ms": due,
        "key": "ada",
        "headers": [{"name": "h", "value": "v"}],
    }
    first = site.send("POST", path, body).json()
    assert first["created"] is True
    again = site.send("POST", path, body).json()
    assert again == {"id": first["id"], "created": False}
    later = site.send("POST", path, {"body": "call Bo", "delay_ms": 2 * HOUR_MS}).json()
    next_ones = site.get(path)["messages"]
    assert [m["id"] for m in next_ones] == [first["id"], later["id"]]
    assert next_ones[0]["body"]["data"] == "call Ada"
    assert next_ones[0]["headers"][0]["value"]["data"] == "v"
    assert next_ones[0]["state"] == "waiting"
    assert site.get(path, key="ada")["messages"][0]["id"] == first["id"]
    assert site.get(path, key="nobody")["messages"] == []
    assert len(site.get(path, id=[first["id"], later["id"], 999_999])["messages"]) == 2
    moved = site.send("PATCH", f"{path}/{first['id']}", {"due_ms": due + 5_000}).json()
    assert moved["due_ms"] == due + 5_000
    assert site.send("DELETE", f"{path}/{later['id']}").status_code == 204
    assert "never existed" in site.refused(404, "DELETE", f"{path}/{later['id']}")
    shown = site.get("/v1/timelines/calls")
    assert (shown["waiting"], shown["due"], shown["leased"], shown["dead"]) == (1, 0, 0, 0)
    assert shown["window_ms"] == 1_000
    weekly = {"body": "report", "cron": "0 3 * * MON", "zone": "UTC"}
    assert site.send("PUT", "/v1/timelines/calls/schedules/weekly", weekly).status_code == 204
    (schedule,) = site.get("/v1/timelines/calls")["schedules"]
    assert (schedule["name"], schedule["cron"]) == ("weekly", "0 3 * * MON")
    assert schedule["next_ms"] > now_ms()
    week_ms = 7 * 24 * 3_600_000
    assert schedule["next_times"] == [schedule["next_ms"] + n * week_ms for n in range(3)]
    assert site.send("DELETE", "/v1/timelines/calls/schedules/weekly").status_code == 204
    rows = {row["timeline"]: row for row in site.get("/v1/timelines")["timelines"]}
    assert rows["calls"]["waiting"] == 1

    changed = site.send("PATCH", "/v1/timelines/calls", {"config": {"paused": True}})
    assert changed.json()["config"]["paused"] is True
    assert "buckets" in site.refused(
        400, "PATCH", "/v1/timelines/calls", {"config": {"buckets": 7}}
    )
    select, where = "/v1/timelines/calls/select", {"key_prefix": "no such "}
    found = site.send("POST", select, {"action": "preview", "where": {}}).json()
    assert (found["matched"], found["done"], found["more"]) == (1, 0, False)
    found = site.send("POST", select, {"action": "cancel", "where": where}).json()
    assert (found["matched"], found["done"], found["ids"]) == (0, 0, [])
    for body in ({"action": "cancel", "where": {}}, {"action": "move", "where": where}):
        site.refused(400, "POST", select, body)
    later = {"action": "move", "where": {"older_ms": 0, "key_prefix": ""}, "due_ms": 1}
    assert "which ones" in site.refused(400, "POST", select, later)
    assert site.send("POST", "/v1/timelines/calls/purge", {}).json() == {"removed": 1}
    assert site.send("DELETE", "/v1/timelines/calls").status_code == 204
    site.refused(404, "GET", "/v1/timelines/calls")


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "says"),
    [
        (400, "POST", "/v1/timelines", {"timeline": "no/name"}, "timeline"),
        (400, "POST", "/v1/timelines", {"timeline": "t", "config": {"colour": 1}}, "colour"),
        (400, "POST", "/v1/timelines", {"timeline": "t", "config": {"buckets": 0}}, "buckets"),
        (404, "GET", "/v1/timelines/none", None, "none"),
        (404, "DELETE", "/v1/timelines/none", None, "none"),
        (404, "GET", "/v1/timelines/none/messages", None, "none"),
        (404, "POST", "/v1/timelines/none/messages", {"body": "x"}, "none"),
        (400, "POST", "/v1/timelines/none/messages", {"body": "x", "due_ms": -1}, "due_ms"),
        (400, "POST", "/v1/timelines/none/messages", {"due_ms": 1}, "body"),
        (
            400,
            "POST",
            "/v1/timelines/none/messages",
            {"body": "", "due_ms": 1, "delay_ms": 1},
            "both",
        ),
        (400, "PATCH", "/v1/timelines/none/messages/x", {"due_ms": 1}, "number"),
        (404, "PATCH", "/v1/timelines/none/messages/1", {"due_ms": 1}, "none"),
        (400, "GET", "/v1/timelines/none/messages?limit=5000", None, "1000"),
        (404, "PUT", "/v1/timelines/none/schedules/s", {"body": "x", "every_ms": 5000}, "none"),
        (400, "POST", "/v1/dead/replay", {"source": "timeline", "name": "none", "ids": []}, "ids"),
        (
            400,
            "POST",
            "/v1/dead/drop",
            {"source": "elsewhere", "name": "n", "ids": ["1"]},
            "source",
        ),
        (400, "POST", "/v1/dead/drop", {"source": "timeline", "name": "n", "ids": ["x"]}, "number"),
        (
            404,
            "POST",
            "/v1/dead/drop",
            {"source": "timeline", "name": "none", "ids": ["1"]},
            "none",
        ),
        (404, "POST", "/v1/dead/drop", {"source": "topic", "name": "none", "ids": ["0:1"]}, "none"),
        (
            400,
            "POST",
            "/v1/dead/drop",
            {"source": "topic", "name": "orders", "ids": ["0:1"]},
            ".dead",
        ),
        (404, "GET", "/v1/streams/none", None, "none"),
        (404, "GET", "/v1/streams/orders", None, "not a shared log"),
        (404, "GET", "/v1/streams/bots?environment=test", None, "prod"),
        (404, "GET", "/v1/pipelines/none", None, "dovetail pipeline run"),
        (400, "GET", "/v1/audit?limit=0", None, "limit"),
    ],
)
def test_what_does_not_fit_is_told(
    site: Site, status: int, method: str, path: str, body: Any, says: str
) -> None:
    """R3, U7: the error says what is wrong, and no timeline came of it."""
    assert says in site.refused(status, method, path, body)
    rows = site.get("/v1/timelines")["timelines"]
    assert not [row for row in rows if row["state"] == "ready"]


def test_dead_letters_of_a_timeline(site: Site) -> None:
    """U5: the reason and the attempts are told; replayed ones are due again, dropped ones gone."""
    make_dead_letters(site.node.bootstrap, "failing", [b"one", b"two", b"three"])
    found = letters(site, "timeline", "failing")
    assert {letter["body"]["data"] for letter in found} == {"one", "two", "three"}
    assert "card refused" in found[0]["reason"] + (found[0]["detail"] or "")
    assert found[0]["attempts"] == 1
    assert found[0]["headers"][0]["name"] == "h"
    first, second, third = (letter["id"] for letter in found)
    choice = {"source": "timeline", "name": "failing", "ids": [first, "999999"]}
    done = site.send("POST", "/v1/dead/replay", choice).json()
    assert done["done"] == 1
    assert done["left"][0]["id"] == "999999"
    assert site.get("/v1/timelines/failing")["due"] == 1
    dropped = site.send("POST", "/v1/dead/drop", choice | {"ids": [second]}).json()
    assert dropped == {"done": 1, "left": []}
    assert [letter["id"] for letter in letters(site, "timeline", "failing")] == [third]
    assert site.send("DELETE", "/v1/timelines/failing").status_code == 204


def _dead_work(site: Site, number: int) -> None:
    headers = [
        ("dovetail-kind", b"exception"),
        ("dovetail-reason", b"ValueError: no price"),
        ("dovetail-traceback", b"Traceback ..."),
        ("dovetail-attempts", b"3"),
        ("user", b"kept"),
    ]
    job = json.dumps({"order": number}).encode()
    site.produce("shop.parse.dead", job, key=b"w%d" % number, headers=headers, partition=0)


def test_dead_letters_of_a_team(site: Site) -> None:
    """U5: jobs are replayed to the team's input with their attempts, or dropped, one by one."""
    site.make_topic("shop.parse.dead")
    for number in range(4):
        _dead_work(site, number)
    found = letters(site, "topic", "shop.parse.dead")
    assert [letter["can_replay"] for letter in found] == [False] * 4
    choice = {"source": "topic", "name": "shop.parse.dead", "ids": ["0:2"]}
    assert "shop.parse.input" in site.refused(409, "POST", "/v1/dead/replay", choice)
    site.make_topic("shop.parse.input", 2)
    letter = next(each for each in letters(site, "topic", "shop.parse.dead") if each["id"] == "0:2")
    assert letter["kind"] == "exception"
    assert letter["reason"] == "ValueError: no price"
    assert letter["detail"] == "Traceback ..."
    assert letter["attempts"] == 3
    assert letter["can_replay"] is True
    assert site.send("POST", "/v1/dead/replay", choice).json() == {"done": 1, "left": []}
    (work,) = site.get("/v1/topics/shop.parse.input/messages")["messages"]
    assert work["key"]["data"] == "w2"
    assert json.loads(work["value"]["data"]) == {"order": 2}
    assert {h["name"] for h in work["headers"]} == {"dovetail-attempts", "user"}
    assert site.send("POST", "/v1/dead/replay", choice).json()["done"] == 0
    assert len(letters(site, "topic", "shop.parse.dead")) == 3
    drop = choice | {"ids": ["0:0", "0:1", "0:77"]}
    assert site.send("POST", "/v1/dead/drop", drop).json()["done"] == 2
    assert [each["id"] for each in letters(site, "topic", "shop.parse.dead")] == ["0:3"]
    (partition,) = site.get("/v1/topics/shop.parse.dead")["partitions"]
    assert partition["first"] == 3


def test_dead_letters_of_the_outbox(site: Site) -> None:
    """U5: what a relay set aside is put back or dropped; the outbox's numbers follow."""
    before = site.get("/v1/outbox")
    assert before["configured"] is True
    (topic,) = before["topics"]
    assert (topic["topic"], topic["pending"], topic["dead"]) == ("invoices", 3, 3)
    found = letters(site, "outbox", "invoices")
    assert {letter["id"] for letter in found} == {"100", "101", "102"}
    assert found[0]["reason"] == "too large"
    choice = {"source": "outbox", "name": "invoices", "ids": ["100", "7"]}
    done = site.send("POST", "/v1/dead/replay", choice).json()
    assert done["done"] == 1
    assert done["left"][0]["id"] == "7"
    assert site.send("POST", "/v1/dead/drop", choice | {"ids": ["101"]}).json()["done"] == 1
    other = choice | {"name": "elsewhere", "ids": ["102"]}
    assert site.send("POST", "/v1/dead/drop", other).json()["done"] == 0
    (topic,) = site.get("/v1/outbox")["topics"]
    assert (topic["pending"], topic["dead"]) == (4, 1)


def test_streams_as_their_log_has_them(site: Site) -> None:
    """U5: found by themselves; members, leader, term, lag and elections, newest first."""
    (row,) = site.get("/v1/streams")["streams"]
    assert (row["log"], row["environment"], row["leader"]) == ("bots", "prod", "ann:1")
    assert (row["term"], row["counted"], row["lag"]) == (2, 2, 11)
    shown = site.get("/v1/streams/bots", environment="prod")
    assert [(m["member"], m["leads"]) for m in shown["members"]] == [
        ("ann:1", True),
        ("ben:1", False),
    ]
    assert [(p["committed"], p["end"], p["lag"]) for p in shown["positions"]] == [
        (4, 10, 6),
        (5, 10, 5),
    ]
    assert [(e["term"], e["leader"]) for e in shown["elections"]] == [(2, "ann:1"), (1, "ben:1")]


def _report(site: Site, **more: Any) -> None:
    teams = [
        {
            "team": "parse",
            "state": "working",
            "input": "a",
            "dead": "b",
            "lag": 5,
            "jobs_per_s": 2.5,
        },
        {"team": "price", "state": "idle", "lag": 1, "jobs_per_s": 1.0, "dead_letters": 2},
    ]
    told = {
        "format": 1,
        "pipeline": "shop",
        "state": "running",
        "driver": "host:1",
        "term": 3,
        "edges": [{"from": "parse", "to": "price", "how": "pipe"}],
        "teams": teams,
        **more,
    }
    site.produce("dovetail.pipelines", json.dumps(told).encode(), key=b"shop")


def test_pipelines_as_their_drivers_tell(site: Site) -> None:
    """U5, T11: the graph, rates, lag and failures per team; the last report counts."""
    assert site.get("/v1/pipelines") == {"pipelines": []}
    _report(site)
    site.produce("dovetail.pipelines", b"no report at all", key=b"odd")
    (row,) = site.get("/v1/pipelines")["pipelines"]
    assert (row["pipeline"], row["state"], row["lag"]) == ("shop", "running", 6)
    assert row["jobs_per_s"] == 3.5
    shown = site.get("/v1/pipelines/shop")
    assert shown["edges"] == [{"from": "parse", "to": "price", "how": "pipe"}]
    assert [team["lag"] for team in shown["teams"]] == [5, 1]
    _report(site, state="stopped")
    assert site.get("/v1/pipelines/shop")["state"] == "stopped"
    _report(site, state="running")
    _report(site, state="failed", term=2)
    assert site.get("/v1/pipelines/shop")["state"] == "running", "an older master says nothing"
    told = json.dumps({"pipeline": "shop", "state": "waiting", "driver": "host:2"}).encode()
    site.produce("dovetail.pipelines", told, key=b"shop#host:2")
    assert site.get("/v1/pipelines/shop")["standbys"] == ["host:2"]
    stale = now_ms() - 60_000
    told = json.dumps({"pipeline": "old", "state": "running"}).encode()
    site.produce("dovetail.pipelines", told, key=b"old", timestamp=stale)
    assert site.get("/v1/pipelines/old")["state"] == "silent"


def test_the_overview_adds_up(site: Site) -> None:
    """U5: nodes with roles and health, totals over everything."""
    overview = site.get("/v1/overview")
    assert overview["node"]["ready"] is True
    assert overview["node"]["kafka"] == site.node.bootstrap
    (node,) = overview["nodes"]
    assert (node["health"], set(node["roles"])) == ("healthy", {"overseer", "broker", "storage"})
    totals = overview["totals"]
    listed = site.get("/v1/topics")["topics"]
    assert totals["topics"] == len(listed)
    assert totals["records"] == sum(row["records"] for row in listed)
    assert totals["partitions_without_owner"] == 0
    assert totals["dead"] is not None
    assert site.get("/v1/cluster")["nodes"][0]["node_id"] == 1


def test_changes_are_in_the_audit_log(site: Site) -> None:
    """U5: who, from where, what, outcome; refused ones too; bodies are not written down."""
    site.send("POST", "/v1/topics", {"topic": "audited"})
    site.send("POST", "/v1/topics/audited/messages", {"value": "a secret", "key": "k"})
    site.refused(409, "POST", "/v1/topics", {"topic": "audited"})
    site.send("DELETE", "/v1/topics/audited")
    entries = site.get("/v1/audit", limit=4)["entries"]
    assert [(e["action"], e["target"], e["outcome"]) for e in entries] == [
        ("topic.delete", "audited", "done"),
        ("topic.create", "audited", "refused"),
        ("message.produce", "audited", "done"),
        ("topic.create", "audited", "done"),
    ]
    assert entries[0]["who"] == "anonymous"
    assert entries[0]["from"] == "127.0.0.1"
    assert "audited" in entries[1]["error"]
    log = (site.node.data_dir / "audit.jsonl").read_text()
    assert "a secret" not in log
    second = site.get("/v1/audit", limit=1, before=entries[0]["id"])["entries"]
    assert second == [entries[1]]


def events(site: Site, *watches: str) -> Any:
    """Events of a live stream, as they come."""
    query = [("watch", watch) for watch in watches]
    with site.client.stream("GET", "/v1/live", params=query) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_live_documents_follow_what_happens(site: Site) -> None:
    """U5: the same documents as by GET, sent again when they changed, with rates."""
    site.send("POST", "/v1/topics", {"topic": "busy", "partitions": 1})
    stream = events(site, "topic:busy", "topic:none")
    assert next(stream)[0] == "hello"
    seen: dict[str, Any] = {}
    for name, data in stream:
        if name == "trouble":
            seen["trouble"] = data
            continue
        seen.setdefault("first", data)
        if data["records_per_s"]:
            seen["rate"] = data["records_per_s"]
            break
        site.produce("busy", b"x")
    stream.close()
    assert seen["trouble"]["watch"] == "topic:none"
    assert seen["trouble"]["error"]["kind"] == "TopicUnknown"
    assert set(seen["first"]) == set(site.get("/v1/topics/busy"))
    assert seen["rate"] > 0
    assert site.send("DELETE", "/v1/topics/busy").status_code == 204


def test_every_document_can_be_watched(site: Site) -> None:
    """U5: one event of each kind comes, and none of them is trouble."""
    watches = ["overview", "topics", "groups", "timelines", "dead", "streams", "pipelines"]
    watches += ["outbox", "audit", "stream:bots/prod"]
    stream = events(site, *watches)
    waiting = {"hello", *watches}
    for name, data in stream:
        assert name != "trouble", data
        waiting.discard(name)
        if not waiting:
            break
    stream.close()
    for query in ("", "?watch=nothing", "?watch=topic", "?watch=topics&colour=red"):
        assert site.client.get(f"/v1/live{query}").status_code == 400
