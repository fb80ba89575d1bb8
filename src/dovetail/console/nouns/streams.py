"""Shared streams over HTTP: members, leader, term, lag, elections, as the shared log has them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from dovetail.console.desk import Desk
from dovetail.console.nouns.offsets import bounds_of
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import DovetailError, NotFound

if TYPE_CHECKING:
    from dovetail.election.fold import LogState


class StreamRow(Struct, frozen=True):
    """One environment of a shared log."""

    log: str
    environment: str
    leader: str | None
    term: int
    members: int
    counted: int
    lag: int | None
    source: str | None
    leader_heard_s_ago: float | None


class StreamTrouble(Struct, frozen=True):
    """A log that could not be read."""

    log: str
    trouble: str


class StreamList(Struct, frozen=True):
    """All shared streams that were found."""

    streams: list[StreamRow]
    troubles: list[StreamTrouble]


class StreamMember(Struct, frozen=True):
    """A member; `counted` if it makes up the cluster now."""

    member: str
    counted: bool
    leads: bool
    heard_s_ago: float
    challenged: bool


class StreamPosition(Struct, frozen=True):
    """How far the stream is in a partition of its source."""

    partition: int
    committed: int | None
    end: int | None
    lag: int | None


class Election(Struct, frozen=True):
    """A claim that counted."""

    term: int
    leader: str
    at: str
    at_ms: int


class StreamShown(Struct, frozen=True):
    """A shared stream, as `dovetail stream status --json` has it."""

    log: str
    environment: str
    leader: str | None
    term: int
    leader_heard_s_ago: float | None
    source: str | None
    lag: int | None
    members: list[StreamMember]
    positions: list[StreamPosition]
    elections: list[Election]


class StreamQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which environment."""

    environment: Annotated[
        Annotated[str, Meta(max_length=249)] | None,
        Meta(description="Needed if several share the log."),
    ] = None


async def list_streams(desk: Desk, _: Asked[None, None]) -> StreamList:
    """Shared logs are found by how members make them, and by stream.coordination_stream_id."""
    return await stream_list(desk)


async def stream_list(desk: Desk) -> StreamList:
    """The list, as the page and the live stream show it."""
    rows, troubles = [], []
    for log in _logs(desk):
        try:
            for environment, state in sorted((await desk.streams.environments(log)).items()):
                shown = await _shown(desk, log, environment, state)
                rows.append(
                    StreamRow(
                        log=log,
                        environment=environment,
                        leader=shown.leader,
                        term=shown.term,
                        members=len(shown.members),
                        counted=sum(member.counted for member in shown.members),
                        lag=shown.lag,
                        source=shown.source,
                        leader_heard_s_ago=shown.leader_heard_s_ago,
                    )
                )
        except DovetailError as error:
            troubles.append(StreamTrouble(log, str(error)))
    return StreamList(rows, troubles)


def _logs(desk: Desk) -> list[str]:
    """Topics that can be shared logs: one partition, kept for ever; or named by the settings."""
    named = desk.settings.stream.coordination_stream_id
    return [
        facts.name
        for facts in desk.insight.topics()
        if facts.state == "ready"
        and not facts.internal
        and facts.partitions == 1
        and (facts.kept_for_ever or facts.name == named)
    ]


async def show_stream(desk: Desk, asked: Asked[StreamQuery, None]) -> StreamShown:
    """As `dovetail stream status --json` shows it."""
    return await stream_shown(desk, asked.path["log"], asked.query.environment)


async def stream_shown(desk: Desk, log: str, environment: str | None) -> StreamShown:
    """One stream; without an environment the only one. Raises `NotFound`, `TopicUnknown`."""
    desk.insight.topic(log)
    found = await desk.streams.environments(log)
    if environment is None and len(found) == 1:
        (environment,) = found
    if environment is None or environment not in found:
        there = f"it has {', '.join(sorted(found))}" if found else "it is no shared log"
        raise NotFound(f"topic {log!r} has no environment {environment!r}; {there}")
    return await _shown(desk, log, environment, found[environment])


async def _shown(desk: Desk, log: str, environment: str, state: "LogState") -> StreamShown:
    from dovetail.election.election import GRACE_TIMEOUTS

    now_ms = desk.clock.monotonic_ms()
    settings = desk.settings.stream
    counted = set(
        state.counted(
            now_ms=now_ms,
            interval_ms=settings.participant_write_interval_millis,
            grace_ms=GRACE_TIMEOUTS * settings.timeout_ms,
        )
    )
    positions = await _positions(desk, state)
    lags = [position.lag for position in positions]
    return StreamShown(
        log=log,
        environment=environment,
        leader=state.leader,
        term=state.term,
        leader_heard_s_ago=_ago(state.leader_heard_ms, now_ms) if state.leader else None,
        source=state.source,
        lag=None if not lags or None in lags else sum(lag or 0 for lag in lags),
        members=[
            StreamMember(
                member=name,
                counted=name in counted,
                leads=name == state.leader,
                heard_s_ago=_ago(heard.moment.monotonic_ms, now_ms),
                challenged=heard.challenged_ms is not None,
            )
            for name, heard in state.members()
        ],
        positions=positions,
        elections=[
            Election(past.term, past.member, _iso(past.wall_ms), past.wall_ms)
            for past in reversed(state.elections)
        ],
    )


async def _positions(desk: Desk, state: "LogState") -> list[StreamPosition]:
    """What is committed, and how far the source has gone since; without the topic no lag."""
    committed = state.position or {}
    counts = {f.name: f.partitions for f in desk.insight.topics() if f.state == "ready"}
    source = state.source or ""
    lanes = sorted({*committed, *range(counts.get(source, 0))})
    bounds = await bounds_of(desk.kafka, [(source, lane) for lane in range(counts.get(source, 0))])
    rows = []
    for lane in lanes:
        bound = bounds.get((source, lane))
        at = committed.get(lane)
        end = None if bound is None else bound.end
        lag = None if end is None else max(0, end - (at or 0))
        rows.append(StreamPosition(lane, at, end, lag))
    return rows


def _ago(then_ms: float, now_ms: float) -> float:
    return round((now_ms - then_ms) / 1000, 1)


def _iso(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


ENDPOINTS = (
    Endpoint("GET", "/v1/streams", list_streams, "List shared streams", StreamList),
    Endpoint(
        "GET",
        "/v1/streams/{log}",
        show_stream,
        "Show a shared stream",
        StreamShown,
        query=StreamQuery,
    ),
)
