"""Every series that a process of ours exports, and the table of them in docs/metrics.md.

`python -m tests.metrics_table` prints the table; with `--write` it puts it into the document,
between its two marks. A test fails when the table there is not up to date, and another when a real
process exports something else.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from dovetail.election.metrics import ElectionMetrics
from dovetail.exposition import BackgroundCollector
from dovetail.node.node import Node
from dovetail.outbox.metrics import RelayMetrics
from dovetail.settings import Flag, load_settings
from dovetail.stream.metrics import StreamMetrics
from dovetail.supervision import Supervisor
from dovetail.teams.metrics import PipelineMetrics

ROOT = Path(__file__).parent.parent
DOC = ROOT / "docs" / "metrics.md"
BEGIN = "<!-- series: begin -->\n"
END = "<!-- series: end -->\n"

#: The names of the timelines' design notes, by ours.
NOTES = {
    "dovetail_timeline_commands_total": "Topic_commands_count",
    "dovetail_timeline_command_errors_total": "Topic_commands_errors",
    "dovetail_timeline_messages_total": "topic_Messages_count",
    "dovetail_timeline_message_errors_total": "topic_messages_errors",
    "dovetail_timeline_messages_now": "topic_Available_messages_count (state=due)",
    "dovetail_timeline_waiting_messages": "topic_Waiting_messages_count_bucket",
    "dovetail_timeline_leases_total": "topic_Leases_count",
    "dovetail_timeline_lease_errors_total": "topic_Leases_errors",
    "dovetail_timeline_lease_body_bytes_total": "topic_Leases_body_total_bytes",
    "dovetail_timeline_requests_total": "broker_commands_count",
    "dovetail_timeline_request_errors_total": "broker_commands_errors",
    "dovetail_timeline_clock_drifts": "broker_Active_timedrifts_count",
    "dovetail_timeline_clock_drift_seconds": "broker_Active_timedrifts_seconds_avg",
    "dovetail_timeline_degradations": "broker_Degradation_state",
    "dovetail_timeline_store_seconds": "storage_queries_count, storage_query_duration_ms",
    "dovetail_timeline_store_errors_total": "storage_queries_errors",
    "dovetail_timeline_network_bytes_total": "Network_broker_bytes_total (others)",
    "dovetail_coordination_bytes_total": "Network_broker_bytes_total (sync)",
    "dovetail_timeline_client_latency_seconds": "Network_broker_latency_ms (producer, consumer)",
    "dovetail_timeline_partner_latency_seconds": "Network_broker_latency_ms (storage, sync)",
    "dovetail_connections": "network_broker_tcp_connections_total",
    "dovetail_timeline_channels": "Networkbroker_active_channels_total",
    "dovetail_timeline_channel_errors_total": "Networkbroker_active_channels_errors",
}


@dataclass(frozen=True, slots=True)
class Series:
    """One series as Prometheus knows it."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def names(self) -> frozenset[str]:
        """What an expression can ask for."""
        if self.type == "histogram":
            return frozenset(f"{self.name}{end}" for end in ("_bucket", "_count", "_sum"))
        return frozenset({self.name})


def series_of(registry: CollectorRegistry) -> list[Series]:
    """What a registry exports, whether anything was counted or not."""
    found: dict[str, Series] = {}
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            labels = tuple(collector._labelnames)
            rows = [(collector._name, collector._type, labels, collector._documentation)]
        else:
            rows = [
                (family.name, family.type, tuple(family._labelnames), family.documentation)
                for family in collector.collect()
            ]
        for name, kind, labels, meaning in rows:
            full = name + ("_total" if kind == "counter" else "")
            found[full] = Series(full, kind, labels, meaning)
    return sorted(found.values(), key=lambda one: one.name)


async def _node() -> list[Series]:
    with tempfile.TemporaryDirectory() as folder:
        given = {"node.data_dir": folder, "kafka.port": 0, "http.enabled": False}
        flags = [Flag(name, value, name) for name, value in given.items()]
        async with Node(load_settings(flags=flags, environment={}, folder=Path(folder))) as node:
            return series_of(node.registry)


def _supervised(registry: CollectorRegistry) -> CollectorRegistry:
    registry.register(BackgroundCollector(Supervisor()))
    return registry


def exporters() -> dict[str, list[Series]]:
    """The series by the kind of process."""
    return {
        "node": asyncio.run(_node()),
        "relay": series_of(_supervised(RelayMetrics().registry)),
        "stream member": series_of(_supervised(StreamMetrics(ElectionMetrics().registry).registry)),
        "pipeline driver": series_of(_supervised(PipelineMetrics().registry)),
    }


def table(found: dict[str, list[Series]]) -> str:
    """The table in Markdown."""
    return "".join(_lines(found))


def _lines(found: dict[str, list[Series]]) -> Iterator[str]:
    yield "| series | type | labels | meaning | exported by | in the design notes |\n"
    yield "|---|---|---|---|---|---|\n"
    for exporter, listed in found.items():
        for one in listed:
            if one.name.startswith("process_"):
                continue
            labels = ", ".join(f"`{label}`" for label in one.labels)
            note = f"`{NOTES[one.name]}`" if one.name in NOTES else ""
            yield (
                f"| `{one.name}` | {one.type} | {labels} | {one.meaning} | {exporter} | {note} |\n"
            )


def main() -> None:
    made = table(exporters())
    if "--write" not in sys.argv:
        print(made, end="")
        return
    text = DOC.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOC.write_text(text[:start] + made + text[end:])


if __name__ == "__main__":
    main()
