"""The section `tracing`: where spans go, and how many of them."""

from dovetail.settings.kinds import DurationMs, Section, setting


class TracingSettings(Section):
    """Traces by OpenTelemetry (extra `tracing`); see `docs/tracing.md`."""

    enabled: bool = setting(
        False, "Whether to create spans and propagate trace contexts in headers."
    )
    endpoint: str = setting(
        "http://127.0.0.1:4318",
        "Collector to send spans to, by OTLP over HTTP.",
        pattern=r"^https?://\S+$",
    )
    service: str = setting(
        "", "Name of this process in traces; empty: dovetail and its role.", max_length=255
    )
    # A trace that was begun elsewhere is kept or dropped as its beginner said.
    sample_ratio: float = setting(
        1.0, "Fraction of the traces started here that is kept.", ge=0.0, le=1.0
    )
    # Below 100 ms a busy process would send a request for every few spans.
    export_ms: DurationMs = setting(
        5_000, "Longest time a span waits to be sent.", ge=100, le=600_000
    )
