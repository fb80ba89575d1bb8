"""The section `metrics`: for processes beside a node, which serve no HTTP otherwise."""

from pydantic import Field

from dovetail.settings.kinds import Section


class MetricsSettings(Section):
    """Metrics of a relay and of a pipeline's driver; a node serves its own (section `http`)."""

    enabled: bool = Field(
        default=False, description="Whether a relay or a pipeline's driver serves /metrics."
    )
    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on for scrapes."
    )
    port: int = Field(
        default=9101,
        ge=0,
        le=65535,
        description="Port to listen on for scrapes; 0 takes any free one.",
    )
