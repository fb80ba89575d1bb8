"""The section `kafka`: the listener for Kafka clients."""

import socket
from typing import Self

from pydantic import model_validator

from dovetail.addresses import Address
from dovetail.settings.kinds import (
    DAY_MS,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    TIB,
    ByteCount,
    DurationMs,
    Port,
    Section,
    setting,
)

#: Addresses that mean "every interface" when bound; no client can connect to them by that name.
_WILDCARD_HOSTS = frozenset({"0.0.0.0", "::", "*"})


class KafkaSettings(Section):
    """The listener for Kafka clients."""

    host: str = setting("127.0.0.1", "Address to listen on for clients.", min_length=1)
    port: Port = setting(9092, "Port to listen on for clients; 0 takes any free port.")
    advertised_host: str = setting(
        "", "Host that clients connect to; empty: the host that the node listens on."
    )
    advertised_port: Port = setting(
        0, "Port that clients connect to; 0: the port that the node listens on."
    )
    # Each idle connection costs about 6 KiB; a million is more than file descriptors allow.
    connections_max: int = setting(
        10_000, "Most connections at once; the node closes those beyond it.", ge=1, le=1_000_000
    )
    # 100 MiB is what Kafka allows (socket.request.max.bytes); a length is a signed 32-bit number.
    frame_bytes_max: ByteCount = setting(
        100 * MIB, "Largest request that a client may send.", ge=2 * KIB, le=2**31 - 1
    )
    # What the node may hold for requests that are not answered; more is left in the sockets.
    request_bytes_in_flight_max: ByteCount = setting(
        256 * MIB,
        "Most request bytes held at once over all connections; beyond it the node pauses reading.",
        ge=2 * KIB,
        le=TIB,
    )
    # Below a second, a client that sends one heartbeat every 3 s could never stay connected.
    idle_ms: DurationMs = setting(
        10 * MINUTE_MS,
        "A connection without a request for this long is closed.",
        ge=SECOND_MS,
        le=7 * DAY_MS,
    )
    # A client that sends a byte a second holds memory meanwhile; 30 s carry 100 MiB at 28 Mbit/s.
    frame_read_ms: DurationMs = setting(
        30 * SECOND_MS,
        "A request must arrive completely within this time.",
        ge=10,
        le=60 * MINUTE_MS,
    )

    @model_validator(mode="after")
    def _check_frame_fits(self) -> Self:
        if self.request_bytes_in_flight_max < self.frame_bytes_max:
            raise ValueError(
                f"request_bytes_in_flight_max ({self.request_bytes_in_flight_max}) must be at "
                f"least frame_bytes_max ({self.frame_bytes_max}), or the largest request that is "
                "allowed would wait for ever"
            )
        return self

    def local_address(self, *, port_bound: int) -> Address:
        """The address at which this machine reaches the node, given the port that it listens on."""
        host = "127.0.0.1" if self.host in _WILDCARD_HOSTS else self.host
        return Address(host, port_bound)

    def advertised(self, *, port_bound: int) -> Address:
        """The address that clients connect to, given the port that the node listens on.

        A node that listens on every interface has no one address, so it advertises its host name.
        """
        host = self.advertised_host
        if not host:
            host = socket.gethostname() if self.host in _WILDCARD_HOSTS else self.host
        return Address(host, self.advertised_port or port_bound)
