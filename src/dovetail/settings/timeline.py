"""The section `timeline`: messages that are due at a time."""

from typing import Literal

from dovetail.settings.kinds import MINUTE_MS, DurationMs, Section, setting


class TimelineSettings(Section):
    """Timelines: messages due at a time."""

    enabled: bool = setting(True, "Whether this node serves timelines.")
    store: Literal["sqlite", "postgres"] = setting(
        "sqlite", "'sqlite': files of this node. 'postgres': for a cluster."
    )
    dsn: str = setting(
        "",
        "Address of the PostgreSQL database, such as postgresql://user@host/database.",
        secret=True,
    )
    # It is part of statements, so nothing but a plain name is taken.
    schema_name: str = setting(
        "dovetail", "PostgreSQL schema of the tables.", pattern=r"^[a-z_][a-z0-9_]{0,40}$"
    )
    # Machines under NTP are within some ten milliseconds; below that, nobody's clock is right.
    drift_ms_max: DurationMs = setting(
        100,
        "A node whose clock is off by more than this stops delivering messages. The shortest lease "
        "is ten times as long, and at least 1s.",
        ge=10,
        le=MINUTE_MS,
    )
    # All brokers of a timeline read the same rows, so its consumers are best together on few.
    consumers_best: int = setting(
        4, "Consumers of one timeline gather at one broker up to this number.", ge=1, le=10_000
    )
    consumers_max: int = setting(
        7, "Above this number, a broker sends consumers to another broker.", ge=1, le=10_000
    )
    tags: str = setting("", "Labels on every metric of timelines: name=value,name=value.")
