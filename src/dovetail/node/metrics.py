"""What a node counts, for Prometheus.

Everything on the hot path is a child that was looked up once: a count costs under a microsecond.
What is known anyway (ends of partitions, lag of groups, space on the disk) is computed when it is
scraped. `docs/metrics.md` has all series in one table.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dovetail import __version__
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.groups.types import GroupState
from dovetail.log.service import Log
from dovetail.node.measured import CoordinationMetrics
from dovetail.settings import Settings
from dovetail.storage.disk.commands import GroupReport
from dovetail.storage.node import LocalStorageNode
from dovetail.storage.repair.copying import RepairReport
from dovetail.storage.repair.repairer import Repairer

#: From a fast disk's sync to a stalled one, in seconds.
_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

# When a series began is of no use here, and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The series of one node, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        self._requests = self._histogram(
            "dovetail_request_seconds", "Time from a request to its answer.", ["api"]
        )
        self._errors = self._counter(
            "dovetail_request_errors", "Error codes answered.", ["api", "code"]
        )
        self._records = self._counter("dovetail_produced_records", "Records taken in.", ["topic"])
        self._produced_bytes = self._counter(
            "dovetail_produced_bytes", "Bytes of batches taken in.", ["topic"]
        )
        self._fetched_bytes = self._counter(
            "dovetail_fetched_bytes", "Bytes of batches given out.", ["topic"]
        )

        self._bytes_in = self._counter("dovetail_received_bytes", "Bytes read from clients.")
        self._bytes_out = self._counter("dovetail_sent_bytes", "Bytes written to clients.")
        self.connections = self._gauge("dovetail_connections", "Open client connections.")
        self.violations = self._counter(
            "dovetail_protocol_violations", "Connections closed because of what was sent."
        )
        self.failures = self._counter(
            "dovetail_internal_errors", "Requests that met a defect of the node."
        )

        self._write = self._histogram(
            "dovetail_storage_write_seconds", "Writing a group of entries, without the sync."
        )
        self._sync = self._histogram("dovetail_storage_sync_seconds", "Syncing a group of entries.")
        self._group_entries = self._histogram(
            "dovetail_storage_group_entries",
            "Entries that shared a sync.",
            buckets=tuple(2**power for power in range(11)),
        )
        self.storage_out = self._gauge(
            "dovetail_storage_out", "1 if the storage node took itself out."
        )

        self.coordination = CoordinationMetrics(self.registry)
        self._request_children: dict[str, Histogram] = {}
        self._topic_children: dict[str, tuple[Counter, Counter, Counter]] = {}

    def _counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, doc, labels, registry=self.registry)

    def _gauge(self, name: str, doc: str) -> Gauge:
        return Gauge(name, doc, registry=self.registry)

    def _histogram(
        self,
        name: str,
        doc: str,
        labels: Sequence[str] = (),
        buckets: tuple[float, ...] = _BUCKETS,
    ) -> Histogram:
        return Histogram(name, doc, labels, buckets=buckets, registry=self.registry)

    def request(self, api: str, seconds: float) -> None:
        child = self._request_children.get(api)
        if child is None:
            child = self._request_children[api] = self._requests.labels(api)
        child.observe(seconds)

    def error(self, api: str, code: str) -> None:
        self._errors.labels(api, code).inc()

    def produced(self, topic: str, records: int, size: int) -> None:
        children = self._topic(topic)
        children[0].inc(records)
        children[1].inc(size)

    def fetched(self, topic: str, size: int) -> None:
        self._topic(topic)[2].inc(size)

    def _topic(self, topic: str) -> tuple[Counter, Counter, Counter]:
        children = self._topic_children.get(topic)
        if children is None:
            children = (
                self._records.labels(topic),
                self._produced_bytes.labels(topic),
                self._fetched_bytes.labels(topic),
            )
            self._topic_children[topic] = children
        return children

    def forget_topic(self, topic: str) -> None:
        """A deleted topic's series go with it."""
        if self._topic_children.pop(topic, None) is not None:
            for counter in (self._records, self._produced_bytes, self._fetched_bytes):
                counter.remove(topic)

    def moved(self, bytes_in: int, bytes_out: int) -> None:
        if bytes_in:
            self._bytes_in.inc(bytes_in)
        if bytes_out:
            self._bytes_out.inc(bytes_out)

    def group(self, report: GroupReport) -> None:
        if report.entries:
            self._write.observe(report.write_s)
            self._sync.observe(report.sync_s)
            self._group_entries.observe(report.entries)


class LogCollector(Collector):
    """Partitions, groups and repair, as they are at the moment of the scrape."""

    def __init__(self, log: Log, groups: GroupRegistry, repairer: Repairer | None) -> None:
        self._log = log
        self._groups = groups
        self._repairer = repairer

    def collect(self) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        start = GaugeMetricFamily("dovetail_partition_start_offset", "First offset.", labels=labels)
        end = GaugeMetricFamily("dovetail_partition_end_offset", "Next offset.", labels=labels)
        kept = GaugeMetricFamily("dovetail_partition_bytes", "Bytes that are kept.", labels=labels)
        term = GaugeMetricFamily("dovetail_partition_term", "Term of the owner.", labels=labels)

        for partition in self._log.partitions():
            topic, _, number = partition.name.rpartition("-")
            start.add_metric([topic, number], partition.log_start)
            end.add_metric([topic, number], partition.high_watermark)
            kept.add_metric([topic, number], partition.payload_bytes)
            term.add_metric([topic, number], partition.term)

        broken = GaugeMetricFamily("dovetail_partitions_broken", "Partitions out of service.")
        broken.add_metric([], len(self._log.broken()))
        rolls = CounterMetricFamily(
            "dovetail_partition_rolls_failed", "Attempts to go on in a new ledger that failed."
        )
        rolls.add_metric([], self._log.rolls_failed)
        yield from (start, end, kept, term, broken, rolls)
        yield from self._group_positions()
        yield from self._repair()

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
