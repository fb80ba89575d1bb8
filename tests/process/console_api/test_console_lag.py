"""The lag of a group is one figure, whoever is asked."""

import json
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.console_kit import Site
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
        assert deleted.result(10).low_watermark == 5

    assert everywhere(site) == {6 + 8 + 1}
    for found in (on_the_command_line(site), site.get(f"/v1/groups/{GROUP}")):
        rows = {row["partition"]: row for row in found["partitions"] if row["topic"] == TOPIC}
        assert [rows[n]["lag"] for n in range(3)] == [6, None, 8]

    assert site.send("DELETE", f"/v1/topics/{TOPIC}").status_code == 204
    assert everywhere(site) == {1}, "a topic that is gone counts for nothing"
    assert site.send("DELETE", f"/v1/groups/{GROUP}").status_code == 204
