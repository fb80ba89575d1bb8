"""The section `client`: how the command line, and what it starts, reach a node."""

from typing import Literal

from pydantic import Field

from dovetail.settings.kinds import SECRET, DurationMs, Section

_SECOND_MS = 1000
_MINUTE_MS = 60_000


class ClientSettings(Section):
    """How the command line reaches a node."""

    bootstrap: str = Field(
        default="",
        description="Address (host:port) of the node; empty: the one in the kafka section.",
    )
    # Below 100 ms a healthy but busy node would be called unreachable.
    timeout_ms: DurationMs = Field(
        default=10 * _SECOND_MS,
        ge=100,
        le=60 * _MINUTE_MS,
        description="Time to wait for an answer.",
    )
    tls: bool = Field(default=False, description="Whether the node speaks TLS.")
    tls_ca: str = Field(
        default="",
        description="File with the authority of the node's certificate (PEM); empty: the system's.",
    )
    tls_certificate: str = Field(
        default="", description="File with the certificate to show (PEM), if the node wants one."
    )
    tls_key: str = Field(default="", description="File with the key of that certificate (PEM).")
    user: str = Field(default="", description="Name to log in with; empty: no login.")
    password: str = Field(
        default="", description="Password to log in with.", json_schema_extra=SECRET
    )
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        default="SCRAM-SHA-512", description="How to log in."
    )

    def kafka(self) -> dict[str, str]:
        """TLS and login as librdkafka wants them; empty without either."""
        if not (self.tls or self.user):
            return {}
        protocol = ("SASL_" if self.user else "") + ("SSL" if self.tls else "PLAINTEXT")
        given = {"security.protocol": protocol}
        if self.tls:
            given |= {
                "ssl.ca.location": self.tls_ca,
                "ssl.certificate.location": self.tls_certificate,
                "ssl.key.location": self.tls_key,
            }
        if self.user:
            given |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        return {name: value for name, value in given.items() if value}
