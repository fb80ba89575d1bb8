"""Dead letters of timelines."""

from dovetail.console.desk import Desk
from dovetail.console.nouns.dead_letter import (
    DeadDone,
    DeadLeft,
    DeadLetter,
    DeadSource,
    Found,
    numbers,
)
from dovetail.console.nouns.timeline_messages import message_shown
from dovetail.console.nouns.timelines import timeline_list
from dovetail.console.web.content import shown
from dovetail.timeline.config import check_name
from dovetail.timeline.message import Shown, Status


async def look(desk: Desk, name: str | None, limit: int, bytes_max: int) -> Found:
    """The oldest ones of each timeline that has some, or of one."""
    found = Found()
    for row in (await timeline_list(desk)).timelines:
        if row.dead is None or (name is not None and row.timeline != name):
            continue
        found.sources.append(DeadSource("timeline", row.timeline, row.dead))
        if row.dead and limit:
            timeline = await desk.timelines.timeline(row.timeline)
            dead = await timeline.dead(limit=limit)
            found.letters.extend(_letter(row.timeline, each, bytes_max) for each in dead)
    return found


def _letter(name: str, message: Shown, bytes_max: int) -> DeadLetter:
    seen = message_shown(message, bytes_max)
    first, _, rest = message.reason.partition("\n")
    return DeadLetter(
        source="timeline",
        name=name,
        id=str(message.id),
        key=None if message.key is None else shown(message.key.encode(), bytes_max),
        body=seen.body,
        headers=seen.headers,
        reason=first,
        kind=None,
        attempts=message.attempts,
        died_ms=seen.died_ms,
        detail=rest or None,
        can_replay=True,
        can_drop=True,
    )


async def replay(desk: Desk, name: str, ids: list[str], who: str) -> DeadDone:
    """Makes messages of them again, due now."""
    timeline = await desk.timelines.timeline(check_name(name))
    return _done(ids, await timeline.replay(*numbers(ids)))


async def drop(desk: Desk, name: str, ids: list[str], who: str) -> DeadDone:
    """Deletes them."""
    timeline = await desk.timelines.timeline(check_name(name))
    return _done(ids, await timeline.drop_dead(*numbers(ids)))


def _done(ids: list[str], statuses: list[Status]) -> DeadDone:
    reasons = {
        Status.GONE: "there is no such dead letter any more",
        Status.EXISTS: "another message has its key by now",
    }
    left = [
        DeadLeft(each, reasons.get(status, status.name.lower()))
        for each, status in zip(ids, statuses, strict=True)
        if status is not Status.OK
    ]
    return DeadDone(len(ids) - len(left), left)
