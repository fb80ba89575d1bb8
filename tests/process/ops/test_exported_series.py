"""What real processes export, against docs/metrics.md, the alerts and the dashboards."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine
from tests import metrics_table, warm_python
from tests.conftest import RunningNode
from tests.monitoring import Expression, alert_rules, all_expressions

import dovetail
from dovetail.outbox import Producer as OutboxProducer
from dovetail.outbox.schema import create_tables
from dovetail.timeline.config import TimelineConfig

SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Scraped:
    """The families of one scrape: type, and the label sets that were seen."""

    types: dict[str, str]
    labels: dict[str, list[dict[str, str]]]


def scrape(url: str) -> Scraped:
    types: dict[str, str] = {}
    labels: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(httpx.get(url, timeout=10).text):
        name = family.name + ("_total" if family.type == "counter" else "")
        types[name] = family.type
        labels[name] = [
            {k: v for k, v in sample.labels.items() if k != "le"} for sample in family.samples
        ]
    return Scraped(types, labels)


def use_log(bootstrap: str) -> None:
    """A topic with records and one that was refused, and a group that has read some of them."""
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 4_000_000})
    producer.produce("orders", value=bytes(3_000_000))
    for number in range(10):
        producer.produce("orders", value=str(number))
    assert producer.flush(SECONDS_MAX) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    record = consumer.poll(SECONDS_MAX)
    assert record is not None
    assert record.error() is None
    consumer.commit(asynchronous=False)
    consumer.close()


async def use_timeline(bootstrap: str) -> None:
    """A message that is handled, one that dies, one that waits, and one that is refused."""
    handled, died = asyncio.Event(), asyncio.Event()
    async with dovetail.connect(bootstrap) as client:
        timeline = client.timeline("reminders")
        await timeline.create(TimelineConfig(attempts_max=1, body_bytes_max=64))

        @client.consumer("reminders")
        async def handle(message: Any) -> None:
            if message.body == b"bad":
                died.set()
                raise ValueError("as the test wants it")
            handled.set()

        await timeline.schedule(b"good")
        await timeline.schedule(b"bad")
        await timeline.schedule(b"later", delay="1h")
        with pytest.raises(dovetail.errors.InvalidInput):
            await timeline.schedule(b"x" * 65)
        async with asyncio.timeout(SECONDS_MAX):
            await asyncio.gather(handled.wait(), died.wait())
            while not await timeline.dead():
                await asyncio.sleep(0.02)


def use_relay(folder: Path, bootstrap: str) -> Scraped:
    """A message through a relay that is a process of its own; what that exports."""
    database = folder / "shop.db"
    create_tables(create_engine(f"sqlite:///{database}"))
    connection = sqlite3.connect(database)
    with connection:
        OutboxProducer("orders", backend="db").publish({"id": 1}, on=connection)
    connection.close()
    plain = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    told = {
        "DOVETAIL_METRICS_ENABLED": "true",
        "DOVETAIL_METRICS_PORT": "0",
        "DOVETAIL_LOGGING_FORMAT": "json",
    }
    command = [sys.executable, "-m", "dovetail", "relay", "-d", f"sqlite:///{database}"]
    with warm_python.Popen(
        [*command, "--bootstrap", bootstrap],
        env={**plain, **told},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        timer = threading.Timer(SECONDS_MAX, process.kill)
        timer.start()
        try:
            assert process.stderr is not None
            lines = (json.loads(line) for line in process.stderr)
            url = next(line["url"] for line in lines if line["message"] == "metrics served")
            deadline = time.monotonic() + SECONDS_MAX
            while not (found := scrape(url)).labels["dovetail_outbox_sent_total"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            return found
        finally:
            process.terminate()
            process.communicate()
            timer.cancel()


@pytest.fixture(scope="module")
def scraped(
    node: RunningNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scraped]]:
    """What the processes export after some work."""
    use_log(node.bootstrap)
    asyncio.run(use_timeline(node.bootstrap))
    relay = use_relay(tmp_path_factory.mktemp("relay"), node.bootstrap)
    deadline = time.monotonic() + SECONDS_MAX
    wanted = {"timeline": "reminders", "state": "dead"}
    while True:
        found = scrape(f"{node.http_url}/metrics")
        if wanted in found.labels["dovetail_timeline_messages_now"]:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield {"node": found, "relay": relay}


@pytest.fixture(scope="module")
def known() -> dict[str, list[metrics_table.Series]]:
    return metrics_table.exporters()


def test_the_table_is_of_today(known: dict[str, list[metrics_table.Series]]) -> None:
    """U6, B17, O9, S11, T11: docs/metrics.md; `python -m tests.metrics_table --write` renews it."""
    made = metrics_table.BEGIN + metrics_table.table(known) + metrics_table.END
    assert made in metrics_table.DOC.read_text()


@pytest.mark.parametrize("exporter", ["node", "relay"])
def test_a_real_process_exports_what_the_table_says(
    exporter: str, scraped: dict[str, Scraped], known: dict[str, list[metrics_table.Series]]
) -> None:
    """U6, O9: the same names, types and labels, none more and none less."""
    ours = {one.name: one for one in known[exporter]}
    found = scraped[exporter]
    assert {name for name in found.types if name.startswith("dovetail_")} == {
        name for name in ours if name.startswith("dovetail_")
    }
    assert "process_resident_memory_bytes" in found.types
    for name, one in ours.items():
        assert found.types[name] == one.type
        for labels in found.labels[name]:
            assert set(labels) == set(one.labels), name


def test_names_follow_the_rules(known: dict[str, list[metrics_table.Series]]) -> None:
    """U6: one prefix, base units, `_total` on what grows and on nothing else; no name twice."""
    every = [one for listed in known.values() for one in listed if "process_" not in one.name]
    # Background work is the same thing in every process.
    names = [one.name for one in every if not one.name.startswith("dovetail_background_")]
    assert len(names) == len(set(names))
    for one in every:
        assert one.name.startswith("dovetail_")
        assert one.name.endswith("_total") is (one.type == "counter")
        assert not any(unit in one.name for unit in ("_ms", "_millis", "_kb", "_mb", "_percent"))
        assert one.meaning.endswith("."), one.name
        if one.type == "histogram":
            assert one.name.endswith(("_seconds", "_entries")), one.name


def test_every_series_of_the_design_notes_is_there(
    known: dict[str, list[metrics_table.Series]],
) -> None:
    """B17: each name of the notes' list has its series, and each of those exists."""
    ours = {one.name for listed in known.values() for one in listed}
    assert ours >= metrics_table.NOTES.keys()
    notes = " ".join(metrics_table.NOTES.values())
    for family in ("Topic_commands", "topic_Leases", "broker_commands", "storage_queries"):
        assert f"{family}_count" in notes
        assert f"{family}_errors" in notes
    assert "Network_broker_latency_ms (storage, sync)" in notes


def test_store_commands_are_counted_by_kind(scraped: dict[str, Scraped]) -> None:
    """B17: op, type and filter of every command of the store; bytes and ways by partner."""
    labels = scraped["node"].labels
    kinds = {
        (each["op"], each["type"], each["filter"])
        for each in labels["dovetail_timeline_store_seconds"]
        if each["timeline"] == "reminders"
    }
    assert kinds >= {
        ("insert", "lookup", "all"),
        ("lease", "range", "available"),
        ("delete", "lookup", "processing"),
        ("release", "lookup", "processing"),
        ("dead", "range", "dead"),
    }
    moved = {
        (each["direction"], each["partner"])
        for each in labels["dovetail_timeline_network_bytes_total"]
    }
    assert moved == {
        ("in", "producer"),
        ("out", "storage"),
        ("in", "storage"),
        ("out", "consumer"),
    }
    assert {each["op"] for each in labels["dovetail_coordination_seconds"]} >= {"get", "transact"}


@pytest.mark.parametrize("expression", all_expressions(), ids=lambda one: one.place)
def test_alerts_and_dashboards_ask_for_what_is_exported(
    expression: Expression, known: dict[str, list[metrics_table.Series]]
) -> None:
    """U6: every series and every label in an expression is one that a process exports."""
    labels_by_name = {
        name: set(one.labels) | {"job", "instance"} | ({"le"} if "_bucket" in name else set())
        for listed in known.values()
        for one in listed
        for name in one.names
    }
    labels_by_name["up"] = {"job", "instance"}
    for rule in alert_rules():
        if "record" in rule:
            labels_by_name[rule["record"]] = {"group", "topic", "partition"}
    used = expression.selectors()
    assert used, "an expression about nothing"
    offered: set[str] = set()
    for name, matched in used:
        assert name in labels_by_name, f"{name} is exported by nobody"
        assert matched <= labels_by_name[name], f"{name} has no label {matched}"
        offered |= labels_by_name[name]
    assert expression.grouped() <= offered


@pytest.mark.parametrize("expression", all_expressions(), ids=lambda one: one.place)
def test_values_in_expressions_are_values_that_exist(
    expression: Expression, scraped: dict[str, Scraped]
) -> None:
    """U6: a state or an operation that an expression names has been exported under that name."""
    for name, label, value in expression.equalities():
        if name.startswith(("up", "dovetail_team", "dovetail:")) or value.startswith("$"):
            continue
        base = name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")
        found = scraped["relay" if "outbox" in name else "node"].labels[base]
        assert value in {each.get(label) for each in found}, f"{name}{{{label}={value!r}}}"


def test_group_positions_are_exported(scraped: dict[str, Scraped]) -> None:
    """U6: where a group stands, for the rule that joins it with the ends of partitions."""
    wanted = {"group": "billing", "topic": "orders", "partition": "0"}
    assert wanted in scraped["node"].labels["dovetail_group_position_offset"]
    assert wanted in scraped["node"].labels["dovetail_group_lag_records"]
