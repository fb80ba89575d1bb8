"""Timelines over HTTP: what waits, how late, who has what; create and delete them."""

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.admin import timelines
from dovetail.admin.timelines import TimelineShown, TimelineSummary
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.timeline.config import Name, check_name, config_of


class TimelineList(Struct, frozen=True):
    """All timelines; `enabled` is false where the node serves none, and `reason` says why."""

    enabled: bool
    reason: str | None
    timelines: list[TimelineSummary]


class TimelineNew(Struct, frozen=True, forbid_unknown_fields=True):
    """A timeline to create, with settings of its own."""

    timeline: Name
    config: Annotated[dict[str, int | str], Meta(max_length=50)] = {}


async def list_timelines(desk: Desk, _: Asked[None, None]) -> TimelineList:
    """Messages by state, load and lateness of each."""
    if desk.timelines.missing is not None:
        return TimelineList(False, desk.timelines.missing, [])
    client = await desk.timelines.client()
    return TimelineList(True, None, await timelines.list_timelines(client))


async def show_timeline(desk: Desk, asked: Asked[None, None]) -> TimelineShown:
    """The histogram of the next windows, and who has how many buckets."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    return await timelines.describe_timeline(timeline)


async def create_timeline(desk: Desk, asked: Asked[None, TimelineNew]) -> TimelineShown:
    """Settings that are not given have their defaults."""
    config = config_of(dict(asked.body.config))
    timeline = await desk.timelines.timeline(asked.body.timeline)
    await timeline.create(config)
    return await timelines.describe_timeline(timeline)


async def delete_timeline(desk: Desk, asked: Asked[None, None]) -> None:
    """Deletes all its messages, dead letters and schedules, for good."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    await timeline.delete()


_ONE = "/v1/timelines/{timeline}"
ENDPOINTS = (
    Endpoint("GET", "/v1/timelines", list_timelines, "List timelines", TimelineList),
    Endpoint(
        "POST",
        "/v1/timelines",
        create_timeline,
        "Create a timeline",
        TimelineShown,
        body=TimelineNew,
        status=201,
        action="timeline.create",
    ),
    Endpoint("GET", _ONE, show_timeline, "Show a timeline", TimelineShown),
    Endpoint(
        "DELETE",
        _ONE,
        delete_timeline,
        "Delete a timeline with its messages",
        status=204,
        action="timeline.delete",
    ),
)
