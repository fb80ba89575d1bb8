"""The section `stream`: the shared stream, one elected consumer among replicas.

The names are those of the design that it follows; `docs/stream.md` maps them. What the values mean
and how they must fit together is checked by `dovetail.stream.StreamSettings`.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from dovetail.settings.kinds import SECRET, DurationMs, Section

_SECOND_MS = 1000
_DAY_MS = 86_400_000


class SharedStreamSettings(Section):
    """A shared stream's replica, and where `dovetail stream` looks."""

    coordination_stream_id: str = Field(
        default="", description="Topic of the shared log, in which the members find each other."
    )
    environment_identifier: str = Field(
        default="test", description="Name of the cluster; several can share one log."
    )
    participant_write_interval_millis: DurationMs = Field(
        default=_DAY_MS, ge=100, description="Members report in within this time to be counted."
    )
    algorithm: Literal["BULLY", "MAJORITY", "COORDINATOR"] = Field(
        default="BULLY", description="How a leader is found; BULLY is for two replicas."
    )
    endpoint_scheme: Literal["http", "https"] = Field(
        default="http", description="How the members talk."
    )
    endpoint_path: str = Field(
        default="/symphony-api/cluster-communication", description="Path of the endpoint."
    )
    endpoint_host_and_port: str = Field(
        default="", description="Where the others reach this replica; empty: this host, port 8080."
    )
    timeout_ms: DurationMs = Field(
        default=5 * _SECOND_MS,
        ge=50,
        description="The leader is replaced after about this time of silence.",
    )
    start_immediately: bool = Field(
        default=True, description="Whether to consume as soon as the stream is entered."
    )
    takeover: Literal["skip", "resume"] = Field(
        default="skip",
        description="'skip': a new leader begins at the end. 'resume': at the committed position.",
    )
    heartbeat_ms: DurationMs = Field(
        default=0, ge=0, description="Longest time between two pings; 0: a quarter of the timeout."
    )
    shared_secret: str = Field(
        default="", description="Signs messages between members.", json_schema_extra=SECRET
    )
    listen_host: str = Field(
        default="", description="Address to listen on; empty: the endpoint's host."
    )
    listen_port: int = Field(
        default=0, ge=0, le=65535, description="Port to listen on; 0: the endpoint's port."
    )
    vote_path: Path = Field(
        default=Path("dovetail-stream.vote"), description="File of term and vote (MAJORITY)."
    )
    certificate_path: str = Field(default="", description="For https: this one's certificate.")
    key_path: str = Field(default="", description="For https: its key.")
    authority_path: str = Field(
        default="", description="For https: who signed the others' certificates."
    )
    batch_events_max: int = Field(
        default=500, ge=1, le=100_000, description="Most events between two reports to the log."
    )
    report_interval_ms: DurationMs = Field(
        default=_SECOND_MS, ge=1, description="Longest time between two reports while handling."
    )
