"""Pipelines over HTTP: the graph, and the state of each team, as the drivers report it."""

from msgspec import Struct

from dovetail.admin.pipelines import Pipeline
from dovetail.console.desk import Desk
from dovetail.console.web.endpoint import Asked, Endpoint


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


ENDPOINTS = (
    Endpoint("GET", "/v1/pipelines", list_pipelines, "List pipelines", PipelineList),
    Endpoint("GET", "/v1/pipelines/{pipeline}", show_pipeline, "Show a pipeline", Pipeline),
)
