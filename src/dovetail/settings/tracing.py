"""The section `tracing`: where spans go, and how many of them."""

from pydantic import Field

from dovetail.settings.kinds import DurationMs, Section


class TracingSettings(Section):
    """Traces by OpenTelemetry (extra `tracing`); see `docs/tracing.md`."""

    enabled: bool = Field(
        default=False, description="Whether spans are made and trace contexts travel in headers."
    )
    endpoint: str = Field(
        default="http://127.0.0.1:4318",
        pattern=r"^https?://\S+$",
        description="Collector that spans are sent to, by OTLP over HTTP.",
    )
    service: str = Field(
        default="",
        max_length=255,
        description="Name of this process in traces; empty: dovetail and what it is.",
    )
    # A trace that was begun elsewhere is kept or dropped as its beginner said.
    sample_ratio: float = Field(
        default=1.0, ge=0.0, le=1.0, description="Part of the traces begun here that is kept."
    )
    # Below 100 ms a busy process would send a request for every few spans.
    export_ms: DurationMs = Field(
        default=5_000, ge=100, le=600_000, description="Longest time a span waits to be sent."
    )
