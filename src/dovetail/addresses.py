"""Parses addresses: `host:port`, `[::1]:9092`, and lists of them with commas.

Every address that a user, a setting or a peer gives is parsed here, so that a list, an IPv6 address
and a mistake mean the same everywhere.
"""

from typing import NamedTuple

from dovetail.errors import InvalidInput

PORT_MAX = 65_535


class Address(NamedTuple):
    """A host and a port; written as it is read."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, *, what: str = "address", port_default: int | None = None) -> Address:
    """One address. Raises `InvalidInput` that names `what` was given and the form it should have.

    A bare IPv6 address cannot be told from a host with a port, so it needs its brackets.
    """
    given = text.strip()
    if given.startswith("["):
        host, closed, rest = given[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        well_formed = bool(closed) and ":" in host and colon in {"", ":"}
    else:
        host, colon, port = given.rpartition(":") if ":" in given else (given, "", "")
        well_formed = ":" not in host

    if not colon and port_default is not None:
        port = str(port_default)
    readable = port.isascii() and port.isdecimal() and int(port) <= PORT_MAX
    if not well_formed or not host or "/" in host or host.split() != [host] or not readable:
        raise InvalidInput(
            f"{what} {text!r} is not of the form host:port; write for example 127.0.0.1:9092, "
            "or [::1]:9092 for IPv6"
        )
    return Address(host, int(port))


def parse_addresses(
    text: str, *, what: str = "address", port_default: int | None = None
) -> tuple[Address, ...]:
    """A list with commas, in its order, each once. Raises `InvalidInput`, also if it is empty."""
    parts = [part for part in text.split(",") if part.strip()]
    found = [parse_address(part, what=what, port_default=port_default) for part in parts]
    if not found:
        raise InvalidInput(f"{what} is empty; write host:port, or several with commas")
    return tuple(dict.fromkeys(found))
