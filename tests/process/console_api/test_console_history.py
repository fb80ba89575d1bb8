"""What a node keeps of its last hour, over HTTP."""

from confluent_kafka import Consumer, TopicPartition
from tests.console_kit import Site, wait_for

TOPIC, GONE, GROUP = "of-the-hour", "gone-within-the-hour", "with/an hour"


def test_lag_is_kept_by_the_rule_of_lag(site: Site) -> None:
    """U5, F79: over time as in the list: a partition without a position is not in it, and a topic
    that was deleted does not count any more. What is kept of a group that nobody knows is nothing.
    """
    site.make_topic(TOPIC, 2)
    site.make_topic(GONE)
    for _ in range(6):
        body = {"value": "x", "partition": 1}
        assert site.send("POST", f"/v1/topics/{TOPIC}/messages", body).status_code == 201
    site.produce(GONE, b"x", b"x")
    consumer = Consumer({"bootstrap.servers": site.node.bootstrap, "group.id": GROUP})
    places = [TopicPartition(TOPIC, 1, 2), TopicPartition(GONE, 0, 0)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()
    path = f"/v1/groups/{GROUP.replace('/', '%2F')}/history"

    def last() -> float | None:
        lag = site.get(path)["lag"]
        return lag[-1] if lag else None

    wait_for("both topics count", lambda: last() == 6)
    assert site.send("DELETE", f"/v1/topics/{GONE}").status_code == 204
    wait_for("one topic counts", lambda: last() == 4)
    found = site.get(path)
    assert (found["here"], found["node_id"], found["step_ms"]) == (True, 1, 15_000)
    of_topic = [row for row in found["partitions"] if row["topic"] == TOPIC]
    assert [(row["partition"], row["lag"][-1]) for row in of_topic] == [(1, 4)]
    (row,) = [row for row in site.get("/v1/groups")["groups"] if row["group"] == GROUP]
    assert row["lag"] == 4
    assert site.get("/v1/groups/nobody/history")["lag"] == []

    assert site.send("DELETE", f"/v1/groups/{GROUP.replace('/', '%2F')}").status_code == 204
    assert site.send("DELETE", f"/v1/topics/{TOPIC}").status_code == 204


def test_the_hour_has_equal_steps(site: Site) -> None:
    """U5: as fine as is asked for; the sum of lag, and figures of the process."""

    def known(name: str) -> list[float]:
        figures = site.get("/v1/history")["figures"]
        return [value for value in figures[name] if value is not None]

    wait_for("two samples", lambda: bool(known("processor")))
    found = site.get("/v1/history", step_s=60)
    assert {len(values) for values in found["figures"].values()} == {60}
    assert found["first_ms"] % 60_000 == 0
    assert known("memory_bytes")[-1] > 1024**2
    assert known("connections")[-1] >= 1
    assert known("lag")[-1] >= 0
    refused = site.client.get("/v1/history", params={"step_s": 1})
    assert refused.status_code == 400
