"""Messages of timelines for programs of any language: by a client that is made of the document."""

import asyncio
import concurrent.futures
import contextlib
import importlib
import os
import select
import socket
from typing import Any

import httpx
import pytest
from tests.console_kit import TOKEN, Site, wait_for
from tests.generated_client import GeneratorMissing, generated_client

from dovetail.console.web.http import CONNECTIONS_MAX
from dovetail.timeline.client import connect
from dovetail.timeline.client.timeline import Draft

PACKAGE = "dovetail_api"
WAIT_MS = 20_000


@pytest.fixture(scope="module")
def api(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The generated client's modules by name."""
    document = site.client.get("/v1/openapi.json").content
    try:
        generated_client(document, tmp_path_factory.mktemp("generated"), PACKAGE)
    except GeneratorMissing as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    return lambda name: importlib.import_module(f"{PACKAGE}.{name}")


def fresh(site: Site, name: str, **config: Any) -> str:
    site.send("DELETE", f"/v1/timelines/{name}")
    made = wait_for(
        f"timeline {name}",
        lambda: (
            (
                answer := site.send("POST", "/v1/timelines", {"timeline": name, "config": config})
            ).status_code
            == 201
            and answer
        ),
    )
    assert made
    return f"/v1/timelines/{name}"


def received(site: Site, path: str, **wanted: Any) -> list[Any]:
    answer = site.send("POST", f"{path}/receive", {"wait_ms": WAIT_MS, "limit": 100} | wanted)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


def leases(messages: list[Any], **more: Any) -> list[Any]:
    return [{"id": each["id"], "version": each["version"]} | more for each in messages]


def test_callers_that_wait_keep_no_probe_out(site: Site) -> None:
    """B27, R3: as many as the node takes connections had every probe refused, of a node that was
    well."""
    path = fresh(site, "many")
    address = (site.node.http_url.removeprefix("http://")).rpartition(":")
    wanted = b'{"wait_ms": %d}' % WAIT_MS
    head = (
        f"POST {path}/receive HTTP/1.1\r\nHost: {address[0]}\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(wanted)}\r\n\r\n"
    )
    waiting = []
    try:
        for _ in range(CONNECTIONS_MAX + 10):
            one = socket.create_connection((address[0], int(address[2])))
            waiting.append(one)
            with contextlib.suppress(OSError):
                one.sendall(head.encode() + wanted)
        wait_for("the others are refused", lambda: sum(map(answered, waiting)) >= 10)
        assert httpx.get(f"{site.node.http_url}/livez", timeout=60).status_code == 200
    finally:
        for one in waiting:
            one.close()
    site.send("POST", f"{path}/messages", {"body": "x"})
    assert wait_for("there is room again", lambda: _ok(site, path))


def answered(one: socket.socket) -> bool:
    """Whether the node has said something, or closed."""
    return bool(select.select([one], [], [], 0)[0])


def _ok(site: Site, path: str) -> bool:
    return site.send("POST", f"{path}/receive", {"wait_ms": 1_000}).status_code == 200


def test_a_generated_client_works_off_a_timeline(site: Site, api: Any) -> None:
    """B27: schedule, receive with a long poll, extend, done, retry and dead, from the document."""
    fresh(site, "langs", attempts_max=3)
    with api("client").Client(base_url=site.node.http_url) as client:
        _work_off(site, api, client)
    assert site.send("DELETE", "/v1/timelines/langs").status_code == 204


def _work_off(site: Site, api: Any, client: Any) -> None:
    models, calls = api("models"), "api.timelines"

    def call(operation: str, body: Any) -> Any:
        answered = api(f"{calls}.{operation}").sync(timeline="langs", client=client, body=body)
        assert type(answered).__name__ != "ProblemAnswer", answered
        return answered

    for text in ("a", "b", "c"):
        assert call("schedule_message", models.TimelineMessageNew(body=text)).created
    wanted = models.Receive(limit=10, wait_ms=WAIT_MS, consumer="made")
    found: dict[str, Any] = {}
    while len(found) < 3:
        got = call("receive_messages", wanted).messages
        found |= {each.body.data: each for each in got}

    def lease(kind: Any, text: str, **more: Any) -> Any:
        return kind(id=found[text].id, version=found[text].version, **more)

    extended = models.LeasesExtended(leases=[lease(models.LeaseHeld, "a")], lease_ms=60_000)
    assert call("extend_leases", extended).outcomes == ["ok"]
    done = models.LeasesDone(leases=[lease(models.LeaseHeld, "a")])
    assert call("finish_messages", done).outcomes == ["ok"]
    assert call("finish_messages", done).outcomes == ["gone"]
    again = models.LeasesRetried(leases=[lease(models.LeaseRetried, "b", delay_ms=0)])
    assert call("retry_messages", again).outcomes == ["ok"]
    (second,) = call("receive_messages", wanted).messages
    assert (second.body.data, second.attempt) == ("b", 2)
    rejected = models.LeasesRejected(leases=[lease(models.LeaseRejected, "c", reason="no")])
    assert call("reject_messages", rejected).outcomes == ["dead"]
    old = models.LeasesDone(leases=[lease(models.LeaseHeld, "b")])
    assert call("finish_messages", old).outcomes == ["stale"]
    dead = site.get("/v1/dead", source="timeline", name="langs")["letters"]
    assert [letter["reason"] for letter in dead] == ["no"]


def test_every_message_once_by_many_receivers(site: Site) -> None:
    """B27, B13: four programs at once, in batches; nothing twice, nothing lost."""
    path = fresh(site, "many")

    async def fill() -> None:
        async with connect(site.node.bootstrap) as client:
            await client.timeline("many").schedule_many([Draft(b"%d" % n) for n in range(2_000)])

    def work(name: str) -> list[str]:
        seen: list[str] = []
        while got := received(site, path, consumer=name, wait_ms=1_500):
            seen += [each["body"]["data"] for each in got]
            answer = site.send("POST", f"{path}/done", {"leases": leases(got)})
            assert set(answer.json()["outcomes"]) == {"ok"}
        return seen

    asyncio.run(fill())
    with concurrent.futures.ThreadPoolExecutor() as threads:
        parts = list(threads.map(work, ["a", "a", "b", "c"]))
    seen = [body for part in parts for body in part]
    assert sorted(seen, key=int) == [str(n) for n in range(2_000)]
    assert site.send("DELETE", path).status_code == 204


def test_a_caller_that_hangs_up_loses_nothing(site: Site) -> None:
    """B27: a connection that ends while it waits takes no message along."""
    path = fresh(site, "hangs")
    url = httpx.URL(site.node.http_url)
    body = b'{"wait_ms": 30000, "consumer": "gone", "limit": 10}'
    head = f"POST {path}/receive HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((url.host, url.port)) as raw:
        raw.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_for("the consumer", lambda: site.get(path)["consumers"] == 1)
    wait_for("its end", lambda: site.get(path)["consumers"] == 0)
    site.send("POST", f"{path}/messages", {"body": "x"})
    (message,) = received(site, path)
    assert message["attempt"] == 1
    assert site.send("DELETE", path).status_code == 204


@pytest.mark.parametrize(
    ("verb", "body", "says"),
    [
        ("receive", {"limit": 0}, "limit"),
        ("receive", {"limit": 1_001}, "limit"),
        ("receive", {"wait_ms": 30_001}, "wait_ms"),
        ("receive", {"wait_ms": -1}, "wait_ms"),
        ("receive", {"lease_ms": 1}, "lease"),
        ("receive", {"lease_ms": 2**31 - 1}, "lease"),
        ("receive", {"consumer": ""}, "consumer"),
        ("receive", {"consumer": "a\0b"}, "consumer"),
        ("receive", {"consumer": "x" * 101}, "consumer"),
        ("receive", {"colour": 1}, "colour"),
        ("done", {"leases": []}, "leases"),
        ("done", {"leases": [{"id": -1, "version": 1}]}, "id"),
        ("done", {"leases": [{"id": 2**63, "version": 1}]}, "id"),
        ("done", {"leases": [{"id": 1, "version": 2**31}]}, "version"),
        ("done", {"leases": [{"id": 1, "version": 1}] * 2}, "twice"),
        ("retry", {"leases": [{"id": 1, "version": 1, "delay_ms": -1}]}, "delay_ms"),
        ("retry", {"leases": [{"id": 1, "version": 1, "reason": "x" * 2_001}]}, "reason"),
        ("extend", {"leases": [{"id": 1, "version": 1}], "lease_ms": 0}, "lease_ms"),
        ("extend", {"leases": [{"id": 1, "version": 1}], "lease_ms": 2**31 - 1}, "longer"),
        ("dead", {"leases": [{"id": 1}]}, "version"),
    ],
)
def test_what_does_not_fit_is_told_and_changes_nothing(
    site: Site, verb: str, body: Any, says: str
) -> None:
    """B27, R3, R6: at its entry, with what is wrong."""
    path = "/v1/timelines/odd"
    site.send("POST", "/v1/timelines", {"timeline": "odd"})
    assert says in site.refused(400, "POST", f"{path}/{verb}", body)
    assert site.get(path)["leased"] == 0
    assert site.send("DELETE", path).status_code == 204
    wait_for("its end", lambda: not site.get("/v1/timelines")["timelines"])


def test_half_a_character_and_strangers(site: Site, signed_site: Site) -> None:
    """B27, R4, R6: no JSON, no token, no timeline."""
    path = fresh(site, "half")
    for raw in (b'{"consumer": "\\ud800"}', b'{"consumer": "\xff"}', b"{", b""):
        answer = site.client.post(
            f"{path}/receive", content=raw, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, answer.text
    assert site.client.post(f"{path}/receive", data={"limit": "1"}).status_code == 415
    site.refused(404, "POST", "/v1/timelines/none/receive", {})
    site.refused(404, "POST", "/v1/timelines/none/done", {"leases": [{"id": 1, "version": 1}]})
    assert site.send("DELETE", path).status_code == 204

    for verb in ("receive", "extend", "done", "retry", "dead"):
        signed_site.refused(401, "POST", f"/v1/timelines/t/{verb}", {})
    token = {"authorization": f"Bearer {TOKEN}"}
    answer = signed_site.client.post("/v1/timelines/t/receive", json={}, headers=token)
    assert answer.status_code == 404


def test_any_bytes_are_received_as_they_were_sent(site: Site) -> None:
    """B27, R6: what is not text comes in base64, headers too."""
    path = fresh(site, "bytes")
    raw = {"data": "AP/+gA==", "encoding": "base64"}
    header = {"name": "h", "value": raw}
    site.send("POST", f"{path}/messages", {"body": raw, "headers": [header], "key": "k"})
    (message,) = received(site, path)
    assert (message["body"]["encoding"], message["body"]["data"]) == ("base64", raw["data"])
    assert message["headers"][0]["value"]["data"] == raw["data"]
    assert message["key"] == "k"
    assert not message["body"]["truncated"]
    assert site.send("DELETE", path).status_code == 204
