"""Timelines over HTTP: what waits, how late, who has what; create and delete them."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import NotFound
from dovetail.timeline.config import Name, check_name, config_of
from dovetail.timeline.frames import Described


class TimelineRow(Struct, frozen=True):
    """A timeline in the list; counts are None unless it is ready."""

    timeline: str
    state: str
    waiting: int | None = None
    due: int | None = None
    leased: int | None = None
    dead: int | None = None
    consumers: int | None = None
    late_ms_p99: float | None = None
    arrivals_per_s: float | None = None
    done_per_s: float | None = None


class TimelineList(Struct, frozen=True):
    """All timelines; `enabled` is false where the node serves none, and `reason` says why."""

    enabled: bool
    reason: str | None
    timelines: list[TimelineRow]


class Lateness(Struct, frozen=True):
    """How late the last deliveries were, in milliseconds."""

    p50: float
    p99: float


class ConsumerShown(Struct, frozen=True):
    """A consumer, as its broker sees it."""

    id: str
    rack: str
    buckets: int
    credit: int
    latency_ms: float
    leased: int
    lease_ms: int


class ScheduleShown(Struct, frozen=True):
    """A recurring schedule and its next time."""

    name: str
    cron: str
    zone: str
    every_ms: int
    next_ms: int


class TimelineShown(Struct, frozen=True):
    """A timeline: messages by state, load, lateness, consumers, settings."""

    timeline: str
    waiting: int
    due: int
    leased: int
    dead: int
    consumers: int
    oldest_due_ms: int | None
    late_ms: Lateness
    arrivals_per_second: float
    done_per_second: float
    #: Messages that become due in this window and in each of the next ones.
    next_windows: list[int]
    window_ms: int
    consumers_suggested: int
    condition: str
    reasons: list[str]
    config: dict[str, int | str]
    consumer_list: list[ConsumerShown]
    schedules: list[ScheduleShown]


class TimelineNew(Struct, frozen=True, forbid_unknown_fields=True):
    """A timeline to create, with settings of its own."""

    timeline: Name
    config: Annotated[dict[str, int | str], Meta(max_length=50)] = {}


async def list_timelines(desk: Desk, _: Asked[None, None]) -> TimelineList:
    """Messages by state, load and lateness of each."""
    return await timeline_list(desk)


async def timeline_list(desk: Desk) -> TimelineList:
    """The list, as the page and the live stream show it."""
    if desk.timelines.missing is not None:
        return TimelineList(False, desk.timelines.missing, [])
    client = await desk.timelines.client()
    rows = []
    for name, state in await client.timelines():
        row = TimelineRow(name, state)
        if state == "ready":
            try:
                row = _row(name, state, await client.timeline(name).describe())
            except NotFound:
                continue
        rows.append(row)
    return TimelineList(True, None, rows)


def _row(name: str, state: str, found: Described) -> TimelineRow:
    return TimelineRow(
        timeline=name,
        state=state,
        waiting=found.counts.waiting,
        due=found.counts.due,
        leased=found.counts.leased,
        dead=found.counts.dead,
        consumers=len(found.consumers),
        late_ms_p99=found.late_ms_p99,
        arrivals_per_s=found.signals.arrivals,
        done_per_s=found.signals.done,
    )


async def show_timeline(desk: Desk, asked: Asked[None, None]) -> TimelineShown:
    """The histogram of the next windows, and who has how many buckets."""
    return await timeline_shown(desk, asked.path["timeline"])


async def timeline_shown(desk: Desk, name: str) -> TimelineShown:
    """One timeline. Raises `TopicUnknown`."""
    timeline = await desk.timelines.timeline(check_name(name))
    found = await timeline.describe()
    schedules = await timeline.schedules()
    counts, signals = found.counts, found.signals
    return TimelineShown(
        timeline=found.timeline,
        waiting=counts.waiting,
        due=counts.due,
        leased=counts.leased,
        dead=counts.dead,
        consumers=len(found.consumers),
        oldest_due_ms=counts.oldest_due_ms or None,
        late_ms=Lateness(found.late_ms_p50, found.late_ms_p99),
        arrivals_per_second=signals.arrivals,
        done_per_second=signals.done,
        next_windows=signals.windows,
        window_ms=found.config.window_ms,
        consumers_suggested=signals.consumers_suggested,
        condition=signals.condition,
        reasons=signals.reasons,
        config=msgspec.to_builtins(found.config),
        consumer_list=[
            ConsumerShown(
                id=each.id,
                rack=each.rack,
                buckets=each.buckets,
                credit=each.credit,
                latency_ms=each.latency_ms,
                leased=each.leased,
                lease_ms=each.lease_ms,
            )
            for each in found.consumers
        ],
        schedules=[
            ScheduleShown(each.name, each.cron, each.zone, each.every_ms, each.next_ms)
            for each in schedules
        ],
    )


async def create_timeline(desk: Desk, asked: Asked[None, TimelineNew]) -> TimelineShown:
    """Settings that are not given have their defaults."""
    config = config_of(dict(asked.body.config))
    timeline = await desk.timelines.timeline(asked.body.timeline)
    await timeline.create(config)
    return await timeline_shown(desk, asked.body.timeline)


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
