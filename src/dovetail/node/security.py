"""A node's security, from its settings: TLS, login, and permissions (R4).

Off by default: without an authenticator, no request is checked.
"""

import asyncio
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.access import (
    EVERYTHING,
    Access,
    AccessRegistry,
    Authenticator,
    Guard,
    Mechanism,
    make_credential,
)
from dovetail.access.registry import HOUSE_PREFIX
from dovetail.coordination import Coordinator
from dovetail.errors import ProtocolViolation
from dovetail.logging import get_logger
from dovetail.settings import Settings
from dovetail.tls_files import TlsFiles
from dovetail.wire import Connection

_log = get_logger("access")


#: The user that a node is to its own listener.
_OWN_NAME = f"{HOUSE_PREFIX}node"


@dataclass(frozen=True, slots=True)
class OwnWay:
    """How clients inside the node, such as the console, log in to their cluster."""

    #: As librdkafka wants it.
    kafka: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    user: str = ""
    password: str = field(default="", repr=False)


@dataclass(slots=True)
class Security:
    """What the listener and the connections to other nodes need."""

    own_way: OwnWay = field(default_factory=OwnWay)

    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None
    registry: AccessRegistry | None = None
    authenticator: Authenticator | None = None
    files: TlsFiles | None = None

    def look_at_files(self) -> None:
        """Takes up certificates that were renewed."""
        if self.files is not None:
            self.files.look()

    def access_of(self, connection: Connection) -> Access:
        """What the client may do. Raises `ProtocolViolation` before its login."""
        access = (
            EVERYTHING if self.authenticator is None else self.authenticator.access_of(connection)
        )
        if access is None:
            raise ProtocolViolation("the client sent a request before it logged in; log in first")
        return access

    def user_of(self, connection: Connection) -> str:
        """As whom the client has logged in; empty if it has not."""
        access = None if self.authenticator is None else self.authenticator.access_of(connection)
        return "" if access is None or access.principal is None else access.principal

    def is_stranger(self, connection: Connection) -> bool:
        """Whether the client still has to log in."""
        authenticator = self.authenticator
        return authenticator is not None and authenticator.access_of(connection) is None

    def is_node(self, connection: Connection) -> bool:
        """Whether this is a node of the cluster; without logins every client counts as one."""
        return self.authenticator is None or self.authenticator.is_node(connection)

    def demand_node(self, connection: Connection) -> None:
        """Raises `ProtocolViolation` if this is not a node of the cluster."""
        if not self.is_node(connection):
            raise ProtocolViolation(
                "only nodes may call storage nodes: name their certificates in security.nodes"
            )

    async def stop(self) -> None:
        """Follows users and rules no more."""
        if self.registry is not None:
            await self.registry.stop()


async def start_security(settings: Settings, coordinator: Coordinator) -> Security:
    """Reads certificates, users and rules; creates the first admin if there is none.

    Raises `InvalidSetting` or `CoordinationDown`.
    """
    files = settings.security.tls_files()
    security = await _security_of(settings, coordinator)
    if files is not None:
        files.keep((security.server_tls, security.client_tls, security.own_way.tls))
        security.files = files
    return security


async def _security_of(settings: Settings, coordinator: Coordinator) -> Security:
    wanted = settings.security
    server_tls, client_tls = wanted.server_tls(), wanted.client_tls()
    if not wanted.on:
        users = AccessRegistry(coordinator, on_change=lambda: None)
        await users.start()
        return Security(_own_way(settings, None), server_tls, client_tls, users)
    authenticators: list[Authenticator] = []

    def changed() -> None:
        for authenticator in authenticators:
            authenticator.look_again()

    registry = AccessRegistry(coordinator, on_change=changed)
    judge = registry.judge if wanted.authorize else _allow_everything
    judge_some = registry.judge_some if wanted.authorize else _allow_everything
    authenticator = Authenticator(
        registry,
        Guard(judge, judge_some, {_OWN_NAME, *wanted.admin_names(), *wanted.node_names()}),
        mechanisms=wanted.mechanisms,
        certificates=wanted.tls_clients != "none",
        nodes=wanted.node_names(),
    )
    authenticators.append(authenticator)
    await registry.start()
    await _make_first_admin(settings, registry)
    return Security(
        _own_way(settings, authenticator), server_tls, client_tls, registry, authenticator
    )


def _own_way(settings: Settings, authenticator: Authenticator | None) -> OwnWay:
    """By its certificate where nodes have them, else as a user that only this process knows."""
    wanted = settings.security
    tls = wanted.client_tls()
    given: dict[str, str] = {}
    if tls is not None:
        tls.check_hostname = False  # Clients may know the node by another name.
        given = {
            "security.protocol": "SSL",
            "ssl.ca.location": wanted.tls_ca,
            "ssl.endpoint.identification.algorithm": "none",
        }
    alone = settings.coordination.alone
    if tls is not None and not wanted.tls_ca and alone and wanted.mechanisms != ("PLAIN",):
        # A node that is alone reaches nobody but itself, and may not have been told who signed its
        # certificate. SCRAM shows the password to nobody, and whoever answers has to know it.
        tls.verify_mode = ssl.CERT_NONE
        given |= {"enable.ssl.certificate.verification": "false"}

    if authenticator is None or wanted.nodes:
        if wanted.nodes:
            given |= {
                "ssl.certificate.location": wanted.tls_certificate,
                "ssl.key.location": wanted.tls_key,
            }
        return OwnWay({name: value for name, value in given.items() if value}, tls)

    password = secrets.token_urlsafe(32)
    user = {mechanism: make_credential(mechanism, password) for mechanism in Mechanism}
    authenticator.add_own_user(_OWN_NAME, user)

    given |= {
        "security.protocol": "SASL_SSL" if tls is not None else "SASL_PLAINTEXT",
        "sasl.mechanism": wanted.mechanisms[0] if wanted.mechanisms else "",
        "sasl.username": _OWN_NAME,
        "sasl.password": password,
    }
    known = {name: value for name, value in given.items() if value}
    return OwnWay(known, tls, _OWN_NAME, password)


def _allow_everything(*_: object) -> bool:
    return True


async def _make_first_admin(settings: Settings, registry: AccessRegistry) -> None:
    password, admins = settings.security.admin_password(), settings.security.admin_names()
    if password is None or not admins or registry.user(admins[0]) is not None:
        return
    made = {
        mechanism: await asyncio.to_thread(make_credential, mechanism, password)
        for mechanism in Mechanism
    }
    await registry.change_user(admins[0], lambda user: user or made)
    _log.info("created the first admin", name=admins[0])
