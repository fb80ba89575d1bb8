"""The section `client`: how the command line, and what it starts, reach a node."""

from typing import Literal

from dovetail.settings.kinds import MINUTE_MS, SECOND_MS, DurationMs, Section, setting


class ClientSettings(Section):
    """How the command line reaches a node."""

    bootstrap: str = setting(
        "", "Address (host:port) of the node; empty: the one in the kafka section."
    )
    # Below 100 ms a healthy but busy node would be called unreachable.
    timeout_ms: DurationMs = setting(
        10 * SECOND_MS, "Time to wait for an answer.", ge=100, le=60 * MINUTE_MS
    )
    tls: bool = setting(False, "Whether the node speaks TLS.")
    tls_ca: str = setting(
        "", "File with the CA of the node's certificate (PEM); empty: the system's CAs."
    )
    tls_certificate: str = setting(
        "", "File with the client certificate (PEM), if the node requires one."
    )
    tls_key: str = setting("", "File with the key of that certificate (PEM).")
    user: str = setting("", "Name to log in with; empty: no login.")
    password: str = setting("", "Password to log in with.", secret=True)
    mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = setting(
        "SCRAM-SHA-512", "How to log in."
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
