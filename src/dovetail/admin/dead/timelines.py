"""Dead letters of timelines. A replay turns them into messages again, due now."""

from typing import TYPE_CHECKING

from dovetail.admin.dead.letter import (
    GONE,
    DeadDone,
    DeadLeft,
    DeadLetter,
    DeadSource,
    Found,
    numbers,
)
from dovetail.admin.timelines import headers_of, list_timelines
from dovetail.timeline.config import check_name
from dovetail.timeline.message import Shown, Status

if TYPE_CHECKING:
    from dovetail.timeline.client import Dovetail


async def look(client: "Dovetail", name: str | None, *, limit: int) -> Found:
    """The oldest ones of each timeline that has some, or of one; with `limit` 0 only how many."""
    found = Found()
    for row in await list_timelines(client):
        if row.dead is None or (name is not None and row.timeline != name):
            continue
        found.sources.append(DeadSource("timeline", row.timeline, row.dead))
        if row.dead and limit:
            dead = await client.timeline(row.timeline).dead(limit=limit)
            found.letters.extend(_letter(row.timeline, each) for each in dead)
    return found


def _letter(name: str, message: Shown) -> DeadLetter:
    first, _, rest = message.reason.partition("\n")
    return DeadLetter(
        source="timeline",
        name=name,
        id=str(message.id),
        key=None if message.key is None else message.key.encode(),
        body=message.body,
        headers=headers_of(message),
        reason=first,
        attempts=message.attempts,
        died_ms=message.died_ms or None,
        detail=rest or None,
    )


async def replay(client: "Dovetail", name: str, ids: list[str]) -> DeadDone:
    """Makes messages of them again, due now. Raises `TopicUnknown`, `InvalidInput`."""
    return _done(ids, await client.timeline(check_name(name)).replay(*numbers(ids)))


async def drop(client: "Dovetail", name: str, ids: list[str]) -> DeadDone:
    """Deletes them. Raises `TopicUnknown`, `InvalidInput`."""
    return _done(ids, await client.timeline(check_name(name)).drop_dead(*numbers(ids)))


def _done(ids: list[str], statuses: list[Status]) -> DeadDone:
    reasons = {Status.GONE: GONE, Status.EXISTS: "another message has its key by now"}
    left = [
        DeadLeft(each, reasons.get(status, status.name.lower()))
        for each, status in zip(ids, statuses, strict=True)
        if status is not Status.OK
    ]
    return DeadDone(len(ids) - len(left), left)
