"""The metrics of a member, for Prometheus; in a registry of its own or in the user's."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge


class ElectionMetrics:
    """The series of one member."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        gauge = partial(Gauge, namespace="dovetail_election", registry=self.registry)
        self.leading = gauge("leading", "1 while this member leads.")
        self.term = gauge("term", "Highest term that was claimed in the shared log.")
        self.members = gauge("members", "Members that are counted.")

        counter = partial(Counter, namespace="dovetail_election", registry=self.registry)
        self.leaderships = counter("leaderships", "Times that this member became leader.")
        self.claims = counter("claims", "Claims that were read from the shared log.")
        self.messages_sent = counter("messages_sent", "Messages sent to other members.")
        self.messages_lost = counter("messages_lost", "Messages that got no answer.")
        self.messages_received = counter("messages_received", "Messages of other members.")
        self.reports = counter("reports", "Reports that the shared log accepted.")
