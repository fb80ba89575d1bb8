"""Dead letters of every kind in one place: of timelines, of teams, of the outbox (`admin/dead`).

A source that cannot be asked is shown with the reason and hides nothing of the others.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dovetail.admin.dead import letter, timelines
from dovetail.admin.dead.letter import DeadDone, DeadSource, Found
from dovetail.admin.dead.reasons import Reason, by_reason
from dovetail.console.desk import Desk
from dovetail.console.nouns.outbox import run_on_outbox
from dovetail.console.web.content import Content, HeaderShown, ShownBytes, shown, shown_headers
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import DovetailError, InvalidInput

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

Source = Literal["timeline", "topic", "outbox"]
_Name = Annotated[str, Meta(min_length=1, max_length=249)]
_Id = Annotated[str, Meta(min_length=1, max_length=50)]

#: A body in a list is a glimpse.
_GLIMPSE_BYTES = 4 * 1024


class DeadQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters."""

    source: Annotated[Source | None, Meta(description="Only of this kind.")] = None
    name: Annotated[
        _Name | None, Meta(description="Only of this timeline, topic or outbox topic.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Letters of each source.")] = 100
    value_bytes: ShownBytes = _GLIMPSE_BYTES


class DeadLetter(Struct, frozen=True):
    """A message or job that was given up."""

    source: str
    name: str
    id: str
    key: Content | None
    body: Content | None
    headers: list[HeaderShown]
    reason: str
    kind: str | None
    attempts: int | None
    died_ms: int | None
    detail: str | None
    can_replay: bool
    can_drop: bool


class DeadPage(Struct, frozen=True):
    """Where dead letters are, and the letters, youngest first."""

    sources: list[DeadSource]
    letters: list[DeadLetter]


class ReasonsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Of which dead letters."""

    source: Annotated[Source | None, Meta(description="Only of this kind.")] = None
    name: Annotated[
        _Name | None, Meta(description="Only of this timeline, topic or outbox topic.")
    ] = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="Letters of each source.")] = 300


class DeadReasons(Struct, frozen=True):
    """Reasons, the most frequent first, among `looked_at` letters of `total`."""

    reasons: list[Reason]
    looked_at: int
    total: int | None


class DeadChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters of one source, by their ids."""

    source: Source
    name: _Name
    ids: Annotated[list[_Id], Meta(min_length=1, max_length=1_000)]


async def list_dead(desk: Desk, asked: Asked[DeadQuery, None]) -> DeadPage:
    """Every kind together, or one of them. Counts are `null` where they are not known."""
    query = asked.query
    found = await find_dead(desk, query.source, query.name, limit=query.limit)
    found.letters.sort(key=lambda each: each.died_ms or 0, reverse=True)
    return DeadPage(found.sources, [_shown(each, query.value_bytes) for each in found.letters])


async def list_reasons(desk: Desk, asked: Asked[ReasonsQuery, None]) -> DeadReasons:
    """Numbers and what is in quotes are left out of a reason: they differ from letter to letter."""
    query = asked.query
    found = await find_dead(desk, query.source, query.name, limit=query.limit)
    counts = [source.count for source in found.sources]
    return DeadReasons(
        by_reason(found.letters),
        len(found.letters),
        None if None in counts else sum(count or 0 for count in counts),
    )


async def find_dead(desk: Desk, source: Source | None, name: str | None, *, limit: int) -> Found:
    """`limit` letters of each place; with 0 only how many there are."""
    together = Found()
    for kind, look in _LOOKS.items():
        if source not in (None, kind):
            continue
        try:
            found = await look(desk, name, limit)
        except DovetailError as error:
            together.sources.append(DeadSource(kind, name or "", None, str(error)))
        else:
            together.sources.extend(found.sources)
            together.letters.extend(found.letters)
    return together


async def _look_at_timelines(desk: Desk, name: str | None, limit: int) -> Found:
    if desk.timelines.missing is not None:
        return Found()
    return await timelines.look(await desk.timelines.client(), name, limit=limit)


async def _look_at_topics(desk: Desk, name: str | None, limit: int) -> Found:
    return await desk.kafka.run(desk.dead_topics.look, desk.topic_ids(), name, limit)


async def _look_at_outbox(desk: Desk, name: str | None, limit: int) -> Found:
    if desk.outbox is None:
        return Found()

    def look(engine: "Engine") -> Found:
        from dovetail.admin.dead import outbox

        return outbox.look(engine, name, limit)

    return await run_on_outbox(desk, look)


_LOOKS: dict[str, Callable[[Desk, str | None, int], Awaitable[Found]]] = {
    "timeline": _look_at_timelines,
    "topic": _look_at_topics,
    "outbox": _look_at_outbox,
}


def _shown(dead: letter.DeadLetter, bytes_max: int) -> DeadLetter:
    fields = msgspec.structs.asdict(dead) | {
        "key": shown(dead.key, bytes_max),
        "body": shown(dead.body, bytes_max),
        "headers": shown_headers(dead.headers, bytes_max),
    }
    return DeadLetter(**fields)


async def replay_dead(desk: Desk, asked: Asked[None, DeadChoice]) -> DeadDone:
    """Each letter has its own outcome; a replayed one is not a dead letter any more."""
    return await _deal_with(desk, asked, "replay")


async def drop_dead(desk: Desk, asked: Asked[None, DeadChoice]) -> DeadDone:
    """Deletes letters for good."""
    return await _deal_with(desk, asked, "drop")


async def _deal_with(
    desk: Desk, asked: Asked[None, DeadChoice], action: Literal["replay", "drop"]
) -> DeadDone:
    choice = asked.body
    if len(set(choice.ids)) != len(choice.ids):
        raise InvalidInput("an id is there twice")

    if choice.source == "timeline":
        do = timelines.replay if action == "replay" else timelines.drop
        return await do(await desk.timelines.client(), choice.name, choice.ids)
    if choice.source == "topic":
        dead = desk.dead_topics
        act = partial(dead.replay if action == "replay" else dead.drop, who=asked.caller.who)
        return await desk.kafka.run(act, desk.topic_ids(), choice.name, choice.ids)

    def change(engine: "Engine") -> DeadDone:
        from dovetail.admin.dead import outbox

        do = outbox.replay if action == "replay" else outbox.drop
        return do(engine, choice.name, choice.ids)

    return await run_on_outbox(desk, change)


ENDPOINTS = (
    Endpoint("GET", "/v1/dead", list_dead, "List dead letters", DeadPage, query=DeadQuery),
    Endpoint(
        "GET",
        "/v1/dead/reasons",
        list_reasons,
        "Dead letters by reason",
        DeadReasons,
        query=ReasonsQuery,
    ),
    Endpoint(
        "POST",
        "/v1/dead/replay",
        replay_dead,
        "Replay dead letters",
        DeadDone,
        body=DeadChoice,
        action="dead.replay",
    ),
    Endpoint(
        "POST",
        "/v1/dead/drop",
        drop_dead,
        "Drop dead letters",
        DeadDone,
        body=DeadChoice,
        action="dead.drop",
    ),
)
