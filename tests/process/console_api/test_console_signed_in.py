"""A node with a token: who may do what, over real HTTP."""

import httpx
from tests.console_kit import TOKEN, Site

#: A stop takes a second; with a page that held it up it would be the grace and more.
BEARER = {"authorization": f"Bearer {TOKEN}"}
READS = ["/v1/overview", "/v1/topics", "/v1/audit", "/v1/live?watch=topics", "/metrics"]
OPEN = ["/livez", "/readyz", "/", "/docs", "/v1/openapi.json", "/v1/session"]


def test_nobody_reads_or_changes_without_the_token(signed_site: Site) -> None:
    """R4: the whole matrix: no token, a wrong one, the right one, by header.

    The node's Kafka door has a login too; its console comes in as `client.user`.
    """
    client = signed_site.client
    for path in READS:
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer nope"}).status_code == 401
    for path in OPEN:
        assert client.get(path).status_code == 200
    change = {"topic": "mine"}
    refused = client.post("/v1/topics", json=change)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "http.token" in refused.json()["error"]["message"]
    assert client.get("/v1/topics", headers=BEARER).json()["topics"] == []
    assert client.post("/v1/topics", json=change, headers=BEARER).status_code == 201
    entry = client.get("/v1/audit", headers=BEARER).json()["entries"][0]
    assert (entry["who"], entry["action"], entry["outcome"]) == ("token", "topic.create", "done")


def test_a_browser_signs_in_and_out(signed_site: Site) -> None:
    """R4: the cookie is HttpOnly and SameSite=Strict, is not the token, and ends on signing out."""
    url = signed_site.node.http_url
    with httpx.Client(base_url=url, headers={"origin": url}) as browser:
        assert browser.get("/v1/session").json()["signed_in"] is False
        wrong = browser.post("/v1/session", json={"token": "wrong-wrong-wrong"})
        assert wrong.status_code == 401
        answer = browser.post("/v1/session", json={"token": TOKEN})
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert browser.get("/v1/session").json()["signed_in"] is True
        assert browser.get("/v1/topics").status_code == 200
        evil = {"origin": "http://evil.example"}
        forged = browser.post("/v1/topics", json={"topic": "forged"}, headers=evil)
        assert forged.status_code == 403
        made = browser.post("/v1/topics", json={"topic": "by-browser"})
        assert made.status_code == 201
        entries = browser.get("/v1/audit").json()["entries"]
        assert entries[0]["who"] == "session"
        assert (entries[1]["action"], entries[1]["outcome"]) == ("session.create", "done")
        assert "a wrong token" in signed_site.node.log()
        assert browser.delete("/v1/session").status_code == 204
        assert browser.get("/v1/topics").status_code == 401
    log = (signed_site.node.data_dir / "audit.jsonl").read_text()
    assert TOKEN not in log
    assert "wrong-wrong-wrong" not in log
    assert "forged" not in log


def test_names_and_sites_are_checked(signed_site: Site) -> None:
    """R4: a rebound name gets nothing; neither does a page of another site."""
    client = signed_site.client
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    cross = {**BEARER, "sec-fetch-site": "cross-site"}
    assert client.get("/v1/topics", headers=cross).status_code == 403


def test_guessing_is_slowed_down(signed_site: Site) -> None:
    """R4, F46: wrong tokens are throttled, and lock nobody out who has the right one."""
    client = signed_site.client
    statuses = [
        client.post("/v1/session", json={"token": f"guess-number-{n:06}"}).status_code
        for n in range(12)
    ]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert client.post("/v1/session", json={"token": TOKEN}).status_code == 204
    assert client.get("/v1/topics", headers=BEARER).status_code == 200


def test_a_stopping_node_sends_its_readers_away(signed_site: Site) -> None:
    """U5: an open page does not hold a node up; it is told to come again. The last test here."""
    query = {"watch": "topics"}
    with signed_site.client.stream("GET", "/v1/live", params=query, headers=BEARER) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: hello"
        assert signed_site.node.stop() == 0
        assert "event: bye" in list(lines)
