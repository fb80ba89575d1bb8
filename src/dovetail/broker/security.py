"""A node's security, as its settings say it: TLS, who may come in, and what they may do (R4).

Off unless it is set: then there is no doorman, and nothing is looked up.
"""

import asyncio
import ssl
from dataclasses import dataclass

from dovetail.access import (
    AccessRegistry,
    Doorman,
    Guard,
    Mechanism,
    make_credential,
)
from dovetail.coordination import Coordinator
from dovetail.errors import ProtocolViolation
from dovetail.logging import get_logger
from dovetail.settings import Settings
from dovetail.wire import Connection

_log = get_logger("access")


@dataclass(slots=True)
class Security:
    """What the door and the connections to other nodes need."""

    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None
    registry: AccessRegistry | None = None
    doorman: Doorman | None = None

    def demand_known(self, connection: Connection) -> None:
        """Raises `ProtocolViolation` if the client has not said who it is, where it has to."""
        if self.doorman is not None and self.doorman.access_of(connection) is None:
            raise ProtocolViolation("a request before the client has said who it is; log in first")

    def demand_node(self, connection: Connection) -> None:
        """Raises `ProtocolViolation` if this is no node of the cluster, where that matters."""
        if self.doorman is not None and not self.doorman.is_node(connection):
            raise ProtocolViolation(
                "storage is for nodes: their certificates are named in security.nodes"
            )

    async def stop(self) -> None:
        """Follows users and rules no more."""
        if self.registry is not None:
            await self.registry.stop()


async def start_security(settings: Settings, coordinator: Coordinator) -> Security:
    """Reads certificates, users and rules; makes the first admin if there is nobody yet.

    Raises `InvalidSetting` or `CoordinationDown`.
    """
    wanted = settings.security
    server_tls, client_tls = wanted.server_tls(), wanted.client_tls()
    if not wanted.on:
        return Security(server_tls, client_tls)
    doormen: list[Doorman] = []

    def changed() -> None:
        for doorman in doormen:
            doorman.look_again()

    registry = AccessRegistry(coordinator, on_change=changed)
    judge = registry.judge if wanted.authorize else _allow_everything
    doorman = Doorman(
        registry,
        Guard(judge, {*wanted.admin_names(), *wanted.node_names()}),
        mechanisms=wanted.mechanisms,
        certificates=wanted.tls_clients != "none",
        nodes=wanted.node_names(),
    )
    doormen.append(doorman)
    await registry.start()
    await _make_first_admin(settings, registry)
    return Security(server_tls, client_tls, registry, doorman)


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
    _log.info("first admin made", name=admins[0])
