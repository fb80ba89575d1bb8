"""Where the brokers are, and how to come in: one value that goes to all clients of a pipeline.

There are three kinds of them: librdkafka in the driver, `format("dovetail")` in Spark's workers,
and the client of timelines. Settings of TLS and login have librdkafka's names
(`dovetail.wire.login.SETTINGS`); as options of a table each begins with `kafka.`.

It is made of strings, so that it can be sent to workers. The password is not shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.errors import InvalidInput
from dovetail.wire.login import SETTINGS, ClientLogin, checked

PREFIX = "kafka."
#: The names of the settings as options of a table.
LOGIN_OPTIONS = tuple(PREFIX + name for name in SETTINGS)


@dataclass(frozen=True, slots=True)
class Brokers:
    """A cluster, as its clients reach it; equal ones can share a client."""

    bootstrap: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def at(cls, bootstrap: str, settings: Mapping[str, str] | None = None) -> "Brokers":
        """With settings of TLS and login. Raises `InvalidInput`."""
        parse_bootstrap(bootstrap)
        return cls(bootstrap, tuple(sorted(checked(settings or {}).items())))

    def for_librdkafka(self) -> dict[str, str | int | float | bool]:
        """What every client of librdkafka begins with; it tells of nothing by itself."""
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, **dict(self.settings)}

    def for_tables(self) -> dict[str, str]:
        """The options of `format("dovetail")`."""
        given = {"bootstrap.servers": self.bootstrap, **dict(self.settings)}
        return {PREFIX + name: value for name, value in given.items()}

    def login(self) -> ClientLogin:
        """For a connection of our own. Raises `InvalidInput` if files cannot be read here."""
        return ClientLogin.of(dict(self.settings))


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Addresses of `host:port,host:port`. Raises `InvalidInput`."""
    addresses = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdigit():
            raise InvalidInput(
                f"{part.strip()!r} is no address of a broker; write host:port, with commas between"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses
