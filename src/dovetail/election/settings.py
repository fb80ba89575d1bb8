"""Settings for the members of an election: the source's settings under its names, and ours.

`docs/stream.md` maps them. Everything is checked before anything starts: a heartbeat that does not
fit its timeout, an endpoint without a secret, a path that is not one.
"""

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from dovetail.addresses import Address, parse_address
from dovetail.election.election import Times
from dovetail.election.identifiers import Algorithm, MemberName
from dovetail.election.shared_log import Signing
from dovetail.errors import InvalidInput, InvalidSetting
from dovetail.foreign import check_key, check_topic, encoded, shown

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


_PATH = re.compile(r"/[a-zA-Z0-9._~/-]*")
_HOST = re.compile(r"[a-zA-Z0-9._:%-]{1,255}")
#: Paths that the endpoint serves itself.
_TAKEN = ("/health", "/metrics")

T = TypeVar("T")


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
    #: Whether records of the shared log that no member signed are ignored; `optional` understands
    #: members of a version that did not sign, while they are replaced one by one.
    log_signatures: Literal["required", "optional"] = "required"
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
        self._check_texts()
        if "/" in self.environment_identifier:
            raise InvalidSetting(
                f"environment_identifier {self.environment_identifier!r} must be a name without "
                "a slash, such as 'test' or 'prod'"
            )
        self._check_times()
        self._check_endpoint()

    def check_secret(self) -> None:
        """Raises `InvalidSetting` if there is no secret to sign messages with."""
        size = len(self.secret)
        if size < SECRET_BYTES_MIN:
            raise InvalidSetting(
                f"shared_secret has {size} bytes; the endpoint needs "
                f"{SECRET_BYTES_MIN} or more, the same on all replicas, for example from "
                "`openssl rand -hex 32`"
            )

    @property
    def secret(self) -> bytes:
        """The shared secret. Raises `InvalidSetting` if it has no encoding."""
        return _fit(lambda: encoded(self.shared_secret, "shared_secret"))

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
    def signing(self) -> Signing | None:
        """How records of the shared log are signed; not at all without a secret."""
        if not self.shared_secret:
            return None
        return Signing(self.shared_secret, required=self.log_signatures == "required")

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

    def _check_texts(self) -> None:
        """What becomes the name of a topic, a part of keys, and the name of a file."""
        name = self.coordination_stream_id
        if self.algorithm is Algorithm.COORDINATOR:
            _fit(lambda: check_key(name, "coordination_stream_id"))
        else:
            _fit(lambda: check_topic(name))
        _fit(lambda: check_key(self.environment_identifier, "environment_identifier"))
        _ = self.secret
        files = (self.vote_path, self.certificate_path, self.key_path, self.authority_path)
        for file in map(str, files):
            if "\0" in file:
                raise InvalidSetting(f"{shown(file)} cannot name a file")

    def _check_times(self) -> None:
        if self.timeout_ms < TIMEOUT_MS_MIN:
            raise InvalidSetting(
                f"timeout_ms = {self.timeout_ms} is below {TIMEOUT_MS_MIN}: a busy machine would "
                "look like a dead one"
            )
        if self.heartbeat_ms < 0:
            raise InvalidSetting(f"heartbeat_ms = {self.heartbeat_ms} must be above 0")
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
        if not _PATH.fullmatch(self.endpoint_path) or self.endpoint_path in _TAKEN:
            raise InvalidSetting(
                f"endpoint_path {shown(self.endpoint_path)} must begin with a slash, hold letters, "
                "digits and . _ ~ / -, and be neither /health nor /metrics, which are reserved"
            )
        if self.listen_host and not _HOST.fullmatch(self.listen_host):
            raise InvalidSetting(f"listen_host {shown(self.listen_host)} cannot name a host")
        if self.endpoint_scheme == "https" and not (self.certificate_path and self.key_path):
            raise InvalidSetting("endpoint_scheme https needs certificate_path and key_path")


def _fit(check: Callable[[], T]) -> T:
    """What a check of foreign text returns. Raises `InvalidSetting`."""
    try:
        return check()
    except InvalidInput as error:
        raise InvalidSetting(str(error)) from error
