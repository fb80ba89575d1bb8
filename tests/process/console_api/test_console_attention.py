"""What needs attention is told alike by the console, `doctor` and `top`."""

import json
import os
import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from tests.console_kit import Site, wait_for
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.cli.outcome import ExitCode

GROUP, TIMELINE = "nobody-reads", "nobody-handles"


def in_the_console(site: Site) -> dict[tuple[str, str], dict[str, Any]]:
    rows = site.get("/v1/overview")["attention"]
    return {(row["noun"], row["where"]): row for row in rows}


def run(site: Site, *arguments: str) -> tuple[int, Any]:
    """A command that is pointed at the node, and its JSON."""
    env = {name: None for name in os.environ if name.startswith("DOVETAIL_")} | {
        "DOVETAIL_KAFKA_PORT": site.node.bootstrap.rpartition(":")[2],
        "DOVETAIL_HTTP_PORT": site.node.http_url.rpartition(":")[2],
    }
    done = CliRunner().invoke(app, [*arguments, "--json"], env=env, catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout)


def test_everybody_tells_of_the_same_trouble(site: Site) -> None:
    """F87: a group without members, messages overdue without consumers and dead letters are told
    by the overview, `doctor` and `top`, with what to do; and not any more when they are gone."""
    site.make_topic("unread")
    site.produce("unread", *[b"x"] * 7)
    consumer = Consumer({"bootstrap.servers": site.node.bootstrap, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("unread", 0, 2)], asynchronous=False)
    consumer.close()
    assert site.send("POST", "/v1/timelines", {"timeline": TIMELINE}).status_code == 201
    stored = site.send("POST", f"/v1/timelines/{TIMELINE}/messages", {"body": "late"})
    assert stored.status_code == 201, stored.text

    trouble = {("group", GROUP): "5 records", ("timeline", TIMELINE): "1 message overdue"}
    # How many is up to the tests before this one.
    trouble |= {("dead", "invoices"): "dead letter"}

    def all_told() -> bool:
        time.sleep(0.5)  # A message is overdue after ten seconds; asking less often costs less.
        return trouble.keys() <= in_the_console(site).keys()

    wait_for("all are told", all_told)
    told = in_the_console(site)
    for about, what in trouble.items():
        assert what in told[about]["what"]
        assert told[about]["todo"]
    oldest_ms = site.get(f"/v1/timelines/{TIMELINE}")["oldest_due_ms"]
    assert told["timeline", TIMELINE]["since_ms"] == oldest_ms
    assert site.get("/v1/overview")["health"] == "failing"

    code, found = run(site, "doctor", "--sample", "10ms")
    rows = {row["check"]: row for row in found["checks"] if row["state"] in ("warning", "failed")}
    assert code == ExitCode.FAILED
    assert f"{GROUP}: has no members and 5 records" in rows["groups"]["text"]
    assert "no consumer is connected" in rows["timelines"]["text"]

    _, picture = run(site, "top", "--once", "--interval", "100ms")
    shown = {row["where"]: row["needs_attention"] for row in picture["attention"]}
    assert "5 records" in shown[f"group {GROUP}"]
    assert "overdue" in shown[f"timeline {TIMELINE}"]

    assert site.send("DELETE", f"/v1/groups/{GROUP}").status_code == 204
    assert site.send("DELETE", f"/v1/timelines/{TIMELINE}").status_code == 204
    assert site.send("DELETE", "/v1/topics/unread").status_code == 204
    wait_for("well again", lambda: not {("group", GROUP)} & in_the_console(site).keys())
    assert ("timeline", TIMELINE) not in in_the_console(site)
