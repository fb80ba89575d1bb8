"""The last hour over HTTP: figures of this node, and the lag of a group that it coordinates."""

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.admin.charts import HourOfGroup, HourOfNode, hour_of_group, hour_of_node
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.node.history.lags import LAG_EVERY_MS

#: A chart is about two hundred points wide.
STEP_S = 20


class HourQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How fine the figures are."""

    step_s: Annotated[
        int, Meta(ge=5, le=600, description="Seconds in a step; a sample is taken every five.")
    ] = STEP_S


async def show_hour(desk: Desk, asked: Asked[HourQuery, None]) -> HourOfNode:
    """This node alone: in a cluster each node keeps its own. A restart empties them."""
    return hour_of_node(
        desk.insight.history.figures,
        node_id=desk.settings.node.node_id,
        node=desk.settings.node.name,
        now_ms=desk.clock.wall_ms(),
        step_ms=asked.query.step_s * 1000,
    )


async def show_group_hour(desk: Desk, asked: Asked[None, None]) -> HourOfGroup:
    """Kept by the broker that coordinates the group; `node_id` says which one that is."""
    group = asked.path["group"]
    coordinator = desk.insight.coordinator_of(group)
    here = coordinator == desk.settings.node.node_id
    return hour_of_group(
        group,
        desk.insight.history.lags.of(group) if here else None,
        coordinator=coordinator,
        here=here,
        now_ms=desk.clock.wall_ms(),
        step_ms=LAG_EVERY_MS,
    )


ENDPOINTS = (
    Endpoint(
        "GET",
        "/v1/history",
        show_hour,
        "The last hour of this node",
        HourOfNode,
        query=HourQuery,
    ),
    Endpoint(
        "GET",
        "/v1/groups/{group}/history",
        show_group_hour,
        "The lag of a group over the last hour",
        HourOfGroup,
    ),
)
