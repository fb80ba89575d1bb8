"""The identity of a connection's client.

A client is identified by its certificate (the common name, where TLS demands certificates) or by a
login. Before that it may only log in. When a user's password is changed or removed, every node
closes that user's connections as soon as it sees the change.
"""

import weakref
from collections.abc import Collection
from typing import Any

from dovetail.access.guard import Access, Guard
from dovetail.access.login import Login, LoginFailed
from dovetail.access.registry import AccessRegistry, User
from dovetail.wire import Connection


class _Client:
    """A client, and what is known of it so far."""

    __slots__ = ("access", "kept", "login")

    def __init__(self, login: Login, access: Access | None) -> None:
        self.login = login
        self.access = access
        #: What was kept of its password when it logged in.
        self.kept: User | None = None


class Authenticator:
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
        #: Users of this process alone, for clients inside it.
        self._own_users: dict[str, User] = {}
        self._logged_in: weakref.WeakSet[Connection] = weakref.WeakSet()

    def access_of(self, connection: Connection) -> Access | None:
        """What the client may do; None before its login."""
        return self._client(connection).access

    def is_node(self, connection: Connection) -> bool:
        """Whether the client is a node of this cluster."""
        name = _common_name(connection.certificate)
        return name is not None and name in self._nodes

    def login_of(self, connection: Connection) -> Login:
        """The conversation with the client."""
        return self._client(connection).login

    def welcome(self, connection: Connection, principal: str) -> None:
        """The client has proved who it is, whatever its certificate says.

        Raises `LoginFailed` if it has logged in as somebody else before, or the password that it
        proved was changed or removed meanwhile.
        """
        client = self._client(connection)
        kept = self._user(principal)
        if kept is None or kept != client.login.kept:
            raise LoginFailed("the name or the password is wrong")
        before = client.access.principal if client.access is not None and client.kept else principal
        if before != principal:
            raise LoginFailed("this connection belongs to another user; open a new one")
        client.access = self._guard.bind(principal, connection.host)
        client.kept = kept
        connection.admit()
        self._logged_in.add(connection)

    def look_again(self) -> None:
        """Users or rules have changed: decides again, and closes connections of changed users."""
        self._guard.forget()
        for connection in tuple(self._logged_in):
            client = self._client(connection)
            if client.access is None or self._user(client.access.principal) != client.kept:
                connection.close()

    def add_own_user(self, name: str, user: User) -> None:
        """Adds a user that only this process knows."""
        self._own_users[name] = user

    def _user(self, name: str) -> User | None:
        return self._own_users.get(name) or self._registry.user(name)

    def begin(self, connection: Connection) -> Login:
        """Starts a new conversation, for a client that logs in again."""
        client = self._client(connection)
        client.login = self._new_login()
        return client.login

    def _new_login(self) -> Login:
        return Login(self.mechanisms, self._user, self._registry.users().values)

    def _client(self, connection: Connection) -> _Client:
        known = connection.guest
        if isinstance(known, _Client):
            return known

        name = _common_name(connection.certificate)
        if not self._certificates and name not in self._nodes:
            name = None
        access = None if name is None else self._guard.bind(name, connection.host)
        made = connection.guest = _Client(self._new_login(), access)
        return made


def _common_name(certificate: dict[str, Any] | None) -> str | None:
    """The common name in a certificate, as `ssl` gives it."""
    if not certificate:
        return None
    for part in certificate.get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None
