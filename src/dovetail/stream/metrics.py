"""The metrics of a replica's stream, for Prometheus, beside those of its member."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

#: From a handler that only counts to one that calls a slow service, in seconds.
_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)


class StreamMetrics:
    """The series of one replica."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        gauge = partial(Gauge, namespace="dovetail_stream", registry=self.registry)
        self.lag = gauge("lag_events", "Events received and not yet handled.")
        self.source_connected = gauge("source_connected", "1 while the stream is there.")

        counter = partial(Counter, namespace="dovetail_stream", registry=self.registry)
        self.received = counter("events_received", "Events that were read.")
        self.handled = counter("events_handled", "Events whose handler returned.")
        self.failed = counter("events_failed", "Events whose handler raised.")
        self.dead = counter("events_dead", "Events that were set aside as dead letters.")
        self.skipped = counter("events_skipped", "Events that the filter skipped.")
        self.reconnects = counter("source_reconnects", "Times the stream was reopened.")
        self.handler_seconds = Histogram(
            "dovetail_stream_handler_seconds",
            "Time in the handler, for one batch.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
