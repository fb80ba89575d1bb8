"""Dead letters of an outbox."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dovetail.console.desk import Desk
from dovetail.console.nouns.dead_letter import (
    DeadDone,
    DeadLeft,
    DeadLetter,
    DeadSource,
    Found,
    numbers,
)
from dovetail.console.web.content import HeaderShown, shown, shown_headers
from dovetail.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from dovetail.outbox.dead import DeadMessage


async def look(desk: Desk, name: str | None, limit: int, bytes_max: int) -> Found:
    """The newest ones, of all topics or of one; nothing where no outbox is known."""
    found = Found()
    if not desk.outbox.configured:
        return found

    def read(engine: "Engine") -> "tuple[list[tuple[str, int]], list[DeadMessage]]":
        from dovetail.outbox.dead import list_dead
        from dovetail.outbox.status import read_status

        counts = [(topic.topic, topic.dead) for topic in read_status(engine).topics]
        return counts, list_dead(engine, topic=name, limit=limit)

    counts, letters = await desk.outbox.run(read)
    now_ms = desk.clock.wall_ms()
    found.sources.extend(
        DeadSource("outbox", topic, count) for topic, count in counts if name in (None, topic)
    )
    found.letters.extend(_letter(each, bytes_max, now_ms) for each in letters)
    return found


def _letter(dead: "DeadMessage", bytes_max: int, now_ms: int) -> DeadLetter:
    first, _, rest = dead.reason.partition("\n")
    return DeadLetter(
        source="outbox",
        name=dead.topic,
        id=str(dead.id),
        key=shown(dead.key, bytes_max),
        body=shown(dead.payload, bytes_max),
        headers=_headers(dead.headers, bytes_max),
        reason=first,
        kind=None,
        attempts=dead.attempts,
        died_ms=now_ms - dead.age_ms,
        detail=rest or None,
        can_replay=True,
        can_drop=True,
    )


def _headers(text: str | None, bytes_max: int) -> list[HeaderShown]:
    from dovetail.outbox.message import headers_from_text

    try:
        return shown_headers(headers_from_text(text), bytes_max)
    except InvalidInput:
        # Another writer stored what is none, which may be why it died.
        return shown_headers([("(unreadable)", (text or "").encode())], bytes_max)


async def replay(desk: Desk, name: str, ids: list[str], who: str) -> DeadDone:
    """Puts them back into the outbox, behind what waits."""

    def work(engine: "Engine", wanted: list[int]) -> int:
        from dovetail.outbox.dead import replay_dead

        return replay_dead(engine, ids=wanted)

    return await _each(desk, name, ids, work)


async def drop(desk: Desk, name: str, ids: list[str], who: str) -> DeadDone:
    """Deletes them."""

    def work(engine: "Engine", wanted: list[int]) -> int:
        from dovetail.outbox.dead import drop_dead

        return drop_dead(engine, ids=wanted)

    return await _each(desk, name, ids, work)


async def _each(
    desk: Desk, name: str, ids: list[str], work: "Callable[[Engine, list[int]], int]"
) -> DeadDone:
    """Those that are there and of this topic, in one transaction; the others are told."""
    wanted = numbers(ids)

    def run(engine: "Engine") -> DeadDone:
        from dovetail.outbox.dead import show_dead

        there, left = [], []
        for number in wanted:
            try:
                topic = show_dead(engine, number).topic
            except NotFound:
                left.append(DeadLeft(str(number), "there is no such dead letter any more"))
                continue
            if topic != name:
                left.append(DeadLeft(str(number), f"it is one of topic {topic!r}"))
            else:
                there.append(number)
        if there:
            work(engine, there)
        return DeadDone(len(there), left)

    return await desk.outbox.run(run)
