"""Messages of a timeline over HTTP: look up, schedule, move, cancel, also by filter; recurring
schedules.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dovetail.admin import timelines
from dovetail.console.desk import Desk
from dovetail.console.web import content
from dovetail.console.web.endpoint import MESSAGE_BODY_BYTES_MAX, Asked, Endpoint
from dovetail.errors import InvalidInput
from dovetail.foreign import Key
from dovetail.timeline.config import check_name
from dovetail.timeline.engine.schedule import EVERY_MS_MAX
from dovetail.timeline.engine.where import SelectAction, Where
from dovetail.timeline.message import (
    REASON_CHARACTERS_MAX,
    KeyRule,
    Life,
    NewMessage,
    Number,
    OnTaken,
    Priority,
    Shown,
    TimeMs,
    encode_headers,
)

#: Messages that one answer shows.
_LIMIT_MAX = 1_000


class TimelineMessagesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages: those of ids, that of a key, or the next ones."""

    id: Annotated[
        list[Number], Meta(max_length=_LIMIT_MAX, description="Ids; repeat it for several.")
    ] = []
    key: Annotated[Key | None, Meta(description="The message that has this unique key.")] = None
    limit: Annotated[
        int, Meta(ge=1, le=_LIMIT_MAX, description="How many of the next messages.")
    ] = 50
    value_bytes: content.ShownBytes = content.SHOWN_BYTES_DEFAULT


class TimelineMessage(Struct, frozen=True):
    """A message of a timeline."""

    id: int
    state: str
    due_ms: int
    visible_ms: int
    attempts: int
    priority: int
    bucket: int
    key: str | None
    order_key: str | None
    holder: str | None
    reason: str
    died_ms: int | None
    body: content.Content | None
    headers: list[content.HeaderShown]


class TimelineMessages(Struct, frozen=True):
    """Messages; ids and keys that are not there are left out."""

    messages: list[TimelineMessage]


class MessageLife(Life, frozen=True, array_like=False, forbid_unknown_fields=True):
    """How long a message is tried; 0 is what its timeline says."""


class MessageKeyRule(Struct, frozen=True, forbid_unknown_fields=True):
    """What a unique key does while a message has it; it stays taken for `hold_ms` after that one is
    done."""

    on_taken: Literal["keep", "replace", "earlier"] = "keep"
    hold_ms: TimeMs = 0


class TimelineMessageNew(Struct, frozen=True, forbid_unknown_fields=True):
    """A message to schedule: due at a time, after a delay, or now."""

    body: content.Given
    due_ms: TimeMs | None = None
    delay_ms: TimeMs | None = None
    key: Key | None = None
    priority: Priority = 0
    headers: content.HeadersGiven = []
    order_key: Key | None = None
    life: MessageLife | None = None
    key_rule: MessageKeyRule | None = None


class Scheduled(Struct, frozen=True):
    """The id; `created` is false if a message with this key was there already."""

    id: int
    created: bool


class TimelineMove(Struct, frozen=True, forbid_unknown_fields=True):
    """Another due time."""

    due_ms: TimeMs


class ScheduleNew(Struct, frozen=True, forbid_unknown_fields=True):
    """A recurring schedule: `cron` with its `zone`, or `every_ms`."""

    body: content.Given
    cron: Annotated[str, Meta(max_length=200)] = ""
    zone: Annotated[str, Meta(max_length=100)] = "UTC"
    every_ms: Annotated[int, Meta(ge=0, le=EVERY_MS_MAX)] = 0
    priority: Priority = 0
    headers: content.HeadersGiven = []


async def list_messages(desk: Desk, asked: Asked[TimelineMessagesQuery, None]) -> TimelineMessages:
    """Nothing is taken: no lease is given."""
    query = asked.query
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    found: list[Shown | None] = []
    if query.id:
        found += await timeline.look_up(*query.id)
    if query.key is not None:
        found.append(await timeline.look_up_key(query.key))
    if not query.id and query.key is None:
        found += await timeline.peek(query.limit)
    return TimelineMessages([message_shown(m, query.value_bytes) for m in found if m is not None])


def message_shown(message: Shown, bytes_max: int) -> TimelineMessage:
    """A message for a reader."""
    return TimelineMessage(
        id=message.id,
        state=message.state.name.lower(),
        due_ms=message.due_ms,
        visible_ms=message.visible_ms,
        attempts=message.attempts,
        priority=message.priority,
        bucket=message.bucket,
        key=message.key,
        order_key=message.order_key,
        holder=message.holder,
        reason=message.reason,
        died_ms=message.died_ms or None,
        body=content.shown(message.body, bytes_max),
        headers=content.shown_headers(timelines.headers_of(message), bytes_max),
    )


async def schedule_message(desk: Desk, asked: Asked[None, TimelineMessageNew]) -> Scheduled:
    """Stored when this returns. If a waiting message has the key, the answer is that message."""
    new = asked.body
    if new.due_ms is not None and new.delay_ms is not None:
        raise InvalidInput("give due_ms or delay_ms, not both")
    due_ms = new.due_ms if new.due_ms is not None else desk.clock.wall_ms() + (new.delay_ms or 0)
    message = NewMessage(
        due_ms=due_ms,
        body=content.given_bytes(new.body, "body") or b"",
        headers=_packed(new.headers),
        key=new.key,
        priority=new.priority,
        order_key=new.order_key,
        life=None if new.life is None else Life(*msgspec.structs.astuple(new.life)),
        key_rule=_rule(new),
    )
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    return Scheduled(*await timelines.schedule_message(timeline, message))


def _rule(new: TimelineMessageNew) -> KeyRule | None:
    rule = new.key_rule
    if rule is None:
        return None
    if new.key is None:
        raise InvalidInput("key_rule is about a key; give one")
    return KeyRule(OnTaken[rule.on_taken.upper()], rule.hold_ms)


def _packed(headers: list[content.HeaderGiven]) -> bytes:
    given = content.given_headers(headers)
    return encode_headers(tuple((name, value or b"") for name, value in given))


async def move_message(desk: Desk, asked: Asked[None, TimelineMove]) -> TimelineMessage:
    """Gives a message another due time. Refused while a consumer has leased it."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    number = asked.number("id")
    found = await timelines.move_message(timeline, number, due_ms=asked.body.due_ms)
    return message_shown(found, content.SHOWN_BYTES_DEFAULT)


async def cancel_message(desk: Desk, asked: Asked[None, None]) -> None:
    """Removes a message for good. Refused while a consumer has leased it."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    await timelines.cancel_message(timeline, asked.number("id"))


class MessageFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which ones: all that is said must be so. `older_ms`: due, or dead, at least so long ago."""

    key_prefix: Annotated[str, Meta(max_length=1_024)] = ""
    header: Annotated[str, Meta(max_length=1_024)] = ""
    #: Text; any value if it is not given.
    header_value: Annotated[str, Meta(max_length=256)] | None = None
    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    older_ms: TimeMs = 0


class TimelineSelect(Struct, frozen=True, forbid_unknown_fields=True):
    """What to do to messages (`cancel`, `move`) or dead letters (`replay`, `drop`) that fit;
    `preview` counts them."""

    action: SelectAction
    where: MessageFilter
    #: Goes on behind this id: that of the answer before.
    after: Number = 0
    #: Of `preview`: dead letters, and not messages.
    dead: bool = False
    #: Of `move`.
    due_ms: TimeMs | None = None


class TimelineSelected(Struct, frozen=True):
    """Of a page of messages: how many fit, how many were changed, some ids of them. If there is
    `more`, ask again with `after`."""

    matched: int
    done: int
    after: int
    more: bool
    ids: list[int]


async def select_messages(desk: Desk, asked: Asked[None, TimelineSelect]) -> TimelineSelected:
    """Looks at a thousand messages in one call; those that somebody is handling stay."""
    given = asked.body
    if (given.due_ms is None) == (given.action == "move"):
        raise InvalidInput("move, and nothing else, takes due_ms")
    filters = given.where
    value = filters.header_value
    where = Where(
        key_prefix=filters.key_prefix,
        header=filters.header,
        header_value=None if value is None else value.encode(),
        reason=filters.reason,
        older_ms=filters.older_ms,
    )
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    page = await anext(
        timeline.select(
            given.action, where, dead=given.dead, due_ms=given.due_ms or 0, after=given.after
        )
    )
    return TimelineSelected(page.matched, page.done, page.after, page.more, list(page.ids))


async def put_schedule(desk: Desk, asked: Asked[None, ScheduleNew]) -> None:
    """Makes a message at every time of the cron line, or every so often; replaces one so named."""
    new = asked.body
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    await timeline.put_schedule(
        _schedule_name(asked.path["name"]),
        content.given_bytes(new.body, "body") or b"",
        cron=new.cron,
        zone=new.zone,
        every=f"{new.every_ms}ms" if new.every_ms else None,
        headers={name: value or b"" for name, value in content.given_headers(new.headers)},
        priority=new.priority,
    )


async def drop_schedule(desk: Desk, asked: Asked[None, None]) -> None:
    """Ends a schedule; messages that it made stay."""
    timeline = await desk.timelines.timeline(check_name(asked.path["timeline"]))
    await timeline.drop_schedule(_schedule_name(asked.path["name"]))


def _schedule_name(name: str) -> str:
    try:
        return msgspec.convert(name, Key)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{name[:100]!r} is not a name for a schedule: {error}") from error


_ONE = "/v1/timelines/{timeline}"
ENDPOINTS = (
    Endpoint(
        "GET",
        f"{_ONE}/messages",
        list_messages,
        "Look at messages",
        TimelineMessages,
        query=TimelineMessagesQuery,
    ),
    Endpoint(
        "POST",
        f"{_ONE}/messages",
        schedule_message,
        "Schedule a message",
        Scheduled,
        body=TimelineMessageNew,
        status=201,
        action="timeline.schedule",
        body_bytes_max=MESSAGE_BODY_BYTES_MAX,
    ),
    Endpoint(
        "PATCH",
        f"{_ONE}/messages/{{id}}",
        move_message,
        "Move a message to another time",
        TimelineMessage,
        body=TimelineMove,
        action="timeline.move",
        numbers=("id",),
    ),
    Endpoint(
        "DELETE",
        f"{_ONE}/messages/{{id}}",
        cancel_message,
        "Cancel a message",
        status=204,
        action="timeline.cancel",
        numbers=("id",),
    ),
    Endpoint(
        "POST",
        f"{_ONE}/select",
        select_messages,
        "Cancel, move, replay or drop by filter",
        TimelineSelected,
        body=TimelineSelect,
        action="timeline.select",
    ),
    Endpoint(
        "PUT",
        f"{_ONE}/schedules/{{name}}",
        put_schedule,
        "Set a recurring schedule",
        body=ScheduleNew,
        status=204,
        action="timeline.schedule.put",
        body_bytes_max=MESSAGE_BODY_BYTES_MAX,
    ),
    Endpoint(
        "DELETE",
        f"{_ONE}/schedules/{{name}}",
        drop_schedule,
        "End a recurring schedule",
        status=204,
        action="timeline.schedule.drop",
    ),
)
