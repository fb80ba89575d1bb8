"""The metrics of a relay, in the process's registry or one that is given."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class RelayMetrics:
    """What the relay counts. Pending and oldest wait are set by whoever looks (`relay`)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._sent = self._counter("sent", "Messages acknowledged by the broker.")
        self._failed = self._counter("failed", "Attempts on a topic that ended with an error.")
        self._dead = self._counter("dead", "Messages set aside as dead letters.")
        self._lost = self._counter("locks_lost", "Locks that another relay took over.")
        self._pending = self._gauge("pending_messages", "Messages that wait to be sent.")
        self._oldest = self._gauge("oldest_wait_seconds", "Age of the oldest waiting message.")

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"dovetail_outbox_{name}", text, ["topic"], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"dovetail_outbox_{name}", text, ["topic"], registry=self.registry)

    def sent(self, topic: str, count: int) -> None:
        if count:
            self._sent.labels(topic).inc(count)

    def failed(self, topic: str) -> None:
        self._failed.labels(topic).inc()

    def dead(self, topic: str) -> None:
        self._dead.labels(topic).inc()

    def lost(self, topic: str) -> None:
        self._lost.labels(topic).inc()

    def waiting(self, topic: str, *, pending: int, oldest_ms: int) -> None:
        self._pending.labels(topic).set(pending)
        self._oldest.labels(topic).set(oldest_ms / 1000)
