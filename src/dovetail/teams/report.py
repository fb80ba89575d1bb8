"""The record in which a driver reports its pipeline, for the console and others to read; pure.

The record is on the topic `dovetail.pipelines`, under the pipeline's name as its key; a standby has
its own key, `<pipeline>#<driver>`. The newest record of a key counts; of two drivers that both
claim to lead, the one with the higher term does. If teams have separate masters, every driver
reports under its own key, and that rule holds for each team.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from dovetail.teams.graph import Masters, Pipeline
from dovetail.teams.picture import label_of
from dovetail.teams.progress import PipelineState, TeamProgress

TOPIC = "dovetail.pipelines"
#: A day of history, in segments of ten minutes.
TOPIC_CONFIG = {"retention.ms": "86400000", "segment.ms": "600000"}
FORMAT = 1

#: A report is written when something changed, and at least this often.
EVERY_S_MAX = 10.0
#: A driver that is silent for longer is gone, or cannot reach the broker.
SILENT_S_MAX = 3 * EVERY_S_MAX


@dataclass(frozen=True, slots=True)
class Report:
    """A driver and its teams at a moment."""

    pipeline: str
    state: PipelineState
    #: `host:pid`.
    driver: str
    term: int
    started_ms: int
    at_ms: int
    edges: tuple[Mapping[str, str], ...]
    #: What does not change about each team: workers and topics.
    parts: Mapping[str, Mapping[str, Any]]
    teams: tuple[TeamProgress, ...]
    #: Why delayed jobs do not reach their teams at the moment.
    delays_error: str | None = None
    masters: Masters = Masters.PIPELINE
    #: The address of Spark's own pages, where they are switched on.
    ui: str | None = None

    @property
    def key(self) -> str:
        """The key of its record: masters share one, so that there is one answer."""
        if self.state is PipelineState.WAITING or self.masters is Masters.TEAM:
            return f"{self.pipeline}#{self.driver}"
        return self.pipeline

    def differs(self, other: "Report") -> bool:
        """Whether it differs from another in more than its time."""
        return replace(self, at_ms=0) != replace(other, at_ms=0)

    def as_document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "format": FORMAT,
            "pipeline": self.pipeline,
            "state": self.state.value,
            "driver": self.driver,
            "term": self.term,
            "masters": self.masters.value,
            "started_ms": self.started_ms,
            "at_ms": self.at_ms,
            "delays_error": self.delays_error,
            "ui": self.ui,
            "edges": [dict(edge) for edge in self.edges],
            "teams": [
                {
                    **asdict(one),
                    "jobs_per_s": round(one.jobs_per_s, 1),
                    "jobs": [msgspec.structs.asdict(job) for job in one.jobs],
                    **self.parts[one.team],
                }
                for one in self.teams
            ],
        }


def edges_of(pipeline: Pipeline) -> tuple[Mapping[str, str], ...]:
    """The graph, as a report has it."""
    return tuple(
        {"from": edge.source, "to": edge.target, "how": label_of(edge)} for edge in pipeline.edges
    )


def parts_of(pipeline: Pipeline) -> dict[str, dict[str, Any]]:
    """Workers and topics of each team."""
    found = {}
    for name, team in pipeline.teams.items():
        topics = pipeline.topics(name)
        found[name] = {
            "workers": team.workers,
            "input": topics.input,
            "results": topics.results,
            "dead": topics.dead,
        }
    return found


def rows_of(document: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """The teams of a report as rows of a table under `COLUMNS`."""
    return [tuple(team.get(name) for name in _FIELDS) for team in document["teams"]]


_FIELDS, COLUMNS = zip(
    ("team", "team"),
    ("state", "state"),
    ("lag", "lag"),
    ("jobs_per_s", "jobs/s"),
    ("jobs_total", "jobs"),
    ("dead_letters", "dead letters"),
    ("failures", "failures"),
    ("last_error", "last error"),
    strict=True,
)
