"""What a replica counts, for Prometheus; in a registry of its own or in the user's."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: From a handler that only counts to one that calls a slow service, in seconds.
_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)


class StreamMetrics:
    """The series of one replica."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.leading = self._gauge("leading", "1 while this replica leads.")
        self.term = self._gauge("term", "Highest term that was claimed in the shared log.")
        self.members = self._gauge("members", "Members that are counted.")
        self.lag = self._gauge("lag_events", "Events between what was received and handled.")
        self.source_connected = self._gauge("source_connected", "1 while the stream is there.")
        self.leaderships = self._counter("leaderships", "Times that this replica became leader.")
        self.elections = self._counter("elections", "Claims that were read from the shared log.")
        self.messages_sent = self._counter("messages_sent", "Messages sent to members.")
        self.messages_lost = self._counter("messages_lost", "Messages without an answer.")
        self.messages_received = self._counter("messages_received", "Messages of members taken in.")
        self.received = self._counter("events_received", "Events that were read.")
        self.handled = self._counter("events_handled", "Events whose handler ended well.")
        self.failed = self._counter("events_failed", "Events whose handler raised.")
        self.reports = self._counter("reports", "Reports that the shared log accepted.")
        self.reconnects = self._counter("source_reconnects", "Times the stream was opened anew.")
        self.handler_seconds = Histogram(
            "dovetail_stream_handler_seconds",
            "Time in the handler, for one batch.",
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"dovetail_stream_{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"dovetail_stream_{name}", text, registry=self.registry)
