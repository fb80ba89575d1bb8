"""Who is connected to this node, over HTTP."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.console.web.query import ListQuery, page_of
from dovetail.node.insight import Client


class ClientRow(Struct, frozen=True):
    """A connection. Clients of timelines and nodes say nothing of themselves but `dovetail`."""

    address: str
    #: As whom it has logged in; empty where nobody does.
    user: str
    client: str
    software: str
    produces: bool
    fetches: bool
    connected_ms: int
    #: Since when nothing was asked or answered.
    silent_ms: int


class ClientList(Struct, frozen=True):
    """Connections, the oldest first unless another order is wanted; `total` of them match."""

    clients: list[ClientRow]
    total: int
    node: str


_COLUMNS: dict[str, Callable[[Client], Any]] = {
    "address": lambda row: row.address,
    "user": lambda row: row.user,
    "client": lambda row: row.client,
    "software": lambda row: row.software,
    "connected": lambda row: row.connected_ms,
    "silent": lambda row: row.silent_ms,
}


async def list_clients(desk: Desk, asked: Asked[ListQuery, None]) -> ClientList:
    """Of the node that answers; other nodes have their own. `filter` looks at all columns."""
    found, total = page_of(desk.insight.clients(), asked.query, _text, _COLUMNS)
    rows = msgspec.convert(found, list[ClientRow], from_attributes=True)
    return ClientList(rows, total, desk.settings.node.name)


def _text(row: Client) -> str:
    return f"{row.client} {row.user} {row.address} {row.software}"


ENDPOINTS = (
    Endpoint("GET", "/v1/clients", list_clients, "Who is connected", ClientList, query=ListQuery),
)
