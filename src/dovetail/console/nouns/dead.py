"""Dead letters of every kind in one place: of timelines, of teams, of the outbox.

    source     name                          id                 replay
    timeline   the timeline                  its id             due now, from its first attempt
    topic      a team's topic of dead works  partition:offset   copied to the team's input topic
    outbox     the topic that was meant      its id             put back behind what waits

A source that cannot be asked is told with its trouble and hides nothing of the others. Topics of
dead works are those that running pipelines name, and those whose name ends in `.dead`; of their
records, those count that say why they died.
"""

from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

from dovetail.console.desk import Desk
from dovetail.console.nouns import dead_outbox, dead_timelines, dead_topics
from dovetail.console.nouns.dead_letter import DeadDone, DeadLetter, DeadSource, Found
from dovetail.console.web.content import ShownBytes
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import DovetailError, InvalidInput

Source = Literal["timeline", "topic", "outbox"]
_Name = Annotated[str, Meta(min_length=1, max_length=249)]
_Id = Annotated[str, Meta(min_length=1, max_length=50)]


class Kind(Protocol):
    """What each kind can do; a module is one."""

    async def look(self, desk: Desk, name: str | None, limit: int, bytes_max: int, /) -> Found:
        """Where such letters are, and `limit` of each place; with 0 only how many."""
        ...

    async def replay(self, desk: Desk, name: str, ids: list[str], who: str, /) -> DeadDone:
        """Has them done again."""
        ...

    async def drop(self, desk: Desk, name: str, ids: list[str], who: str, /) -> DeadDone:
        """Deletes them."""
        ...


_KINDS: dict[str, Kind] = {"timeline": dead_timelines, "topic": dead_topics, "outbox": dead_outbox}

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


class DeadPage(Struct, frozen=True):
    """Where dead letters are, and the letters, youngest first."""

    sources: list[DeadSource]
    letters: list[DeadLetter]


class DeadChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Dead letters of one source, by their ids."""

    source: Source
    name: _Name
    ids: Annotated[list[_Id], Meta(min_length=1, max_length=1_000)]


async def list_dead(desk: Desk, asked: Asked[DeadQuery, None]) -> DeadPage:
    """Every kind together, or one of them. Counts are `null` where they are not known."""
    return await dead_page(desk, asked.query)


async def dead_page(desk: Desk, query: DeadQuery) -> DeadPage:
    """The page, as it is shown and sent live."""
    sources: list[DeadSource] = []
    letters: list[DeadLetter] = []
    for kind, part in _KINDS.items():
        if query.source not in (None, kind):
            continue
        try:
            found = await part.look(desk, query.name, query.limit, query.value_bytes)
        except DovetailError as error:
            sources.append(DeadSource(kind, query.name or "", None, str(error)))
        else:
            sources += found.sources
            letters += found.letters
    letters.sort(key=lambda letter: letter.died_ms or 0, reverse=True)
    return DeadPage(sources, letters)


async def replay_dead(desk: Desk, asked: Asked[None, DeadChoice]) -> DeadDone:
    """Each letter has its own outcome; what was done is not a dead letter any more."""
    choice = asked.body
    return await _KINDS[choice.source].replay(desk, choice.name, _ids(choice), asked.caller.who)


async def drop_dead(desk: Desk, asked: Asked[None, DeadChoice]) -> DeadDone:
    """Deletes letters for good."""
    choice = asked.body
    return await _KINDS[choice.source].drop(desk, choice.name, _ids(choice), asked.caller.who)


def _ids(choice: DeadChoice) -> list[str]:
    if len(set(choice.ids)) != len(choice.ids):
        raise InvalidInput("an id is there twice")
    return choice.ids


ENDPOINTS = (
    Endpoint("GET", "/v1/dead", list_dead, "List dead letters", DeadPage, query=DeadQuery),
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
