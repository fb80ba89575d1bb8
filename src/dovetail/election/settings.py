"""What can be set for the members of an election: the source's settings under its names, and ours.

`docs/stream.md` maps them. Everything is checked before anything starts: a heartbeat that does not
fit its timeout, an endpoint without a secret, a path that is not one.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from dovetail.addresses import Address, parse_address
from dovetail.election.election import Times
from dovetail.election.identifiers import Algorithm, MemberName
from dovetail.errors import InvalidInput, InvalidSetting

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


@dataclass(frozen=True)
class ElectionSettings:
    """The settings of one member; only the endpoint differs between members."""

    #: The topic (or the key prefix) of the shared log.
    coordination_stream_id: str
    #: Name of the cluster: several can share one log.
    environment_identifier: str = "test"
    #: A member that does not report within this time is not counted.
    participant_write_interval_millis: int = 24 * 60 * 60 * 1000
    algorithm: Algorithm = Algorithm.BULLY
    endpoint_scheme: Literal["http", "https"] = "http"
    endpoint_path: str = "/symphony-api/cluster-communication"
    #: Where the others reach this member; empty: this machine's name and port 8080.
    endpoint_host_and_port: str = ""
    #: The leader is replaced after about this time of silence.
    timeout_ms: int = 5_000

    #: Longest time between two pings; 0: a quarter of the timeout.
    heartbeat_ms: int = 0
    #: What all members know and nobody else.
    shared_secret: str = field(default="", repr=False)
    #: Address to listen on; empty: the endpoint's own host.
    listen_host: str = ""
    #: Port to listen on; 0: the endpoint's own port. Another one stands behind a proxy.
    listen_port: int = 0
    #: File of term and vote (MAJORITY), one for each member.
    vote_path: Path = Path("dovetail-stream.vote")
    #: For https: this member's certificate and key, and who signed those of the others.
    certificate_path: str = ""
    key_path: str = ""
    authority_path: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From `model_dump()` of the section `stream` of the settings, which may hold more."""
        known = {item.name: values[item.name] for item in fields(cls)}
        return cls(**{**known, "algorithm": Algorithm(values["algorithm"])})

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
        """The address of this member, which is its name too."""
        return MemberName(f"{self.endpoint_scheme}://{self._address}{self.endpoint_path}")

    @property
    def listen_address(self) -> Address:
        """Where to listen."""
        return Address(
            self.listen_host or self._address.host, self.listen_port or self._address.port
        )

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

    @property
    def _address(self) -> Address:
        given = self.endpoint_host_and_port or f"{socket.gethostname()}:{PORT_DEFAULT}"
        try:
            return parse_address(given, what="endpoint_host_and_port")
        except InvalidInput as error:
            raise InvalidSetting(str(error)) from error

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
                "one late ping would cause an election. Set heartbeat_ms to at most "
                f"{self.timeout_ms // HEARTBEATS_PER_TIMEOUT_MIN}"
            )

        if self.participant_write_interval_millis < 2 * self.timeout_ms:
            raise InvalidSetting(
                "participant_write_interval_millis = "
                f"{self.participant_write_interval_millis} is shorter than two timeouts "
                f"({self.timeout_ms} ms each): members would leave the count while they live"
            )

    def _check_endpoint(self) -> None:
        _ = self._address
        if not self.endpoint_path.startswith("/") or self.endpoint_path in ("/health", "/metrics"):
            raise InvalidSetting(
                f"endpoint_path {self.endpoint_path!r} must begin with a slash, and must be "
                "neither /health nor /metrics, which are taken"
            )
        if self.endpoint_scheme == "https" and not (self.certificate_path and self.key_path):
            raise InvalidSetting("endpoint_scheme https needs certificate_path and key_path")
