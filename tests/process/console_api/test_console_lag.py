"""The lag of a group is one figure, whoever is asked."""

import json
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, Message, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from prometheus_client.parser import text_string_to_metric_families
from tests.console_kit import Site, wait_for
from typer.testing import CliRunner

from dovetail.cli.app import app
from dovetail.cli.options import Target
from dovetail.cli.top.looking import KafkaSource

TOPIC, GROUP = "lagged", "lagging"


def on_the_command_line(site: Site) -> Any:
    """What `dovetail group describe --json` prints."""
    done = CliRunner().invoke(
        app, ["group", "describe", GROUP, "--json", "--bootstrap", site.node.bootstrap]
    )
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def in_the_list(site: Site) -> Any:
    (row,) = [row for row in site.get("/v1/groups")["groups"] if row["group"] == GROUP]
    return row


def in_top(site: Site) -> Any:
    looks = KafkaSource(Target(site.node.bootstrap, 10.0)).look()
    (row,) = [row for row in looks["groups"].rows if row["group"] == GROUP]
    return row


def everywhere(site: Site) -> set[int | None]:
    shown = site.get(f"/v1/groups/{GROUP}")
    lags = [on_the_command_line(site), in_the_list(site), shown, in_top(site)]
    return {found["lag"] for found in lags}


def test_lag_is_the_same_from_every_side(site: Site) -> None:
    """F79: command line, console list, console page and `top` follow one rule.

    Partition 0 has a position, partition 1 has none, partition 2 has one below records that were
    deleted since; another topic has one, too.
    """
    assert site.send("POST", "/v1/topics", {"topic": TOPIC, "partitions": 3}).status_code == 201
    for partition in range(3):
        for number in range(10):
            body = {"value": str(number), "partition": partition}
            assert site.send("POST", f"/v1/topics/{TOPIC}/messages", body).status_code == 201
    consumer = Consumer({"bootstrap.servers": site.node.bootstrap, "group.id": GROUP})
    positions = [TopicPartition(TOPIC, 0, 4), TopicPartition(TOPIC, 2, 2)]
    elsewhere = TopicPartition("orders", 0, 9)
    consumer.commit(offsets=[*positions, elsewhere], asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": site.node.bootstrap})
    for deleted in admin.delete_records([TopicPartition(TOPIC, 2, 5)]).values():
        assert deleted.result(60).low_watermark == 5

    assert everywhere(site) == {6 + 8 + 1}
    for found in (on_the_command_line(site), site.get(f"/v1/groups/{GROUP}")):
        rows = {row["partition"]: row for row in found["partitions"] if row["topic"] == TOPIC}
        assert [rows[n]["lag"] for n in range(3)] == [6, None, 8]

    assert site.send("DELETE", f"/v1/topics/{TOPIC}").status_code == 204
    assert everywhere(site) == {1}, "a topic that is gone counts for nothing"
    assert site.send("DELETE", f"/v1/groups/{GROUP}").status_code == 204


def test_a_share_group_shows_as_others_do(site: Site) -> None:
    """K10: lag without what was accepted out of order, what is in flight, and its deliveries; the
    same on the command line and in the console; it moves and is deleted as others are."""
    name = "shared-lag"
    assert site.send("POST", "/v1/topics", {"topic": name, "partitions": 1}).status_code == 201
    for number in range(6):
        body = {"value": str(number), "partition": 0}
        assert site.send("POST", f"/v1/topics/{name}/messages", body).status_code == 201
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": site.node.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)
    member = ShareConsumer(
        {
            "bootstrap.servers": site.node.bootstrap,
            "group.id": name,
            "share.acknowledgement.mode": "explicit",
        }
    )
    member.subscribe([name])
    got = _six(member)
    for message in got:
        if message.offset() in (3, 4):
            member.acknowledge(message, AcknowledgeType.ACCEPT)
    assert all(error is None for error in member.commit_sync().values())

    shown = site.get(f"/v1/groups/{name}")
    (row,) = [row for row in site.get("/v1/groups")["groups"] if row["group"] == name]
    done = CliRunner().invoke(
        app, ["group", "describe", name, "--bootstrap", site.node.bootstrap, "--json"]
    )
    told = json.loads(done.stdout)
    assert (shown["lag"], row["lag"], told["lag"]) == (4, 4, 4)
    assert (shown["shares"], row["shares"], told["members"]) == (True, True, 1)
    wait_for(
        "it is the same over time",
        lambda: site.get(f"/v1/groups/{name}/history")["lag"][-1:] == [4],
    )
    (partition,) = told["partitions"]
    assert (partition["committed"], partition["end"]) == (0, 6)
    assert (partition["in_flight"], partition["deliveries"]) == (4, 1)
    plain = CliRunner().invoke(app, ["group", "describe", name, "--bootstrap", site.node.bootstrap])
    assert "in flight" in plain.stdout, plain.output
    assert "acquired 6, accepted 2" in plain.stdout, plain.output
    assert (shown["outcomes"]["acquired"], told["outcomes"]["accepted"]) == (6, 2)
    assert _metrics(site, name) == {"acquired": 6.0, "accepted": 2.0, "now acquired": 4.0}

    words = ["group", "reset", name, "--to", "5", "--bootstrap", site.node.bootstrap]
    assert CliRunner().invoke(app, words).exit_code != 0
    for message in got:
        if message.offset() not in (3, 4):
            member.acknowledge(message, AcknowledgeType.RELEASE)
    member.close()
    assert _metrics(site, name)["released"] == 4.0
    assert CliRunner().invoke(app, words).exit_code == 0
    moved = site.get(f"/v1/groups/{name}")
    assert (moved["lag"], moved["partitions"][0]["committed"]) == (1, 5)
    assert site.send("DELETE", f"/v1/groups/{name}", None).status_code == 204
    assert name not in [row["group"] for row in site.get("/v1/groups")["groups"]]


def _metrics(site: Site, group: str) -> dict[str, float]:
    """What the node exports of a share group, without what is 0."""
    found = {}
    for family in text_string_to_metric_families(site.client.get("/metrics").text):
        for sample in family.samples:
            if sample.name.startswith("dovetail_share_") and sample.labels["group"] == group:
                event = sample.labels.get("event") or f"now {sample.labels['state']}"
                found[event] = sample.value
    return {event: value for event, value in found.items() if value}


def _six(member: ShareConsumer) -> list[Message]:
    for _ in range(150):
        found = list(member.poll(0.2))
        if found:
            assert len(found) == 6
            return found
    raise AssertionError("nothing was delivered")
