"""Timelines over HTTP: what waits, how late, which consumer has what; create and delete them."""

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.admin import timelines
from dovetail.admin.timelines import Holders, TimelineShown, TimelineSummary
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
    config: Annotated[dict[str, int | str | bool], Meta(max_length=50)] = {}


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


async def show_held(desk: Desk, asked: Asked[None, None]) -> Holders:
    """By consumer, the messages that it has leased, and until when."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    return await timelines.held_messages(timeline)


async def create_timeline(desk: Desk, asked: Asked[None, TimelineNew]) -> TimelineShown:
    """Settings that are not given have their defaults."""
    config = config_of(dict(asked.body.config))
    timeline = await desk.timelines.timeline(asked.body.timeline)
    await timeline.create(config)
    return await timelines.describe_timeline(timeline)


class TimelineChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings to change; `paused` stops pushing."""

    config: Annotated[dict[str, int | str | bool], Meta(min_length=1, max_length=50)]


class Purged(Struct, frozen=True):
    """How many messages were removed."""

    removed: int


async def alter_timeline(desk: Desk, asked: Asked[None, TimelineChange]) -> TimelineShown:
    """The other settings stay as they are; buckets cannot be changed."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    await timeline.alter(**asked.body.config)
    return await timelines.describe_timeline(timeline)


async def purge_timeline(desk: Desk, asked: Asked[None, None]) -> Purged:
    """All messages that nobody is handling; dead letters and schedules stay."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    return Purged(await timeline.purge())


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
    Endpoint("GET", f"{_ONE}/held", show_held, "Who holds which messages", Holders),
    Endpoint(
        "PATCH",
        _ONE,
        alter_timeline,
        "Change settings of a timeline, or pause it",
        TimelineShown,
        body=TimelineChange,
        action="timeline.alter",
    ),
    Endpoint(
        "POST",
        f"{_ONE}/purge",
        purge_timeline,
        "Remove the messages of a timeline",
        Purged,
        action="timeline.purge",
    ),
    Endpoint(
        "DELETE",
        _ONE,
        delete_timeline,
        "Delete a timeline with its messages",
        status=204,
        action="timeline.delete",
    ),
)
