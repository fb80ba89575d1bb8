"""The metrics of a broker's timelines, for Prometheus; `docs/metrics.md` has the names.

Every series carries the user's own labels (`timeline.tags`). Figures that are counted anyway, such
as how many messages wait, are set at each count.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from dovetail.timeline.engine.drift import Drift, Target
from dovetail.timeline.engine.health import Health
from dovetail.timeline.engine.late_histogram import LateHistogram

#: Seconds; a push is late by a millisecond on a good day, and by a window after a loss.
_LATE = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300)
_QUERY = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)

#: Commands of a store, as they are counted.
StoreCommand = Literal[
    "insert",
    "lease",
    "extend",
    "release",
    "delete",
    "held",
    "cancel",
    "move",
    "look",
    "peek",
    "walk",
    "count",
    "dead",
    "replay",
    "drop",
    "purge",
    "trim",
    "schedule",
    "clock",
]
#: What a command of a store looks for: `lookup` by ids or keys, `range` by time and buckets; and in
#: which state the messages are that it is after.
_KINDS: Final[Mapping[StoreCommand, tuple[str, str]]] = {
    "insert": ("lookup", "all"),
    "lease": ("range", "available"),
    "extend": ("lookup", "processing"),
    "release": ("lookup", "processing"),
    "delete": ("lookup", "processing"),
    "held": ("range", "processing"),
    "cancel": ("lookup", "waiting"),
    "move": ("lookup", "waiting"),
    "look": ("lookup", "all"),
    "peek": ("range", "all"),
    "walk": ("range", "all"),
    "count": ("range", "all"),
    "dead": ("range", "dead"),
    "replay": ("lookup", "dead"),
    "drop": ("lookup", "dead"),
    "purge": ("range", "waiting"),
    "trim": ("range", "dead"),
    "schedule": ("range", "all"),
    "clock": ("lookup", "all"),
}


class TimelineMetrics:
    """The series of the timelines of one node."""

    _QUERY_LABELS: Final = ("timeline", "op", "type", "filter")

    def __init__(self, registry: CollectorRegistry, tags: Mapping[str, str]) -> None:
        self._registry = registry
        self._tags = dict(tags)
        self._timelines = self._counter("timeline_commands", "Timelines made, deleted.", ["op"])
        self._timeline_errors = self._counter(
            "timeline_command_errors", "Timelines not made, not deleted.", ["op"]
        )

        self._messages = self._counter(
            "timeline_messages", "Messages stored, deleted, released, dead.", ["timeline", "op"]
        )
        self._message_errors = self._counter(
            "timeline_message_errors", "Messages that were refused.", ["timeline", "op"]
        )

        self._leases = self._counter("timeline_leases", "Leases made.", ["timeline", "op"])
        self._lease_errors = self._counter(
            "timeline_lease_errors", "Leases refused.", ["timeline", "op"]
        )
        self._lease_bytes = self._counter(
            "timeline_lease_body_bytes", "Bytes of bodies that were leased.", ["timeline"]
        )

        self._requests = self._counter(
            "timeline_requests", "Requests by kind.", ["request", "timeline"]
        )
        self._request_errors = self._counter(
            "timeline_request_errors", "Requests that failed.", ["request", "timeline"]
        )

        self._state = self._gauge(
            "timeline_messages_now", "Messages by state, when last counted.", ["timeline", "state"]
        )
        self._windows = self._gauge(
            "timeline_waiting_messages",
            "Messages that become due in this window (0) and the next ones.",
            ["timeline", "window"],
        )
        self._late = LateHistogram(
            "dovetail_timeline_late_seconds",
            "From the due time to the push.",
            bounds_s=_LATE,
            tags=self._tags,
        )
        registry.register(self._late)

        self._queries = self._histogram(
            "timeline_store_seconds", "Time of a store's command.", self._QUERY_LABELS, _QUERY
        )
        self._query_errors = self._counter(
            "timeline_store_errors", "Commands of a store that failed.", self._QUERY_LABELS
        )
        self._latency = self._gauge(
            "timeline_client_latency_seconds",
            "Mean latency from here to clients, as they report it.",
            ["timeline", "role"],
        )
        self._make_partners()

    def _make_partners(self) -> None:
        """Clients, partners, clocks, and how the broker is."""
        self._channels = self._gauge("timeline_channels", "Open sessions.", ["timeline", "role"])
        self._channel_errors = self._counter(
            "timeline_channel_errors", "Sessions that were lost.", ["timeline", "role"]
        )
        self._bytes = self._counter(
            "timeline_network_bytes",
            "Bytes of bodies in and out, by what is on the other side.",
            ["timeline", "direction", "partner"],
        )
        self._round_trips = self._gauge(
            "timeline_partner_latency_seconds",
            "To a partner and back: coordination (sync), storage, the farthest other broker.",
            ["partner"],
        )
        self._load = self._gauge(
            "timeline_load_ratio", "Part of one processor that this process needs.", []
        )
        self._drifts = self._gauge("timeline_clock_drifts", "Clocks beyond the limit.", ["target"])
        self._drift_s = self._gauge(
            "timeline_clock_drift_seconds", "Mean distance of clocks.", ["target"]
        )
        self._degraded = self._gauge("timeline_degradations", "Degradations now.", ["type"])

    # What happened

    def timeline(self, op: str, *, failed: bool = False) -> None:
        (self._timeline_errors if failed else self._timelines).labels(**self._tags, op=op).inc()

    def messages(self, timeline: str, op: str, *, good: int, bad: int = 0) -> None:
        labels = {**self._tags, "timeline": timeline, "op": op}
        if good:
            self._messages.labels(**labels).inc(good)
        if bad:
            self._message_errors.labels(**labels).inc(bad)

    def leases(
        self, timeline: str, op: str, *, good: int, bad: int = 0, body_bytes: int = 0
    ) -> None:
        labels = {**self._tags, "timeline": timeline, "op": op}
        if good:
            self._leases.labels(**labels).inc(good)
        if bad:
            self._lease_errors.labels(**labels).inc(bad)
        if body_bytes:
            self._lease_bytes.labels(**self._tags, timeline=timeline).inc(body_bytes)

    def request(self, request: str, timeline: str, *, failed: bool) -> None:
        labels = {**self._tags, "request": request, "timeline": timeline}
        self._requests.labels(**labels).inc()
        if failed:
            self._request_errors.labels(**labels).inc()

    def late(self, timeline: str, late_ms: Sequence[float]) -> None:
        self._late.add(timeline, late_ms)

    def lateness(self) -> tuple[int, float]:
        """Deliveries of all timelines so far, and by how many milliseconds they left late."""
        return self._late.totals()

    def query(self, timeline: str, op: StoreCommand, seconds: float, *, failed: bool) -> None:
        kind, states = _KINDS[op]
        labels = {**self._tags, "timeline": timeline, "op": op, "type": kind, "filter": states}
        self._queries.labels(**labels).observe(seconds)
        if failed:
            self._query_errors.labels(**labels).inc()

    def moved(self, timeline: str, direction: str, partner: str, size: int) -> None:
        labels = {**self._tags, "timeline": timeline, "direction": direction, "partner": partner}
        self._bytes.labels(**labels).inc(size)

    def session_lost(self, timeline: str, role: str) -> None:
        self._channel_errors.labels(**self._tags, timeline=timeline, role=role).inc()

    # What is

    def state(self, timeline: str, counts: Mapping[str, int], windows: Sequence[int]) -> None:
        for state, count in counts.items():
            self._state.labels(**self._tags, timeline=timeline, state=state).set(count)
        for number, count in enumerate(windows):
            labels = {**self._tags, "timeline": timeline, "window": str(number)}
            self._windows.labels(**labels).set(count)

    def channels(self, timeline: str, *, consumers: int, producers: int) -> None:
        for role, count in (("consumer", consumers), ("producer", producers)):
            self._channels.labels(**self._tags, timeline=timeline, role=role).set(count)

    def latency(self, timeline: str, role: str, each_ms: Collection[float]) -> None:
        if each_ms:
            mean_s = sum(each_ms) / len(each_ms) / 1000
            self._latency.labels(**self._tags, timeline=timeline, role=role).set(mean_s)

    def round_trip(self, partner: str, took_ms: float) -> None:
        self._round_trips.labels(**self._tags, partner=partner).set(took_ms / 1000)

    def load(self, load: float) -> None:
        (self._load.labels(**self._tags) if self._tags else self._load).set(load)

    def health(self, health: Health, drift: Drift, *, now_ms: int) -> None:
        for degradation, count in health.gauges(now_ms=now_ms).items():
            self._degraded.labels(**self._tags, type=degradation.value).set(count)
        for target in Target:
            labels = {**self._tags, "target": target.value}
            self._drifts.labels(**labels).set(len(drift.drifted(target, now_ms=now_ms)))
            self._drift_s.labels(**labels).set(drift.average_s(target, now_ms=now_ms))

    def forget(self, timeline: str) -> None:
        """A deleted timeline's series go with it."""
        for series in (
            self._messages,
            self._message_errors,
            self._leases,
            self._lease_errors,
            self._lease_bytes,
            self._requests,
            self._request_errors,
            self._state,
            self._windows,
            self._queries,
            self._query_errors,
            self._latency,
            self._channels,
            self._channel_errors,
            self._bytes,
        ):
            series.remove_by_labels({"timeline": timeline})
        self._late.forget(timeline)

    # Making them

    def _counter(self, name: str, doc: str, labels: Sequence[str]) -> Counter:
        return Counter(f"dovetail_{name}", doc, [*self._tags, *labels], registry=self._registry)

    def _gauge(self, name: str, doc: str, labels: Sequence[str]) -> Gauge:
        return Gauge(f"dovetail_{name}", doc, [*self._tags, *labels], registry=self._registry)

    def _histogram(
        self, name: str, doc: str, labels: Sequence[str], buckets: Sequence[float]
    ) -> Histogram:
        return Histogram(
            f"dovetail_{name}",
            doc,
            [*self._tags, *labels],
            buckets=tuple(buckets),
            registry=self._registry,
        )
