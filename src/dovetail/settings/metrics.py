"""The section `metrics`: for processes beside a node, which serve no HTTP otherwise."""

from dovetail.settings.kinds import Port, Section, setting


class MetricsSettings(Section):
    """Metrics of a relay and of a pipeline's driver; a node serves its own (section `http`)."""

    enabled: bool = setting(False, "Whether a relay or a pipeline's driver serves /metrics.")
    host: str = setting("127.0.0.1", "Address to listen on for scrapes.", min_length=1)
    port: Port = setting(9101, "Port to listen on for scrapes; 0 takes any free port.")
