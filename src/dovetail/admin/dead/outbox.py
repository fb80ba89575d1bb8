"""Dead letters of an outbox. A replay puts them back into the outbox, behind what waits."""

import time
from collections.abc import Callable

from sqlalchemy.engine import Engine

from dovetail.admin.dead.letter import (
    GONE,
    DeadDone,
    DeadLeft,
    DeadLetter,
    DeadSource,
    Found,
    numbers,
)
from dovetail.errors import InvalidInput, NotFound
from dovetail.outbox.dead import DeadMessage, drop_dead, list_dead, replay_dead, show_dead
from dovetail.outbox.message import headers_from_text
from dovetail.outbox.status import read_status


def look(engine: Engine, name: str | None, limit: int) -> Found:
    """The newest ones, of all topics or of one; with `limit` 0 only how many."""
    now_ms = time.time_ns() // 1_000_000
    topics = [topic for topic in read_status(engine).topics if name in (None, topic.topic)]
    letters = list_dead(engine, topic=name, limit=limit) if limit else []
    return Found(
        [DeadSource("outbox", topic.topic, topic.dead) for topic in topics],
        [_letter(each, now_ms) for each in letters],
    )


def _letter(dead: DeadMessage, now_ms: int) -> DeadLetter:
    first, _, rest = dead.reason.partition("\n")
    return DeadLetter(
        source="outbox",
        name=dead.topic,
        id=str(dead.id),
        key=dead.key,
        body=dead.payload,
        headers=_headers(dead.headers),
        reason=first,
        attempts=dead.attempts,
        died_ms=now_ms - dead.age_ms,
        detail=rest or None,
    )


def _headers(text: str | None) -> list[tuple[str, bytes | None]]:
    try:
        return list(headers_from_text(text))
    except InvalidInput:
        # Another writer stored what is none, which may be why it died.
        return [("(unreadable)", (text or "").encode())]


def replay(engine: Engine, name: str, ids: list[str]) -> DeadDone:
    """Puts them back into the outbox, behind what waits. Raises `InvalidInput`."""
    return _each(engine, name, ids, lambda wanted: replay_dead(engine, ids=wanted))


def drop(engine: Engine, name: str, ids: list[str]) -> DeadDone:
    """Deletes them. Raises `InvalidInput`."""
    return _each(engine, name, ids, lambda wanted: drop_dead(engine, ids=wanted))


def _each(
    engine: Engine, name: str, ids: list[str], change: Callable[[list[int]], int]
) -> DeadDone:
    """Changes those that are there and of this topic, in one transaction; reports the others."""
    there: list[int] = []
    left = []
    for number in numbers(ids):
        try:
            topic = show_dead(engine, number).topic
        except NotFound:
            left.append(DeadLeft(str(number), GONE))
            continue
        if topic == name:
            there.append(number)
        else:
            left.append(DeadLeft(str(number), f"it belongs to topic {topic!r}"))

    if there:
        change(there)
    return DeadDone(len(there), left)
