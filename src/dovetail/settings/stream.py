"""The section `stream`: the shared stream, one elected consumer among replicas.

The names are those of the design that it follows; `docs/stream.md` maps them.
`dovetail.stream.StreamSettings` checks what the values mean and how they fit together.
"""

from pathlib import Path
from typing import Literal

from dovetail.settings.kinds import DAY_MS, SECOND_MS, DurationMs, Port, Section, setting


class SharedStreamSettings(Section):
    """A shared stream's replica, and where `dovetail stream` looks."""

    coordination_stream_id: str = setting(
        "", "Topic of the shared log, in which the members find each other."
    )
    environment_identifier: str = setting("test", "Name of the cluster; several can share one log.")
    participant_write_interval_millis: DurationMs = setting(
        DAY_MS,
        "A member that does not report within this time is not counted.",
        ge=100,
        le=365 * DAY_MS,
    )
    algorithm: Literal["BULLY", "MAJORITY", "COORDINATOR"] = setting(
        "BULLY", "How a leader is elected; BULLY is for two replicas."
    )
    endpoint_scheme: Literal["http", "https"] = setting(
        "http", "How the members talk to each other."
    )
    endpoint_path: str = setting("/symphony-api/cluster-communication", "Path of the endpoint.")
    endpoint_host_and_port: str = setting(
        "", "Address at which the other replicas reach this one; empty: this host, port 8080."
    )
    timeout_ms: DurationMs = setting(
        5 * SECOND_MS, "The leader is replaced after about this time of silence.", ge=50, le=DAY_MS
    )
    start_immediately: bool = setting(
        True, "Whether `async with` starts to consume; if not, call `start`."
    )
    takeover: Literal["skip", "resume"] = setting(
        "skip", "'skip': a new leader begins at the end. 'resume': at the committed position."
    )
    heartbeat_ms: DurationMs = setting(
        0, "Longest time between two pings; 0: a quarter of the timeout.", ge=0, le=DAY_MS
    )
    shared_secret: str = setting("", "Signs messages between members.", secret=True)
    log_signatures: Literal["required", "optional"] = setting(
        "required",
        "'required': unsigned records of the shared log are ignored. 'optional': they count.",
    )
    listen_host: str = setting("", "Address to listen on; empty: the endpoint's host.")
    listen_port: Port = setting(0, "Port to listen on; 0: the endpoint's port.")
    vote_path: Path = setting(
        Path("dovetail-stream.vote"),
        "File in which this replica keeps its term and vote (MAJORITY).",
    )
    certificate_path: str = setting(
        "", "For https: file with the certificate of this replica (PEM)."
    )
    key_path: str = setting("", "For https: file with the key of that certificate (PEM).")
    authority_path: str = setting(
        "", "For https: file with the CA of the other replicas' certificates (PEM)."
    )
    batch_events_max: int = setting(
        500, "Most events between two reports to the log.", ge=1, le=100_000
    )
    report_interval_ms: DurationMs = setting(
        SECOND_MS, "Longest time between two reports while handling.", ge=1, le=DAY_MS
    )
    attempts_max: int = setting(
        1, "Attempts for an event whose handler raises.", ge=1, le=1_000_000
    )
    retry_ms: DurationMs = setting(
        SECOND_MS, "Pause after the first failed attempt; doubled with each.", ge=1, le=DAY_MS
    )
    retry_ms_max: DurationMs = setting(
        60 * SECOND_MS, "Longest pause between two attempts.", ge=1, le=DAY_MS
    )
    dead_letters_topic: str = setting(
        "", "Topic, ending in .dead, for events whose last attempt failed; empty: only logged."
    )
