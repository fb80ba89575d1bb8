"""The coordination of a node, as its settings say: embedded, beside it, or in etcd."""

from collections.abc import Callable

from dovetail.addresses import parse_address
from dovetail.clock import Clock
from dovetail.coordination import Coordinator, EmbeddedCoordinator
from dovetail.coordination.etcd import EtcdCoordinator, EtcdSettings
from dovetail.coordination.service import CoordinationService
from dovetail.coordination.shared import SharedCoordinator
from dovetail.errors import CoordinationDown
from dovetail.settings import Settings
from dovetail.wire.login import ClientLogin


async def open_coordinator(
    settings: Settings, clock: Clock, on_down: Callable[[CoordinationDown, float], None]
) -> Coordinator:
    """Opens it; waits for etcd, and calls `on_down` with each failure and the time to the next try.

    Raises `CoordinationDown`, `Damaged` or `InvalidSetting`.
    """
    coordination = settings.coordination
    if coordination.kind == "embedded":
        path = settings.node.data_dir / "coordination.sqlite"
        return await EmbeddedCoordinator.open(path, clock=clock)
    if coordination.kind == "shared":
        return await SharedCoordinator.open(
            parse_address(coordination.shared_at, what="coordination.shared_at"),
            client_id=settings.node.name,
            login=ClientLogin(settings.security.client_tls()),
        )
    return await EtcdCoordinator.open_patiently(EtcdSettings.of(coordination), on_down)


def shared_by(settings: Settings, coordinator: Coordinator) -> CoordinationService | None:
    """What answers the nodes that share it, if others may."""
    if not settings.coordination.share or not isinstance(coordinator, EmbeddedCoordinator):
        return None
    return CoordinationService(coordinator)
