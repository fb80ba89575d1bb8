"""`dovetail pipeline submit`, `results` and `dead`, on a real node."""

import json
from typing import Any

import pytest
from confluent_kafka import Producer
from examples.orders.shop import orders
from tests.conftest import RunningNode
from typer.testing import CliRunner, Result

from dovetail.cli.app import app
from dovetail.teams import FrontEnd, create_topics
from dovetail.teams.graph import cancels_topic

SHOP = "examples.orders.shop:orders"


@pytest.fixture(scope="module", autouse=True)
def topics(node: RunningNode) -> None:
    create_topics(orders, node.bootstrap)


def called(node: RunningNode, *words: str, text: str = "") -> Result:
    command = ["pipeline", *words, "--bootstrap", node.bootstrap]
    return CliRunner().invoke(app, command, input=text)


def answer(node: RunningNode, *words: str, text: str = "") -> Any:
    done = called(node, *words, "--json", text=text)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def written(node: RunningNode, topic: str, key: str, value: bytes | None, **headers: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    named = [(f"dovetail-{name}", text.encode()) for name, text in headers.items()]
    producer.produce(topic, key=key, value=value, headers=named)
    assert producer.flush(30) == 0


def test_submit_says_whether_the_id_was_known(node: RunningNode) -> None:
    """T8, F68, U4: one payload, or one from each line."""
    order = json.dumps({"customer": "Ada", "lines": []})
    assert answer(node, "submit", SHOP, order, "--id", "a") == {"id": "a", "known": False}
    assert answer(node, "submit", SHOP, order, "--id", "a") == {"id": "a", "known": True}
    told = called(node, "submit", SHOP, order, "--id", "a")
    assert "was known and is not done again" in told.stderr
    lines = f"{order}\n\n{order}\n"
    assert answer(node, "submit", SHOP, "-", text=lines) == {"jobs": 2}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("submit", SHOP, "{"), 2, "the payload is not JSON"),
        (("submit", SHOP, "-", "--id", "a"), 2, "- reads many"),
        (("submit", SHOP, "{}", "--team", "no"), 3, "has no team 'no'; it has parse"),
        (("submit", SHOP, "{}", "--id", ""), 2, "must not be empty"),
        (("submit", SHOP, "{}", "--wait", "5x"), 2, "is not a duration"),
        (("cancel", SHOP, ""), 2, "must not be empty"),
        (("cancel", "no such name", "a"), 2, "must be 1 to 60"),
        (("cancel", SHOP, "a", "--reason", "x" * 501), 2, "the limit is 500"),
        (("results", SHOP, "--from", "17"), 2, "give beginning, end or a time"),
        (("results", SHOP, "--team", "no"), 3, "has no team 'no'"),
        (("dead", "replay", SHOP), 2, "give the ids of dead letters, or --all"),
        (("dead", "replay", SHOP, "17"), 2, "'17' is not an id of a dead letter"),
        (("dead", "list", SHOP, "--team", "no"), 3, "has no team 'no'"),
    ],
)
def test_what_is_wrong_is_told(
    node: RunningNode, words: tuple[str, ...], code: int, said: str
) -> None:
    """U7: and nothing is done."""
    done = called(node, *words)
    assert done.exit_code == code, done.output
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


def test_a_bad_line_is_named(node: RunningNode) -> None:
    """U7: by its number, before anything of its portion is sent."""
    done = called(node, "submit", SHOP, "-", text='{"customer": "x"}\nnot json\n')
    assert done.exit_code == 2
    assert "line 2 is not JSON" in done.stderr


def test_results_are_shown_decoded_with_failures(node: RunningNode) -> None:
    """T8, F7c, U4: a line for each, for people and for programs; what cannot be read is said."""
    topic = orders.topics("ship").results
    written(node, topic, "r1", b'"3 items"')
    written(node, topic, "r2", None, kind="rejected", reason="no\x1b[2J money", attempts="2")
    written(node, topic, "r3", b"\xff")
    written(node, topic, "r4", b"", kind="postponed")
    done = called(node, "results", SHOP, "--team", "ship", "--json")
    found = {one["id"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert found["r1"] == {"id": "r1", "team": "ship", "ok": True, "result": "3 items"}
    assert (found["r2"]["kind"], found["r2"]["attempts"]) == ("rejected", 2)
    assert "not a json payload" in found["r3"]["unreadable"]
    assert set(found) == {"r1", "r2", "r3"}
    shown = called(node, "results", SHOP, "--team", "ship", "-n", "2")
    assert len(shown.stdout.splitlines()) == 2
    assert "\x1b" not in shown.stdout
    none = called(node, "results", SHOP, "--team", "ship", "--from", "end")
    assert "no outcomes yet" in none.stderr


def test_dead_letters_are_replayed_once(node: RunningNode) -> None:
    """T6, T8, U4: listed, given to their team again with their attempts, and then gone."""
    topics = orders.topics("price")
    for name in ("d1", "d2", "d3"):
        written(node, topics.dead, name, b"{}", kind="exception", reason="oh", attempts="2")
    where = (SHOP, "--team", "price")
    listed = answer(node, "dead", "list", *where)
    assert [one["job"] for one in listed] == ["d1", "d2", "d3"]
    assert listed[0] == {
        "id": "0:0",
        "job": "d1",
        "kind": "exception",
        "attempts": 2,
        "reason": "oh",
    }

    assert answer(node, "dead", "replay", *where, "0:1") == {"replayed": 1, "left": []}
    again = called(node, "dead", "replay", *where, "0:1")
    assert again.exit_code == 1
    assert "no longer exists" in again.stderr
    assert [one["job"] for one in answer(node, "dead", "list", *where)] == ["d1", "d3"]
    assert answer(node, "dead", "drop", *where, "0:0", "--yes") == {"dropped": 1, "left": []}
    assert answer(node, "dead", "replay", *where, "--all") == {"replayed": 1, "left": []}
    assert answer(node, "dead", "list", *where) == []

    consumed = CliRunner().invoke(
        app, ["consume", topics.input, "--json", "--bootstrap", node.bootstrap]
    )
    jobs = [json.loads(line) for line in consumed.stdout.splitlines()]
    assert sorted(one["key"] for one in jobs) == ["d2", "d3"]
    assert all("dovetail-attempts" in json.dumps(one["headers"]) for one in jobs)


def test_jobs_are_cancelled_by_the_name_of_their_pipeline(node: RunningNode) -> None:
    """T17, U4: or by its module; the record is where the tasks of all teams look."""
    for where in (SHOP, "orders"):
        assert answer(node, "cancel", where, "c1", "c2", "--reason", "why") == {
            "cancelled": ["c1", "c2"]
        }
    found = CliRunner().invoke(
        app, ["consume", cancels_topic("orders"), "--json", "--bootstrap", node.bootstrap]
    )
    records = [json.loads(line) for line in found.stdout.splitlines()]
    assert [one["key"] for one in records] == ["c1", "c2"] * 2


def test_submit_can_wait_for_the_result(node: RunningNode) -> None:
    """T8: printed as JSON; a result of the same id is looked up."""
    order = json.dumps({"customer": "Bob", "lines": []})
    with FrontEnd(orders, node.bootstrap) as front:
        front.submit(json.loads(order), "w")
    written(node, orders.topics("ship").results, "w", b'{"n": 1}')
    done = called(node, "submit", SHOP, order, "--id", "w", "--wait", "30s")
    assert json.loads(done.stdout) == {"n": 1}, done.stderr
    late = called(node, "submit", SHOP, order, "--wait", "300ms")
    assert late.exit_code == 1
    assert "has no result from" in late.stderr
