"""Users, access rules and connections over HTTP."""

from typing import Any

from confluent_kafka import Consumer, Producer
from tests.console_kit import TOKEN, WAIT_SECONDS_MAX, Site, wait_for

BEARER = {"authorization": f"Bearer {TOKEN}"}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "admin",
    "sasl.password": "let-the-console-in",
}


def get(site: Site, path: str) -> Any:
    answer = site.client.get(path, headers=BEARER)
    assert answer.status_code == 200, answer.text
    return answer.json()


def send(site: Site, method: str, path: str, body: Any = None) -> int:
    return site.client.request(method, path, json=body, headers=BEARER).status_code


def test_users_and_rules_are_shown_and_changed(signed_site: Site) -> None:
    """U5, R4: what is in force, who can log in, who may do what; each change is audited."""
    shown = get(signed_site, "/v1/access")
    assert (shown["login"], shown["authorize"]) == ("scram-sha-512", False)
    assert shown["admins"] == [user["user"] for user in shown["users"]] == ["admin"]
    assert shown["rules"] == []

    rule = {"user": "shop", "operation": "write", "kind": "topic", "name": "orders*"}
    assert send(signed_site, "POST", "/v1/access/rules", rule) == 204
    assert send(signed_site, "POST", "/v1/access/rules", rule) == 204
    (found,) = get(signed_site, "/v1/access")["rules"]
    assert found == rule | {"rule": "allow", "host": "*"}
    assert send(signed_site, "POST", "/v1/access/rules/remove", rule | {"rule": "deny"}) == 404
    assert send(signed_site, "POST", "/v1/access/rules/remove", rule) == 200
    assert get(signed_site, "/v1/access")["rules"] == []

    for wrong in ({"operation": "fly"}, {"kind": "cluster"}, {"user": ""}, {"name": "a\0b"}):
        assert send(signed_site, "POST", "/v1/access/rules", rule | wrong) == 400, wrong
    assert send(signed_site, "DELETE", "/v1/access/users/nobody") == 409
    entries = get(signed_site, "/v1/audit")["entries"]
    assert {"rule.add", "rule.remove", "user.delete"} <= {entry["action"] for entry in entries}


def test_who_is_connected_is_listed(signed_site: Site) -> None:
    """U5: producers and consumers by their names, users and libraries; gone when they are."""
    config = {"bootstrap.servers": signed_site.node.bootstrap, **LOGIN}
    producer = Producer({**config, "client.id": "till"})
    producer.produce("sold", b"one")
    assert producer.flush(WAIT_SECONDS_MAX) == 0
    consumer = Consumer({**config, "client.id": "books", "group.id": "books"})
    consumer.subscribe(["sold"])

    def found() -> dict[tuple[str, bool, bool], Any]:
        consumer.poll(0.1)
        rows = get(signed_site, "/v1/clients?filter=oo")["clients"]
        rows += get(signed_site, "/v1/clients?filter=till&sort=-silent")["clients"]
        return {(row["client"], row["produces"], row["fetches"]): row for row in rows}

    wait_for("both", lambda: found().keys() >= {("till", True, False), ("books", False, True)})
    row = found()["till", True, False]
    assert (row["user"], row["software"].split()[0]) == ("admin", "confluent-kafka-python")
    assert row["connected_ms"] >= row["silent_ms"] >= 0
    consumer.close()
    wait_for("gone", lambda: not get(signed_site, "/v1/clients?filter=books")["clients"])
