"""Who is at the other end of a connection.

A client is known by its certificate (the common name, where TLS asks for certificates), or by a
login. Until then it may only log in. A user whose password is changed or removed is sent away from
all its connections on every node, as soon as the change is known there.
"""

import weakref
from collections.abc import Collection
from typing import Any

from dovetail.access.guard import Access, Guard
from dovetail.access.login import Login, LoginFailed
from dovetail.access.registry import AccessRegistry, User
from dovetail.wire import Connection


class _Guest:
    """A client, and what is known of it so far."""

    __slots__ = ("access", "kept", "login")

    def __init__(self, login: Login, access: Access | None) -> None:
        self.login = login
        self.access = access
        #: What was kept of its password when it logged in.
        self.kept: User | None = None


class Doorman:
    """Knows the clients of one node."""

    def __init__(
        self,
        registry: AccessRegistry,
        guard: Guard,
        *,
        mechanisms: Collection[str],
        certificates: bool,
        nodes: Collection[str],
    ) -> None:
        """`certificates`: whether they say who a client is; `nodes`: names in those of nodes."""
        self._registry = registry
        self._guard = guard
        self.mechanisms = tuple(mechanisms)
        self._certificates = certificates
        self._nodes = frozenset(nodes)
        #: Users of this process alone, for clients inside of it.
        self._house: dict[str, User] = {}
        self._logged_in: weakref.WeakSet[Connection] = weakref.WeakSet()

    def access_of(self, connection: Connection) -> Access | None:
        """What the client may do; None until it has said who it is."""
        return self._guest(connection).access

    def is_node(self, connection: Connection) -> bool:
        """Whether a node of this cluster is there."""
        name = _common_name(connection.certificate)
        return name is not None and name in self._nodes

    def login_of(self, connection: Connection) -> Login:
        """The conversation with the client."""
        return self._guest(connection).login

    def welcome(self, connection: Connection, principal: str) -> None:
        """The client has proved who it is, whatever its certificate says.

        Raises `LoginFailed` if it has logged in as somebody else before.
        """
        guest = self._guest(connection)
        before = guest.access.principal if guest.access is not None and guest.kept else principal
        if before != principal:
            raise LoginFailed("one connection is one client; open another for another name")
        guest.access = self._guard.bind(principal, connection.host)
        guest.kept = self._user(principal)
        self._logged_in.add(connection)

    def look_again(self) -> None:
        """Users or rules have changed: judges anew, and sends away whose password is not valid."""
        self._guard.forget()
        for connection in tuple(self._logged_in):
            guest = self._guest(connection)
            if guest.access is None or self._user(guest.access.principal) != guest.kept:
                connection.close()

    def take_in(self, name: str, user: User) -> None:
        """A user that only this process knows."""
        self._house[name] = user

    def _user(self, name: str) -> User | None:
        return self._house.get(name) or self._registry.user(name)

    def new_login(self) -> Login:
        """A conversation that has not begun."""
        return Login(self.mechanisms, self._user)

    def _guest(self, connection: Connection) -> _Guest:
        guest = connection.guest
        if isinstance(guest, _Guest):
            return guest
        name = _common_name(connection.certificate)
        if not self._certificates and name not in self._nodes:
            name = None
        access = None if name is None else self._guard.bind(name, connection.host)
        made = connection.guest = _Guest(self.new_login(), access)
        return made

    def begin(self, connection: Connection) -> Login:
        """Begins a conversation anew, as a client does that logs in again."""
        guest = self._guest(connection)
        guest.login = self.new_login()
        return guest.login


def _common_name(certificate: dict[str, Any] | None) -> str | None:
    """The name in a certificate, as `ssl` tells it."""
    if not certificate:
        return None
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None
