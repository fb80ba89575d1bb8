"""The addresses of brokers and the login: one value for every client of a cluster.

There are three kinds of clients: librdkafka, the client of this folder (in Spark's workers and in
the outbox's relay), and the client of timelines. Settings for TLS and login have librdkafka's names
(`dovetail.wire.login.SETTINGS`; `java_security` has Java's); as options of a table each begins with
`kafka.`.

The value consists of strings, so that it can be sent to workers. Its repr hides the password.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.addresses import Address, parse_addresses
from dovetail.wire.login import ClientLogin, checked

PREFIX = "kafka."


@dataclass(frozen=True, slots=True)
class Brokers:
    """A cluster, as its clients reach it; equal ones can share a client."""

    bootstrap: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def at(cls, bootstrap: str, settings: Mapping[str, str] | None = None) -> "Brokers":
        """With settings of TLS and login. Raises `InvalidInput`."""
        brokers = cls(bootstrap, tuple(sorted(checked(settings or {}).items())))
        brokers.addresses()
        return brokers

    def addresses(self) -> tuple[Address, ...]:
        """The brokers to ask first, each of which may be away. Raises `InvalidInput`."""
        return parse_addresses(self.bootstrap, what="broker address")

    def for_librdkafka(self) -> dict[str, str | int | float | bool]:
        """The settings that every client of librdkafka begins with; it writes no log lines."""
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **dict(self.settings)}

    def for_tables(self) -> dict[str, str]:
        """The options of `format("dovetail")`."""
        given = {"bootstrap.servers": self.bootstrap, **dict(self.settings)}
        return {PREFIX + name: value for name, value in given.items()}

    def login(self) -> ClientLogin:
        """For a connection of our own. Raises `InvalidInput` if files cannot be read here."""
        return ClientLogin.of(dict(self.settings))
