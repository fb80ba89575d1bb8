"""What can be set on a shared stream: the source's settings under its names, and ours.

`docs/stream.md` maps them. Everything is checked before anything is started: a heartbeat that does
not fit its timeout, an endpoint without a secret, a path that is none.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dovetail.election.election import Times
from dovetail.election.identifiers import Algorithm, MemberName, Takeover
from dovetail.errors import InvalidSetting

#: Port of the endpoint if none is given; the source's default.
PORT_DEFAULT = 8080
#: Pings in one timeout, unless a heartbeat is given: three can be lost.
HEARTBEATS_PER_TIMEOUT = 4
#: A heartbeat must fit so often into its timeout, so that one lost ping is not an election.
HEARTBEATS_PER_TIMEOUT_MIN = 2
#: Most pings in one heartbeat, however many events there are.
EVENT_PINGS_PER_HEARTBEAT = 4
#: Below this a busy machine looks like a dead one.
TIMEOUT_MS_MIN = 50
#: Shortest secret: 128 bits, if it is random.
SECRET_BYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings of one replica; only the endpoint differs between replicas."""

    #: The topic (or the key prefix) of the shared log.
    coordination_stream_id: str
    #: Name of the cluster: several can share one log.
    environment_identifier: str = "test"
    #: Members must report in within this time to be counted.
    participant_write_interval_millis: int = 24 * 60 * 60 * 1000
    algorithm: Algorithm = Algorithm.BULLY
    endpoint_scheme: Literal["http", "https"] = "http"
    endpoint_path: str = "/symphony-api/cluster-communication"
    #: Where the others reach this replica; empty: this machine's name and port 8080.
    endpoint_host_and_port: str = ""
    #: The leader is replaced after about this time of silence.
    timeout_ms: int = 5_000
    #: Whether `async with` also starts to consume; else `start` does.
    start_immediately: bool = True

    takeover: Takeover = Takeover.SKIP
    #: Longest time between two pings; 0: a quarter of the timeout.
    heartbeat_ms: int = 0
    #: What all replicas know and nobody else.
    shared_secret: str = field(default="", repr=False)
    #: Address to listen on; empty: the endpoint's own host.
    listen_host: str = ""
    #: Port to listen on; 0: the endpoint's own port. Another one stands behind a proxy.
    listen_port: int = 0
    #: File of term and vote (MAJORITY), one for each replica.
    vote_path: Path = Path("dovetail-stream.vote")
    #: For https: this replica's certificate and key, and who signed those of the others.
    certificate_path: str = ""
    key_path: str = ""
    authority_path: str = ""
    #: Most events between two reports to the shared log.
    batch_events_max: int = 500
    #: Longest time between two reports while events are handled.
    report_interval_ms: int = 1_000

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "StreamSettings":
        """From the section `stream` of the settings: `StreamSettings.of(section.model_dump())`."""
        return cls(
            **{
                **values,
                "algorithm": Algorithm(values["algorithm"]),
                "takeover": Takeover(values["takeover"]),
            }
        )

    def check(self) -> None:
        """Raises `InvalidSetting` for a value that cannot work."""
        if not self.coordination_stream_id:
            raise InvalidSetting(
                "coordination_stream_id is required: the topic of the shared log, in which the "
                "members find each other"
            )
        if not self.environment_identifier or "/" in self.environment_identifier:
            raise InvalidSetting(
                f"environment_identifier {self.environment_identifier!r} must be a name without "
                "a slash, such as 'test' or 'prod'"
            )
        self._check_times()
        self._check_endpoint()

    def check_secret(self) -> None:
        """Raises `InvalidSetting` if there is no secret to sign messages with."""
        if len(self.shared_secret.encode()) < SECRET_BYTES_MIN:
            raise InvalidSetting(
                f"shared_secret has {len(self.shared_secret.encode())} bytes; the endpoint needs "
                f"{SECRET_BYTES_MIN} or more, the same on all replicas, for example from "
                "`openssl rand -hex 32`"
            )

    @property
    def endpoint(self) -> MemberName:
        """The address of this replica, which is its name too."""
        where = self.endpoint_host_and_port or f"{socket.gethostname()}:{PORT_DEFAULT}"
        return MemberName(f"{self.endpoint_scheme}://{where}{self.endpoint_path}")

    @property
    def listen_address(self) -> tuple[str, int]:
        """Where to listen."""
        where = self.endpoint_host_and_port or f"{socket.gethostname()}:{PORT_DEFAULT}"
        host, _, port = where.rpartition(":")
        return self.listen_host or host.strip("[]"), self.listen_port or int(port)

    @property
    def times(self) -> Times:
        """The times of the elections."""
        heartbeat_ms = self.heartbeat_ms or self.timeout_ms / HEARTBEATS_PER_TIMEOUT
        return Times(
            timeout_ms=self.timeout_ms,
            heartbeat_ms=heartbeat_ms,
            event_ping_ms=heartbeat_ms / EVENT_PINGS_PER_HEARTBEAT,
            interval_ms=self.participant_write_interval_millis,
        )

    def _check_times(self) -> None:
        if self.timeout_ms < TIMEOUT_MS_MIN:
            raise InvalidSetting(
                f"timeout_ms = {self.timeout_ms} is below {TIMEOUT_MS_MIN}: a busy machine would "
                "look like a dead one"
            )
        if self.heartbeat_ms < 0:
            raise InvalidSetting(f"heartbeat_ms = {self.heartbeat_ms}; it must be above 0")
        if self.heartbeat_ms * HEARTBEATS_PER_TIMEOUT_MIN > self.timeout_ms:
            raise InvalidSetting(
                f"heartbeat_ms = {self.heartbeat_ms} does not fit timeout_ms = {self.timeout_ms}: "
                "one late ping would be an election. Make the heartbeat at most "
                f"{self.timeout_ms // HEARTBEATS_PER_TIMEOUT_MIN}"
            )
        if self.participant_write_interval_millis < 2 * self.timeout_ms:
            raise InvalidSetting(
                "participant_write_interval_millis = "
                f"{self.participant_write_interval_millis} is shorter than two timeouts "
                f"({self.timeout_ms} ms each): members would leave the count while they live"
            )
        if self.batch_events_max < 1 or self.report_interval_ms < 1:
            raise InvalidSetting("batch_events_max and report_interval_ms must be above 0")

    def _check_endpoint(self) -> None:
        where = self.endpoint_host_and_port
        if where and not where.rpartition(":")[2].isdigit():
            raise InvalidSetting(
                f"endpoint_host_and_port {where!r} is not of the form host:port; it is the "
                "address at which the other replicas reach this one"
            )
        if not self.endpoint_path.startswith("/") or self.endpoint_path in ("/health", "/metrics"):
            raise InvalidSetting(
                f"endpoint_path {self.endpoint_path!r} must begin with a slash, and /health and "
                "/metrics are taken"
            )
        if self.endpoint_scheme == "https" and not (self.certificate_path and self.key_path):
            raise InvalidSetting("endpoint_scheme https needs certificate_path and key_path")
