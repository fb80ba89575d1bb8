"""Pipelines over HTTP: the graph, and the state of each team, as the drivers report it."""

from typing import Annotated

from msgspec import Meta, Struct

from dovetail.admin import pipelines
from dovetail.admin.dead.reasons import by_reason
from dovetail.admin.pipelines import Pipeline
from dovetail.console.desk import Desk
from dovetail.console.nouns.dead import DeadReasons, find_dead
from dovetail.console.web.endpoint import Asked, Endpoint

#: Dead letters that are looked at of each team, and teams.
_LETTERS_MAX = 300
_TOPICS_MAX = 20


class PipelineRow(Struct, frozen=True):
    """A pipeline in the list; sums over its teams are None if one of them does not know."""

    pipeline: str
    state: str
    reported_ms: int
    teams: int
    lag: int | None
    jobs_per_s: float
    failures: int
    dead: int | None
    term: int | None
    driver: str


class PipelineList(Struct, frozen=True):
    """All pipelines of the last day."""

    pipelines: list[PipelineRow]


async def list_pipelines(desk: Desk, _: Asked[None, None]) -> PipelineList:
    """Drivers report while they run, from any machine."""
    found = await desk.kafka.run(desk.pipelines.list)
    return PipelineList([_row(pipeline) for pipeline in found])


def _row(pipeline: Pipeline) -> PipelineRow:
    return PipelineRow(
        pipeline=pipeline.pipeline,
        state=pipeline.state,
        reported_ms=pipeline.reported_ms,
        teams=len(pipeline.teams),
        lag=pipeline.lag,
        jobs_per_s=sum(team.jobs_per_s or 0.0 for team in pipeline.teams),
        failures=sum(team.failures for team in pipeline.teams),
        dead=pipeline.dead_letters,
        term=pipeline.term,
        driver=pipeline.driver,
    )


async def show_pipeline(desk: Desk, asked: Asked[None, None]) -> Pipeline:
    """The graph as edges between teams, and for each team its topics, lag, rate and failures."""
    return await desk.kafka.run(desk.pipelines.one, asked.path["pipeline"])


class JobCancel(Struct, frozen=True, forbid_unknown_fields=True):
    """Which job is not wanted any more, and why."""

    job: Annotated[str, Meta(min_length=1, max_length=pipelines.JOB_ID_BYTES_MAX)]
    reason: Annotated[str, Meta(max_length=pipelines.REASON_CHARACTERS_MAX)] = ""


async def cancel_job(desk: Desk, asked: Asked[None, JobCancel]) -> None:
    """It ends as `cancelled`, whether it waits, is delayed or runs; one that has ended stays so."""
    await desk.kafka.run(
        pipelines.cancel_job, asked.path["pipeline"], asked.body.job, reason=asked.body.reason
    )


async def show_failures(desk: Desk, asked: Asked[None, None]) -> DeadReasons:
    """Why jobs of its teams were given up, the most frequent reason first."""
    pipeline = await desk.kafka.run(desk.pipelines.one, asked.path["pipeline"])
    topics = sorted({team.dead for team in pipeline.teams if team.dead and team.dead_letters != 0})
    found = [
        await find_dead(desk, "topic", topic, limit=_LETTERS_MAX) for topic in topics[:_TOPICS_MAX]
    ]
    counts = [source.count for one in found for source in one.sources]
    letters = [letter for one in found for letter in one.letters]
    total = None if None in counts else sum(count or 0 for count in counts)
    return DeadReasons(by_reason(letters), len(letters), total)


ENDPOINTS = (
    Endpoint("GET", "/v1/pipelines", list_pipelines, "List pipelines", PipelineList),
    Endpoint("GET", "/v1/pipelines/{pipeline}", show_pipeline, "Show a pipeline", Pipeline),
    Endpoint(
        "GET",
        "/v1/pipelines/{pipeline}/failures",
        show_failures,
        "Failures of a pipeline by reason",
        DeadReasons,
    ),
    Endpoint(
        "POST",
        "/v1/pipelines/{pipeline}/cancel",
        cancel_job,
        "Cancel a job",
        body=JobCancel,
        status=204,
        action="pipeline.cancel",
    ),
)
