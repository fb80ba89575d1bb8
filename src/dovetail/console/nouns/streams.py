"""Shared streams over HTTP: members, leader, term, lag, elections, from the shared log."""

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.admin.streams import Stream
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import DovetailError


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


class StreamQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which environment."""

    environment: Annotated[
        Annotated[str, Meta(max_length=249)] | None,
        Meta(description="Required if several share the log."),
    ] = None


async def list_streams(desk: Desk, _: Asked[None, None]) -> StreamList:
    """Shared logs are found by how members create them, and by stream.coordination_stream_id."""
    rows, troubles = [], []
    for log in _logs(desk):
        try:
            rows += [_row(each) for each in await desk.kafka.run(desk.streams.of_log, log)]
        except DovetailError as error:
            troubles.append(StreamTrouble(log, str(error)))
    return StreamList(rows, troubles)


def _row(stream: Stream) -> StreamRow:
    return StreamRow(
        log=stream.log,
        environment=stream.environment,
        leader=stream.leader,
        term=stream.term,
        members=len(stream.members),
        counted=sum(member.counted for member in stream.members),
        lag=stream.lag,
        source=stream.source,
        leader_heard_s_ago=stream.leader_heard_s_ago,
    )


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


async def show_stream(desk: Desk, asked: Asked[StreamQuery, None]) -> Stream:
    """As `dovetail stream status --json` shows it."""
    log = asked.path["log"]
    desk.insight.topic(log)
    return await desk.kafka.run(desk.streams.one, log, asked.query.environment)


ENDPOINTS = (
    Endpoint("GET", "/v1/streams", list_streams, "List shared streams", StreamList),
    Endpoint(
        "GET", "/v1/streams/{log}", show_stream, "Show a shared stream", Stream, query=StreamQuery
    ),
)
