"""What a node counts, for Prometheus.

Everything on the hot path is a child that was looked up once: a count costs under a microsecond.
What is known anyway (ends of partitions, lag of groups) is computed when it is scraped.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dovetail.ledger.store import GroupReport
from dovetail.log.groups.registry import GroupRegistry
from dovetail.log.service import Log

#: From a fast disk's sync to a stalled one, in seconds.
_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)

# When a series began is of no use here, and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The series of one node, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
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
    """Partitions and groups, as they are at the moment of the scrape."""

    def __init__(self, log: Log, groups: GroupRegistry) -> None:
        self._log = log
        self._groups = groups

    def collect(self) -> Iterator[GaugeMetricFamily]:
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
        yield from (start, end, kept, term, broken, self._lag())

    def _lag(self) -> GaugeMetricFamily:
        lag = GaugeMetricFamily(
            "dovetail_group_lag",
            "Records between a group's position and the end.",
            labels=["group", "topic", "partition"],
        )
        ends = {p.name: p.high_watermark for p in self._log.partitions()}
        for group_id, key, position in self._groups.positions():
            end = ends.get(f"{key.topic}-{key.partition}")
            if end is not None:
                lag.add_metric(
                    [group_id, key.topic, str(key.partition)], max(0, end - position.offset)
                )
        return lag
