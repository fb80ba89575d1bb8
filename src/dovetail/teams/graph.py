"""A pipeline: teams and their connectors, checked when it is built, before anything runs; pure.

It refuses, by name: a team that is connected but not listed, two teams with one name, two that
share a topic, a cycle without a name, a team that would get one id twice (it would drop the second
as a repetition), and results that do not fit the next function.

`stages` is the pipeline as it travels to workers: frozen, with names of topics instead of teams.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

from dovetail.errors import InvalidInput, NotFound
from dovetail.teams.codecs import Codec
from dovetail.teams.connectors import Connector, ConnectorKind
from dovetail.teams.team import Policy, Team, WorkKind
from dovetail.teams.types import fits, item_type, name_of, payload_type, result_type

_NAME = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_-]{0,59}")


class Masters(StrEnum):
    """What drivers elect a master for: the whole pipeline, or each of its teams."""

    PIPELINE = "pipeline"
    TEAM = "team"


def delays_topic(pipeline: str) -> str:
    """The topic for the jobs of a pipeline that are not due yet."""
    return f"{pipeline}.delays"


def cancels_topic(pipeline: str) -> str:
    """The topic for the ids of jobs of a pipeline that are not wanted any more."""
    return f"{pipeline}.cancels"


def checked_name(pipeline: str) -> str:
    """The name of a pipeline. Raises `InvalidInput`."""
    if not isinstance(pipeline, str) or not _NAME.fullmatch(pipeline):
        raise InvalidInput(
            f"a pipeline's name {pipeline!r} must be 1 to 60 letters, digits, '-' and '_'"
        )
    return pipeline


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one team."""

    input: str
    results: str
    dead: str


@dataclass(frozen=True, slots=True)
class Target:
    """A team that gets forwarded jobs."""

    input_topic: str
    codec: Codec
    #: If it gathers items: where their ends go, and how long they are waited for.
    gather_topic: str = ""
    gather_within_ms: int = 0


@dataclass(frozen=True, slots=True)
class Gather:
    """What is behind a team whose items are gathered."""

    topic: str
    target: Target
    id_suffix: str | None


@dataclass(frozen=True, slots=True)
class Stage:
    """A team as it travels to workers."""

    pipeline: str
    team: str
    work: Callable[..., Any]
    kind: WorkKind
    codec: Codec
    policy: Policy
    workers: int
    remember_ms: int
    topics: Topics
    connectors: tuple[Connector, ...]
    targets: dict[str, Target]
    gather: Gather | None = None
    #: Run once in each process, before its first job and after its last.
    setup: Callable[[], Any] | None = None
    teardown: Callable[[Any], Any] | None = None

    @property
    def delays_topic(self) -> str:
        """Where jobs that are not due yet go."""
        return delays_topic(self.pipeline)

    @property
    def group(self) -> str:
        """The group under which its positions are committed, for lag tools."""
        return f"dovetail.{self.pipeline}.{self.team}"


@dataclass(frozen=True, slots=True)
class Edge:
    """One arrow from a team to a team."""

    source: str
    target: str
    connector: Connector
    #: For a route: whether results for which the condition holds take it.
    holds: bool = True


class Pipeline:
    """Teams that are run together. Raises `InvalidInput` if they do not fit."""

    def __init__(
        self,
        name: str,
        *teams: Team,
        others: Iterable["Pipeline"] = (),
        masters: str = Masters.PIPELINE,
    ) -> None:
        """`others` are pipelines whose teams may get jobs of this one; each runs for itself. With
        `masters="team"` each team has a master of its own, elected among all drivers."""
        self.name = checked_name(name)
        if masters not in set(Masters):
            raise InvalidInput(f"pipeline {name!r}: masters={masters!r} is not pipeline or team")
        self.masters = Masters(masters)
        if not teams:
            raise InvalidInput(f"pipeline {name!r} has no teams")
        self.teams: dict[str, Team] = {}
        for team in teams:
            if self.teams.setdefault(team.name, team) is not team:
                raise InvalidInput(f"pipeline {name!r} has two teams named {team.name!r}")

        self._foreign: dict[str, Pipeline] = {}
        for other in others:
            for foreign in other.teams:
                if foreign in self.teams or self._foreign.setdefault(foreign, other) is not other:
                    raise InvalidInput(
                        f"pipeline {name!r}: {foreign!r} of {other.name!r} is the name of another "
                        "team that its connectors could mean; rename one of them"
                    )

        self._check_listed()
        self.edges = tuple(self._edges())
        self._check_topics()
        self._check_cycles()
        self._check_ids()
        self._check_gathers()
        self._check_types()

    @property
    def entry(self) -> str:
        """The team that gets submitted jobs by default: the first that is listed."""
        return next(iter(self.teams))

    @property
    def has_delays(self) -> bool:
        """Whether a connector or a long backoff makes jobs wait in a timeline."""
        return any(map(self.delays_of, self.teams))

    def delays_of(self, name: str) -> bool:
        """The same, for the jobs of one team."""
        team = self.teams[name]
        return team.policy.may_postpone or any(one.after_ms for one in team.connectors)

    def team(self, name: str | None = None) -> Team:
        """A team by name, the entry for None. Raises `NotFound`."""
        chosen = self.entry if name is None else name
        if chosen not in self.teams:
            raise NotFound(
                f"pipeline {self.name!r} has no team {chosen!r}; it has {', '.join(self.teams)}"
            )
        return self.teams[chosen]

    def topics(self, name: str | None = None) -> Topics:
        """The topics of a team. Raises `NotFound`."""
        team = self.team(name)
        prefix = f"{self.name}.{team.name}"
        return Topics(
            team.input_topic or f"{prefix}.input",
            team.results_topic or f"{prefix}.results",
            team.dead_topic or f"{prefix}.dead",
        )

    def stages(self) -> list[Stage]:
        """What travels to the workers, in the order of declaration."""
        return [self._stage(team) for team in self.teams.values()]

    def ends(self, name: str | None = None) -> list[str]:
        """Where a job submitted to a team ends under its own id: the teams that have its result.

        A team counts if none of its connectors keeps the id.
        """
        found, waiting, seen = [], [self.team(name).name], set()
        while waiting:
            current = waiting.pop(0)
            if current in seen:
                continue
            seen.add(current)
            onward = [
                edge.target
                for edge in self._edges_with_same_id(current)
                if edge.connector.kind is not ConnectorKind.SPRAY and edge.target in self.teams
            ]
            onward += self._gathered_from(current)
            waiting += onward
            if not onward:
                found.append(current)
        return found

    def _stage(self, team: Team) -> Stage:
        names = {
            target
            for connector in team.connectors
            if connector.kind is not ConnectorKind.GATHER
            for target in connector.targets
        }
        return Stage(
            pipeline=self.name,
            team=team.name,
            work=team.work,
            kind=team.kind,
            codec=team.codec,
            policy=team.policy,
            workers=team.workers,
            remember_ms=team.remember_ms,
            topics=self.topics(team.name),
            connectors=team.connectors,
            targets={name: self._target(name) for name in sorted(names)},
            gather=self._gather(team),
            setup=team.setup,
            teardown=team.teardown,
        )

    def _target(self, name: str) -> Target:
        if name in self._foreign:
            return self._foreign[name]._target(name)
        team = self.teams[name]
        gather = _gather_of(team)
        return Target(
            self.topics(name).input,
            team.codec,
            "" if gather is None else self.gather_topic(name),
            0 if gather is None else gather.within_ms,
        )

    def _gather(self, team: Team) -> Gather | None:
        gather = _gather_of(team)
        if gather is None:
            return None
        target = self._target(gather.target)
        return Gather(self.gather_topic(team.name), target, gather.id_suffix)

    def known(self, name: str) -> Team | None:
        """A team of this pipeline or of the others."""
        foreign = self._foreign.get(name)
        return self.teams.get(name) if foreign is None else foreign.teams[name]

    def foreign_stages(self) -> list[Stage]:
        """The teams of other pipelines that get jobs of this one."""
        return [
            stage
            for name in self.foreign_targets
            for stage in self._foreign[name].stages()
            if stage.team == name
        ]

    @property
    def foreign_targets(self) -> list[str]:
        """The names of those teams."""
        return sorted({edge.target for edge in self.edges} & self._foreign.keys())

    def gather_topic(self, team: str) -> str:
        """Where the ends of items of a team go that gathers."""
        return f"{self.name}.{team}.gather"

    def _edges(self) -> Iterator[Edge]:
        for team in self.teams.values():
            for connector in team.connectors:
                yield Edge(team.name, connector.target, connector)
                if connector.otherwise is not None:
                    yield Edge(team.name, connector.otherwise, connector, holds=False)

    def _check_listed(self) -> None:
        for team in self.teams.values():
            for other in team.next_teams:
                if self.known(other.name) is not other:
                    raise InvalidInput(
                        f"pipeline {self.name!r}: team {team.name!r} leads to {other.name!r}, "
                        "which is not listed; add it to the pipeline, or its own one as others="
                    )

    def _check_topics(self) -> None:
        used: dict[str, str] = {}
        for name in self.teams:
            topics = self.topics(name)
            for role, topic in (
                ("input", topics.input),
                ("results", topics.results),
                ("dead letters", topics.dead),
            ):
                mine = f"the {role} of team {name!r}"
                if used.setdefault(topic, mine) != mine:
                    raise InvalidInput(
                        f"pipeline {self.name!r}: topic {topic!r} is {used[topic]} and {mine}; "
                        "both would do its jobs. Connect teams with pipe_to instead"
                    )

    def _check_cycles(self) -> None:
        state: dict[str, bool] = {}
        plain: dict[str, list[str]] = {name: [] for name in self.teams}
        for edge in self.edges:
            if edge.connector.cycle is None and edge.target in self.teams:
                plain[edge.source].append(edge.target)

        def visit(name: str, path: tuple[str, ...]) -> None:
            if state.get(name):
                return
            if name in path:
                found = " -> ".join((*path[path.index(name) :], name))
                raise InvalidInput(
                    f"pipeline {self.name!r}: {found} is a cycle; if you mean it, name the edge "
                    'that closes it: pipe_to(..., cycle="again")'
                )
            for target in plain[name]:
                visit(target, (*path, name))
            state[name] = True

        for name in self.teams:
            visit(name, ())

    def _check_ids(self) -> None:
        """No team may get one id along two paths that are both taken."""
        for name in self.teams:
            for one, other in combinations(self._edges_with_same_id(name), 2):
                kinds = {one.connector.kind, other.connector.kind}
                # A route takes one of its two; a spray makes ids that others do not have.
                if one.connector is other.connector or (
                    len(kinds) > 1 and ConnectorKind.SPRAY in kinds
                ):
                    continue
                met = self._reach(one.target) & self._reach(other.target)
                if met:
                    raise InvalidInput(
                        f"pipeline {self.name!r}: team {sorted(met)[0]!r} would get each id of "
                        f"{name!r} twice, through {one.target!r} and {other.target!r}, and drop "
                        'the second as a repetition; give one of them other ids: as_="..."'
                    )

    def _reach(self, name: str) -> set[str]:
        found, waiting = set(), [name]
        while waiting:
            current = waiting.pop()
            if current not in found:
                found.add(current)
                waiting += [edge.target for edge in self._edges_with_same_id(current)]
        return found

    def _gathered_from(self, source: str) -> list[str]:
        """The teams that get what a team sprays, gathered under the same id."""
        gathers = (
            _gather_of(self.teams[edge.target])
            for edge in self._edges_with_same_id(source)
            if edge.connector.kind is ConnectorKind.SPRAY and edge.target in self.teams
        )
        return [one.target for one in gathers if one is not None and one.id_suffix is None]

    def _check_gathers(self) -> None:
        for edge in self.edges:
            if edge.connector.kind is not ConnectorKind.GATHER:
                continue
            name, other = self.teams[edge.source], self.known(edge.target)
            assert other is not None, "it is listed"
            sprays = [
                one.source
                for one in self.edges
                if one.target == edge.source and one.connector.kind is ConnectorKind.SPRAY
            ]
            if not sprays:
                raise InvalidInput(
                    f"pipeline {self.name!r}: {edge.source!r} gathers to {edge.target!r}, but no "
                    f"team sprays to {edge.source!r}"
                )

            for team in (name, other):
                if team.codec.name not in ("json", "msgpack"):
                    raise InvalidInput(
                        f"pipeline {self.name!r}: {edge.source!r} gathers to {edge.target!r}, "
                        f"which takes codec json or msgpack, not {team.codec.name!r} of "
                        f"{team.name!r}"
                    )

            for source in sprays:
                if edge.connector.id_suffix is None and edge.target in self._reach(source):
                    raise InvalidInput(
                        f"pipeline {self.name!r}: team {edge.target!r} would get each id of "
                        f"{source!r} twice, gathered and by another path, and drop the second as a "
                        'repetition; give the gathered ones other ids: gather_to(..., as_="...")'
                    )

    def _edges_with_same_id(self, source: str) -> list[Edge]:
        """The edges of a team along which jobs keep their ids (a spray adds numbers to them)."""
        return [
            edge
            for edge in self.edges
            if edge.source == source
            and edge.connector.id_suffix is None
            and edge.connector.cycle is None
            and edge.connector.kind is not ConnectorKind.GATHER
        ]

    def _check_types(self) -> None:
        for edge in self.edges:
            source, target = self.teams[edge.source], self.known(edge.target)
            assert target is not None, "it is listed"
            if source.kind is not WorkKind.ITEM or target.kind is not WorkKind.ITEM:
                continue

            if edge.connector.kind is ConnectorKind.GATHER:
                self._check_gathered(edge)
                continue
            given = result_type(source.work)
            if edge.connector.kind is ConnectorKind.SPRAY:
                item = item_type(given)
                if item is None:
                    raise InvalidInput(
                        f"pipeline {self.name!r}: {source.name!r} is sprayed to {target.name!r} "
                        f"but returns {name_of(given)}, which is not a list"
                    )
                given = item
            if edge.connector.transform is not None:
                given = result_type(edge.connector.transform)

            wanted = payload_type(target.work)
            if not fits(given, wanted):
                raise InvalidInput(
                    f"pipeline {self.name!r}: {source.name!r} gives {name_of(given)} but "
                    f"{target.name!r} takes {name_of(wanted)}; put a transform between them"
                )

    def _check_gathered(self, edge: Edge) -> None:
        target = self.known(edge.target)
        assert target is not None, "it is listed"
        wanted = payload_type(target.work)
        if item_type(wanted) is None:
            raise InvalidInput(
                f"pipeline {self.name!r}: {edge.target!r} takes {name_of(wanted)}, but what "
                f"{edge.source!r} gathers is a list of items"
            )


def _gather_of(team: Team) -> Connector | None:
    """How a team gathers; None if it does not."""
    return next((one for one in team.connectors if one.kind is ConnectorKind.GATHER), None)
