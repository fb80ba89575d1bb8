"""The metrics of a driver, for Prometheus; in a registry of its own or in the user's."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from dovetail.teams.progress import TeamProgress, TeamState

_TEAM = ("pipeline", "team")


class PipelineMetrics:
    """The series of one driver. `reporter` sets them; the engine counts failures."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._state = self._gauge("team_state", "1 for the state the team is in.", *_TEAM, "state")
        self._lag = self._gauge("team_lag_jobs", "Jobs that wait in the input topic.", *_TEAM)
        self._rate = self._gauge("team_jobs_per_second", "Jobs done, over the last 10 s.", *_TEAM)
        self._jobs = self._counter("team_jobs", "Jobs done since this driver leads.")
        self._failures = self._counter("team_failures", "Tasks that failed.")
        self._dead = self._counter("team_dead_letters", "Jobs given up since this driver leads.")

        self._leading = self._gauge(
            "pipeline_leading", "1 while this driver is the master.", "pipeline"
        )
        self._term = self._gauge(
            "pipeline_term",
            "Term under which this driver leads or led last; 0 without an election.",
            "pipeline",
        )
        self._compiled = self._gauge(
            "pipeline_decoder_compiled",
            "1 with the compiled decoder of records; without it reading is 40 times slower.",
            "pipeline",
        )
        self._delays_failing = self._gauge(
            "pipeline_delays_failing", "1 while delayed jobs do not reach their teams.", "pipeline"
        )
        #: What is counted so far: a counter only takes increments.
        self._counted: dict[tuple[str, str, str], int] = {}

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"dovetail_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"dovetail_{name}", text, _TEAM, registry=self.registry)

    def leading(self, pipeline: str, *, leads: bool, term: int) -> None:
        self._leading.labels(pipeline).set(leads)
        if term:
            self._term.labels(pipeline).set(term)

    def decoder(self, pipeline: str, *, compiled: bool) -> None:
        """Of this driver; what it ships to executors has the same."""
        self._compiled.labels(pipeline).set(compiled)

    def delays(self, pipeline: str, *, failing: bool) -> None:
        self._delays_failing.labels(pipeline).set(failing)

    def failure(self, pipeline: str, team: str) -> None:
        self._failures.labels(pipeline, team).inc()

    def teams(self, pipeline: str, teams: Iterable[TeamProgress]) -> None:
        """Sets the series of the teams."""
        for one in teams:
            for state in TeamState:
                self._state.labels(pipeline, one.team, state.value).set(one.state is state)
            if one.lag is not None:
                self._lag.labels(pipeline, one.team).set(one.lag)
            self._rate.labels(pipeline, one.team).set(one.jobs_per_s)
            self._failures.labels(pipeline, one.team).inc(0)
            self._count(self._jobs, "jobs", pipeline, one.team, one.jobs_total)
            if one.dead_letters is not None:
                self._count(self._dead, "dead", pipeline, one.team, one.dead_letters)

    def _count(self, counter: Counter, name: str, pipeline: str, team: str, total: int) -> None:
        # A driver that leads again counts from 0; what it counted before stays counted.
        before = self._counted.get((name, pipeline, team), 0)
        counter.labels(pipeline, team).inc(total if total < before else total - before)
        self._counted[name, pipeline, team] = total
