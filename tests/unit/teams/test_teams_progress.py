"""Progress of teams, of what the broker tells."""

import json
from dataclasses import replace

import msgspec
from prometheus_client import CollectorRegistry

from dovetail.admin.pipelines import Reports
from dovetail.teams.graph import Pipeline
from dovetail.teams.metrics import PipelineMetrics
from dovetail.teams.progress import (
    PipelineState,
    TeamMeter,
    TeamProgress,
    TeamState,
    pipeline_state,
    standby_teams,
)
from dovetail.teams.report import (
    COLUMNS,
    Report,
    edges_of,
    parts_of,
    rows_of,
)
from dovetail.teams.team import Team

A, B = ("t", 0), ("t", 1)


def test_lag_rate_and_state_follow_from_positions() -> None:
    """T11: lag as the broker has it now, jobs since the start, a rate that fades, states."""
    meter = TeamMeter("a")
    meter.start({A: 10, B: 0}, now_s=100.0)

    def at(now_s: float, end: int, dead: int | None = 4) -> TeamProgress:
        return meter.progress(now_s=now_s, ends={A: end, B: 0}, dead_end=dead)

    begun = at(100.0, 50)
    assert (begun.state, begun.lag) == (TeamState.STARTING, 40)
    assert at(100.0, 10).state is TeamState.IDLE, "nothing to do from the beginning"
    meter.served = True
    assert meter.moved({A: 30}, now_s=102.0)
    assert not meter.moved({A: 30}, now_s=103.0), "the same is not counted twice"
    assert not meter.moved({A: 25}, now_s=103.0), "nor a snapshot that was late"
    working = at(104.0, 50, dead=6)
    assert (working.state, working.lag) == (TeamState.WORKING, 20)
    assert (working.jobs_total, working.jobs_per_s, working.dead_letters) == (20, 5.0, 2)
    assert meter.moved({A: 50}, now_s=105.0)
    assert at(105.0, 50).state is TeamState.WORKING, "it has just finished something"
    idle = at(116.0, 50)
    assert (idle.state, idle.lag, idle.jobs_per_s) == (TeamState.IDLE, 0, 0.0)
    meter.failures, meter.last_error = 2, "broken\nat line 1"
    failing = meter.progress(now_s=117.0, ends=None, dead_end=None)
    assert (failing.state, failing.lag, failing.dead_letters) == (TeamState.RETRYING, None, None)
    assert failing.last_error == "broken"
    meter.failed = True
    assert at(118.0, 50).state is TeamState.FAILED


def test_the_worst_team_is_the_state_of_the_pipeline() -> None:
    """T11: running, retrying, failed."""
    idle = TeamProgress("a", TeamState.IDLE)
    retrying, failed = (
        replace(idle, state=TeamState.RETRYING),
        replace(idle, state=TeamState.FAILED),
    )
    assert pipeline_state([idle]) is PipelineState.RUNNING
    assert pipeline_state([idle, retrying]) is PipelineState.RETRYING
    assert pipeline_state([retrying, failed]) is PipelineState.FAILED


def report_of(state: PipelineState, *, term: int = 1, at_ms: int = 1_000) -> Report:
    a, b = Team("a", dict, workers=2), Team("b", dict)
    a >> b
    pipeline = Pipeline("p", a, b)
    return Report(
        pipeline="p",
        state=state,
        driver="host:7",
        term=term,
        started_ms=500,
        at_ms=at_ms,
        edges=edges_of(pipeline),
        parts=parts_of(pipeline),
        teams=tuple(standby_teams(["a", "b"])),
    )


def record(report: Report) -> tuple[bytes, bytes]:
    return report.key.encode(), json.dumps(report.as_document()).encode()


def test_a_report_says_what_the_console_needs() -> None:
    """T11: graph, topics, and every team's figures, under the keys that were agreed on."""
    document = report_of(PipelineState.RUNNING).as_document()
    assert document["edges"] == [{"from": "a", "to": "b", "how": "pipe"}]
    assert document["teams"][0] == {
        "team": "a",
        "state": "standby",
        "term": 0,
        "workers": 2,
        "input": "p.a.input",
        "results": "p.a.results",
        "dead": "p.a.dead",
        "lag": None,
        "jobs_per_s": 0.0,
        "jobs_total": 0,
        "failures": 0,
        "dead_letters": None,
        "last_error": "",
        "jobs": [],
    }
    assert [len(row) for row in rows_of(document)] == [len(COLUMNS)] * 2
    assert not report_of(PipelineState.RUNNING).differs(
        report_of(PipelineState.RUNNING, at_ms=9_000)
    )
    assert report_of(PipelineState.RUNNING).differs(report_of(PipelineState.RETRYING))


def test_the_report_of_the_highest_term_counts() -> None:
    """T11, T2: a master that wakes up does not hide its successor; strangers are passed over."""
    new = report_of(PipelineState.RUNNING, term=2)
    old = report_of(PipelineState.RETRYING, term=1, at_ms=2_000)
    waiting = replace(report_of(PipelineState.WAITING, term=0), driver="another")
    strange = [(b"p", b"no json"), (b"p", b"[]"), (None, None), (b"q", b'{"format": 9}')]
    reports = Reports()
    for key, value in [record(new), record(old), record(waiting), *strange]:
        reports.take(key, value, at_ms=2_000)
    (found,) = reports.pipelines(now_ms=2_000)
    assert (found.state, found.term, found.standbys) == ("running", 2, ["another"])
    assert msgspec.to_builtins(found.teams[0]).items() >= new.as_document()["teams"][0].items()


def test_metrics_show_one_state_and_count_on() -> None:
    """T11: gauges for lag, rate and state; counters that a second leadership does not reset."""
    registry = CollectorRegistry()
    metrics = PipelineMetrics(registry)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"dovetail_{name}", {"pipeline": "p", **labels})

    one = TeamProgress("a", TeamState.WORKING, lag=7, jobs_total=10, dead_letters=2)
    metrics.teams("p", [one])
    metrics.leading("p", leads=True, term=4)
    assert value("team_state", team="a", state="working") == 1
    metrics.teams("p", [replace(one, state=TeamState.STANDBY, lag=None, dead_letters=None)])
    metrics.teams("p", [replace(one, jobs_total=3, dead_letters=3)])
    states = {state: value("team_state", team="a", state=state) for state in TeamState}
    assert states == {state: float(state == "working") for state in TeamState}
    assert value("team_lag_jobs", team="a") == 7
    assert value("team_jobs_total", team="a") == 13
    assert value("team_dead_letters_total", team="a") == 3
    assert value("team_failures_total", team="a") == 0
    assert (value("pipeline_leading"), value("pipeline_term")) == (1, 4)
    metrics.decoder("p", compiled=False)
    assert value("pipeline_decoder_compiled") == 0
