"""Pipelines over HTTP: the graph, and how each team is doing, as the drivers tell it."""

from msgspec import Struct

from dovetail.console.desk import Desk
from dovetail.console.pipeline_feed import SILENT_MS, EdgeTold, Heard, TeamTold
from dovetail.console.web.endpoint import Asked, Endpoint
from dovetail.errors import NotFound


class PipelineRow(Struct, frozen=True):
    """A pipeline in the list; sums over its teams are None if one of them does not know."""

    pipeline: str
    state: str
    told_ms: int
    teams: int
    lag: int | None
    works_per_s: float
    failures: int
    dead: int | None
    term: int | None
    driver: str


class PipelineList(Struct, frozen=True):
    """All pipelines that were heard of."""

    pipelines: list[PipelineRow]


class PipelineShown(Struct, frozen=True):
    """A pipeline: the last report of its driver; `silent` if none came for half a minute."""

    pipeline: str
    state: str
    driver: str
    term: int | None
    started_ms: int | None
    at_ms: int | None
    edges: list[EdgeTold]
    teams: list[TeamTold]
    told_ms: int
    silent_ms: int
    standbys: list[str]


async def list_pipelines(desk: Desk, _: Asked[None, None]) -> PipelineList:
    """Drivers make themselves known when they run, from any machine."""
    return await pipeline_list(desk)


async def pipeline_list(desk: Desk) -> PipelineList:
    """The list, as the page and the live stream show it."""
    heard = await desk.pipelines.heard()
    # One that has no master now is known by those who stand by.
    of_standbys = {each.told.pipeline: each for key, each in sorted(heard.items()) if "#" in key}
    masters = {key: each for key, each in heard.items() if "#" not in key}
    found = of_standbys | masters
    return PipelineList([_row(desk, found[name]) for name in sorted(found)])


def _row(desk: Desk, heard: Heard) -> PipelineRow:
    told = heard.told
    return PipelineRow(
        pipeline=told.pipeline,
        state=_state(desk, heard),
        told_ms=heard.told_ms,
        teams=len(told.teams),
        lag=_sum([team.lag for team in told.teams]),
        works_per_s=sum(team.works_per_s or 0.0 for team in told.teams),
        failures=sum(team.failures for team in told.teams),
        dead=_sum([team.dead_letters for team in told.teams]),
        term=told.term,
        driver=told.driver,
    )


async def show_pipeline(desk: Desk, asked: Asked[None, None]) -> PipelineShown:
    """The graph as edges between teams, and for each team its topics, lag, rate and failures."""
    return await pipeline_shown(desk, asked.path["pipeline"])


async def pipeline_shown(desk: Desk, name: str) -> PipelineShown:
    """One pipeline. Raises `NotFound`."""
    everything = await desk.pipelines.heard()
    standing_by = [each for key, each in sorted(everything.items()) if key.startswith(f"{name}#")]
    heard = everything.get(name) or next(iter(standing_by), None)
    if heard is None:
        raise NotFound(
            f"no pipeline {name!r} was heard of lately; it makes itself known when it runs: "
            "dovetail pipeline run"
        )
    told = heard.told
    return PipelineShown(
        pipeline=told.pipeline,
        state=_state(desk, heard),
        driver=told.driver,
        term=told.term,
        started_ms=told.started_ms,
        at_ms=told.at_ms,
        edges=told.edges,
        teams=told.teams,
        told_ms=heard.told_ms,
        silent_ms=_silent_ms(desk, heard),
        standbys=sorted(
            each.told.driver
            for each in standing_by
            if _state(desk, each) not in ("stopped", "silent")
        ),
    )


def _silent_ms(desk: Desk, heard: Heard) -> int:
    return max(0, desk.clock.wall_ms() - heard.told_ms)


def _state(desk: Desk, heard: Heard) -> str:
    if heard.told.state != "stopped" and _silent_ms(desk, heard) > SILENT_MS:
        return "silent"
    return heard.told.state


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


ENDPOINTS = (
    Endpoint("GET", "/v1/pipelines", list_pipelines, "List pipelines", PipelineList),
    Endpoint("GET", "/v1/pipelines/{pipeline}", show_pipeline, "Show a pipeline", PipelineShown),
)
