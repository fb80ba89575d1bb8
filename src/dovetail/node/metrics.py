"""The metrics of a node, for Prometheus.

A metric that every request updates costs one addition (`tallies.py`). A metric that can be derived
(ends of partitions, lag of groups, free disk space) is computed at each scrape. `docs/metrics.md`
lists all series.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dovetail import __version__
from dovetail.exposition import Rendered
from dovetail.log.compaction.compactor import Compactor, Pass
from dovetail.log.compaction.plan import Survey
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import GroupState
from dovetail.log.service import Log
from dovetail.log.share.registry import ShareRegistry
from dovetail.log.share.types import COUNTED
from dovetail.node.measured import CoordinationMetrics
from dovetail.node.tallies import Tally, Times
from dovetail.settings import Settings
from dovetail.storage.disk.commands import GroupReport
from dovetail.storage.node import LocalStorageNode
from dovetail.storage.repair.copying import RepairReport
from dovetail.storage.repair.repairer import Repairer

#: From a fast disk's sync to a stalled one, in seconds.
_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

#: What is told of each partition.
_PARTITION_SERIES: Final = {
    "dovetail_partition_start_offset": "First offset.",
    "dovetail_partition_end_offset": "Next offset.",
    "dovetail_partition_bytes": "Bytes that are kept.",
    "dovetail_partition_term": "Term of the owner.",
}

#: What is told of each compacted partition.
_COMPACTION_SERIES: Final[
    tuple[tuple[str, str, Callable[[Survey, Pass | None], float | None]], ...]
] = (
    (
        "dovetail_compaction_dirty_ratio",
        "Part of a compacted partition's closed ledgers that was never compacted.",
        lambda survey, _: survey.dirty_ratio,
    ),
    (
        "dovetail_compaction_dirty_bytes",
        "Bytes of a compacted partition that may be compacted and never were.",
        lambda survey, _: survey.dirty_bytes,
    ),
    (
        "dovetail_compaction_cleaned_offset",
        "Offset that a compacted partition is compacted up to.",
        lambda survey, _: survey.first_dirty,
    ),
    (
        "dovetail_compaction_last_pass_timestamp_seconds",
        "When the last pass over a partition ended, if there was one here.",
        lambda _, last: None if last is None else last.ended_ms / 1000,
    ),
    (
        "dovetail_compaction_last_pass_bytes_per_second",
        "Bytes a second that the last pass over a partition read.",
        lambda _, last: None if last is None else last.bytes_per_second,
    ),
)

# When a series began is of no use here, and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The series of one node, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        self._requests = self._times(
            "dovetail_request_seconds", "Time from a request to its answer.", label="api"
        )
        self._errors = self._counter(
            "dovetail_request_errors", "Error codes answered.", ["api", "code"]
        )
        self._errors_answered = 0
        self._records = self._tally("dovetail_produced_records", "Records taken in.", "topic")
        self._produced_bytes = self._tally(
            "dovetail_produced_bytes", "Bytes of batches taken in.", "topic"
        )
        self._fetched_records = self._tally(
            "dovetail_fetched_records", "Records given out, by their offsets.", "topic"
        )
        self._fetched_bytes = self._tally(
            "dovetail_fetched_bytes", "Bytes of batches given out.", "topic"
        )

        self._bytes_in = self._tally("dovetail_received_bytes", "Bytes read from clients.")
        self._bytes_out = self._tally("dovetail_sent_bytes", "Bytes written to clients.")
        self.connections = self._gauge("dovetail_connections", "Open client connections.")
        self.violations = self._counter(
            "dovetail_protocol_violations", "Connections closed because of what was sent."
        )
        self.failures = self._counter(
            "dovetail_internal_errors", "Requests that met a defect of the node."
        )

        self._write = self._times(
            "dovetail_storage_write_seconds", "Writing a group of entries, without the sync."
        )
        self._sync = self._times("dovetail_storage_sync_seconds", "Syncing a group of entries.")
        self._group_entries = self._times(
            "dovetail_storage_group_entries",
            "Entries that shared a sync.",
            buckets=tuple(2**power for power in range(11)),
        )
        self.storage_out = self._gauge(
            "dovetail_storage_out", "1 if the storage node took itself out."
        )

        self.coordination = CoordinationMetrics(self.registry)

    def _counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, doc, labels, registry=self.registry)

    def _gauge(self, name: str, doc: str) -> Gauge:
        return Gauge(name, doc, registry=self.registry)

    def _tally(self, name: str, doc: str, label: str | None = None) -> Tally:
        made = Tally(name, doc, label)
        self.registry.register(made)
        return made

    def _times(
        self,
        name: str,
        doc: str,
        *,
        label: str | None = None,
        buckets: tuple[float, ...] = _BUCKETS,
    ) -> Times:
        made = Times(name, doc, buckets, label)
        self.registry.register(made)
        return made

    def request(self, api: str, seconds: float) -> None:
        self._requests.observe(api, seconds)

    def error(self, api: str, code: str) -> None:
        self._errors.labels(api, code).inc()
        self._errors_answered += 1

    def produced(self, topic: str, records: int, size: int) -> None:
        self._records.add(topic, records)
        self._produced_bytes.add(topic, size)

    def fetched(self, topic: str, records: int, size: int) -> None:
        self._fetched_records.add(topic, records)
        self._fetched_bytes.add(topic, size)

    def forget_topic(self, topic: str) -> None:
        """A deleted topic's series go with it."""
        for tally in self._by_topic():
            tally.counts.pop(topic, None)

    def _by_topic(self) -> tuple[Tally, ...]:
        return (self._records, self._fetched_records, self._produced_bytes, self._fetched_bytes)

    def totals(self) -> tuple[int, int, int, int, int]:
        """Records in and out, bytes of batches in and out, and errors, so far."""
        records_in, records_out, bytes_in, bytes_out = (
            sum(tally.counts.values()) for tally in self._by_topic()
        )
        failures = int(self.failures._value.get())
        return records_in, records_out, bytes_in, bytes_out, self._errors_answered + failures

    def connections_now(self) -> int:
        """Open connections of clients and other nodes."""
        return int(self.connections._value.get())

    def moved(self, bytes_in: int, bytes_out: int) -> None:
        self._bytes_in.counts[""] += bytes_in
        self._bytes_out.counts[""] += bytes_out

    def group(self, report: GroupReport) -> None:
        if report.entries:
            self._write.observe("", report.write_s)
            self._sync.observe("", report.sync_s)
            self._group_entries.observe("", report.entries)


class LogCollector(Collector):
    """Partitions, groups and repair, as they are at the moment of the scrape."""

    def __init__(
        self,
        log: Log,
        groups: GroupRegistry,
        shares: ShareRegistry,
        repairer: Repairer | None,
        compactor: Compactor,
    ) -> None:
        self._log = log
        self._shares = shares
        self._groups = groups
        self._repairer = repairer
        self._compactor = compactor
        #: By partition: its values at the last scrape, and a line for each.
        self._lines: dict[str, tuple[tuple[int, ...], list[str]]] = {}

    def collect(self) -> Iterator[Metric]:
        broken = GaugeMetricFamily("dovetail_partitions_broken", "Partitions out of service.")
        broken.add_metric([], len(self._log.broken()))
        rolls = CounterMetricFamily(
            "dovetail_partition_rolls_failed", "Attempts to go on in a new ledger that failed."
        )
        rolls.add_metric([], self._log.rolls_failed)
        yield from self._partitions()
        yield from (broken, rolls)
        yield from self._group_positions()
        yield from self._share_groups()
        yield from self._repair()
        yield from self._compaction()

    def _partitions(self) -> Iterator[Metric]:
        """Rebuilds only lines whose value changed: of 10,000 partitions, most do not."""
        lines = {}
        for partition in self._log.partitions():
            found = (
                partition.log_start,
                partition.high_watermark,
                partition.payload_bytes,
                partition.term,
            )
            known = self._lines.get(partition.name)
            if known is None or known[0] != found:
                topic, _, number = partition.name.rpartition("-")
                labels = f'{{topic="{topic}",partition="{number}"}}'
                made = zip(_PARTITION_SERIES, found, strict=True)
                known = (found, [f"{name}{labels} {value}\n" for name, value in made])
            lines[partition.name] = known

        self._lines = lines
        for at, (name, about) in enumerate(_PARTITION_SERIES.items()):
            text = "".join([made[at] for _, made in lines.values()])
            yield Rendered(name, about, ("topic", "partition"), text)

    def _group_positions(self) -> Iterator[Metric]:
        """Positions of all groups that are coordinated here; lag where the partition is here too.

        In a cluster the end of a partition is known to its owner, which may be another node: there
        the lag is the difference of two series, as `deploy/prometheus` has it.
        """
        labels = ["group", "topic", "partition"]
        at = GaugeMetricFamily(
            "dovetail_group_position_offset", "Next offset that a group reads.", labels=labels
        )
        lag = GaugeMetricFamily(
            "dovetail_group_lag_records",
            "Records between a group's position and the end, where both are known.",
            labels=labels,
        )

        ends = {p.name: p.high_watermark for p in self._log.partitions()}
        for group_id, key, position in self._groups.positions():
            values = [group_id, key.topic, str(key.partition)]
            at.add_metric(values, position.offset)
            end = ends.get(f"{key.topic}-{key.partition}")
            if end is not None:
                lag.add_metric(values, max(0, end - position.offset))

        groups = GaugeMetricFamily(
            "dovetail_groups", "Groups that are coordinated here, by state.", labels=["state"]
        )
        states = [listing.state.value for listing in self._groups.groups()]
        for state in GroupState:
            groups.add_metric([state.value], states.count(state.value))
        yield from (at, lag, groups)

    def _share_groups(self) -> Iterator[Metric]:
        """Of the partitions that are owned here."""
        labels = ["group", "topic", "partition"]
        now = GaugeMetricFamily(
            "dovetail_share_records_now",
            "Records of a share group: acquired by members, to be delivered again, to be stored "
            "as dead letters.",
            labels=[*labels, "state"],
        )
        for keeper in self._shares.keepers():
            view = keeper.view()
            if view is not None:
                group_id, topic, number = keeper.place
                states = (("acquired", view.acquired), ("again", view.again), ("dead", view.dying))
                for state, value in states:
                    now.add_metric([group_id, topic, str(number), state], value)

        total = CounterMetricFamily(
            "dovetail_share_records",
            "Records that a share group handed out (acquired), and what became of them.",
            labels=[*labels, "event"],
        )
        for (group_id, topic, number), counts in self._shares.counted():
            for event in COUNTED:
                total.add_metric([group_id, topic, str(number), event], getattr(counts, event))
        yield from (now, total)

    def _repair(self) -> Iterator[Metric]:
        report = RepairReport() if self._repairer is None else self._repairer.report
        lacking = GaugeMetricFamily(
            "dovetail_repair_ledgers_lacking", "Closed ledgers that lie on too few storage nodes."
        )
        lacking.add_metric([], sum(report.lacking.values()))
        copied = CounterMetricFamily("dovetail_repair_copied_bytes", "Bytes copied by repair.")
        copied.add_metric([], report.bytes_copied)
        moved = CounterMetricFamily("dovetail_repair_ledgers", "Ledgers brought to full strength.")
        moved.add_metric([], report.ledgers_moved)
        yield from (lacking, copied, moved)

    def _compaction(self) -> Iterator[Metric]:
        report = self._compactor.report
        rows = [
            (*name.rpartition("-")[::2], state.survey, state.last)
            for name, state in report.partitions.items()
        ]
        for series, about, look in _COMPACTION_SERIES:
            gauge = GaugeMetricFamily(series, about, labels=["topic", "partition"])
            for topic, number, survey, last in rows:
                found = look(survey, last)
                if found is not None:
                    gauge.add_metric([topic, number], found)
            yield gauge

        for name, about, value in (
            ("passes", "Passes of compaction over a partition.", report.passes),
            ("passes_failed", "Passes of compaction that failed.", report.passes_failed),
            ("read_bytes", "Bytes that compaction read.", report.bytes_read),
            ("written_bytes", "Bytes that compaction wrote.", report.bytes_written),
            ("removed_records", "Records that compaction removed.", report.records_removed),
        ):
            counter = CounterMetricFamily(f"dovetail_compaction_{name}", about)
            counter.add_metric([], value)
            yield counter


class NodeCollector(Collector):
    """The node as a whole: who it is, whether it is ready, its disk."""

    def __init__(
        self,
        settings: Settings,
        ready: Callable[[], tuple[bool, list[str]]],
        storage: Callable[[], LocalStorageNode | None],
    ) -> None:
        self._settings = settings
        self._ready = ready
        self._storage = storage

    def collect(self) -> Iterator[Metric]:
        node = self._settings.node
        info = GaugeMetricFamily(
            "dovetail_node_info",
            "1; the labels say which node this is.",
            labels=["name", "node_id", "roles", "version"],
        )
        info.add_metric([node.name, str(node.node_id), node.roles, __version__], 1)
        ready = GaugeMetricFamily("dovetail_node_ready", "1 while /readyz answers 200.")
        ready.add_metric([], self._ready()[0])
        yield from (info, ready)
        storage = self._storage()
        if storage is not None:
            yield from self._disk(storage)

    def _disk(self, storage: LocalStorageNode) -> Iterator[Metric]:
        kept = GaugeMetricFamily("dovetail_storage_bytes", "Bytes in segment files.")
        kept.add_metric([], storage.bytes_on_disk())
        usage = shutil.disk_usage(self._settings.node.data_dir)
        free = GaugeMetricFamily("dovetail_storage_disk_free_bytes", "Bytes free on the disk.")
        free.add_metric([], usage.free)
        total = GaugeMetricFamily("dovetail_storage_disk_bytes", "Size of the disk.")
        total.add_metric([], usage.total)
        damaged = GaugeMetricFamily(
            "dovetail_storage_damaged", "1 while the disk holds damage that peers have not mended."
        )
        damaged.add_metric([], storage.damaged)
        yield from (kept, free, total, damaged)
        for name, doc, value in (
            ("read_bytes", "Bytes read to find damage.", storage.scrub.bytes_read),
            ("damaged", "Findings of damage by reading.", storage.scrub.damaged),
            ("passes", "How often all that is held was read.", storage.scrub.passes),
        ):
            counter = CounterMetricFamily(f"dovetail_storage_scrub_{name}", doc)
            counter.add_metric([], value)
            yield counter
