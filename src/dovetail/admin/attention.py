"""What needs attention: facts of a cluster in, findings out; pure.

The console's overview, `/v1/overview`, `dovetail doctor` and `dovetail top` show what `Attention`
finds, so they agree: a cluster is healthy if there is no finding.

    what                                                   grade
    a node that is missing, or reports a problem           bad    (damage, background work that
                                                                   fails again and again)
    partitions without an owner                            bad
    ledgers with fewer copies than wanted                  warn
    messages overdue and no consumer of their timeline     bad
    messages overdue although there are consumers          warn
    a group without members that has not read everything   warn
    a group whose lag grows                                warn
    a growing number of dead letters                       bad
    dead letters                                           warn
    a pipeline whose driver failed or is silent            bad
    a team that failed, or that fails and is retried       bad, warn
    a part of the cluster that could not be asked          bad

A figure *grows* if all of its later half of the last minute is above all of the earlier half: load
that comes and goes is not a finding. *Since* is when the cause began if that is known, otherwise
when it was first seen here. A finding about a part that could not be asked keeps its time.

Not here: gathering the facts; the caller bears their cost.
"""

import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from msgspec import Struct

from dovetail.admin.dead.letter import DeadSource
from dovetail.admin.pipelines import Pipeline
from dovetail.admin.timelines import TimelineSummary

Grade = Literal["bad", "warn"]
Health = Literal["healthy", "warning", "failing"]

#: How far back a figure is compared.
TREND_MS = 60_000
#: Samples closer together than this add nothing.
_APART_MS = TREND_MS // 20
#: Lag that was watched for less is not called growing: a batch may just have arrived.
WATCHED_MS_MIN = 30_000
#: Messages this late are overdue where nobody consumes, and where somebody does.
OVERDUE_MS = 10_000
OVERDUE_CONSUMED_MS = 60_000
#: Findings of one kind that are told one by one; the rest are counted.
TOLD_MAX = 20

#: Snapshots of teams, kept as positions of groups that nobody joins.
SNAPSHOTS = "dovetail-chain-"


class GroupFact(Protocol):
    """The facts of a group that matter here."""

    @property
    def group(self) -> str: ...

    @property
    def members(self) -> int: ...

    @property
    def lag(self) -> int | None: ...


class NodeFact(Protocol):
    """The facts of a registered node that matter here."""

    @property
    def name(self) -> str: ...

    @property
    def reasons(self) -> Sequence[str]: ...

    @property
    def copies_lacking(self) -> int: ...


class MissingFact(Protocol):
    """A node that should be there; `since_ms` is None if it went before anybody looked."""

    @property
    def name(self) -> str: ...

    @property
    def roles(self) -> Sequence[str]: ...

    @property
    def since_ms(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a cluster now; what was not asked for is empty."""

    nodes: Sequence[NodeFact] = ()
    missing: Sequence[MissingFact] = ()
    partitions_without_owner: int = 0
    groups: Sequence[GroupFact] = ()
    timelines: Sequence[TimelineSummary] = ()
    dead: Sequence[DeadSource] = ()
    pipelines: Sequence[Pipeline] = ()
    #: Nouns that could not be asked about, and why.
    unknown: Mapping[str, str] = field(default_factory=dict)


class Finding(Struct, frozen=True):
    """Something that needs attention: what and where, since when, what to do."""

    grade: Grade
    #: What kind of thing it is about: node, topic, group, timeline, dead, pipeline.
    noun: str
    where: str
    what: str
    todo: str
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class _Found:
    rule: str
    grade: Grade
    noun: str
    where: str
    what: str
    todo: str
    since_ms: int | None = None


def health_of(findings: Sequence[Finding]) -> Health:
    """The cluster in one word."""
    if any(finding.grade == "bad" for finding in findings):
        return "failing"
    return "warning" if findings else "healthy"


class Trend:
    """A figure over the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()

    def add(self, value: int, *, now_ms: int) -> None:
        """Takes a sample; a clock that went back begins anew."""
        samples = self._samples
        if samples and now_ms < samples[-1][0]:
            samples.clear()
        while samples and now_ms - samples[0][0] > TREND_MS:
            samples.popleft()
        # The newest value always counts; what lies close before it is replaced.
        if len(samples) > 1 and now_ms - samples[-2][0] < _APART_MS:
            samples.pop()
        samples.append((now_ms, value))

    @property
    def growth(self) -> int:
        """The last value minus the first."""
        return self._samples[-1][1] - self._samples[0][1]

    def grows(self, *, watched_ms_min: int) -> bool:
        """Whether all of the later half is above all of the earlier one."""
        first_ms, last_ms = self._samples[0][0], self._samples[-1][0]
        if last_ms == first_ms or last_ms - first_ms < watched_ms_min:
            return False
        middle_ms = (first_ms + last_ms) / 2
        early = [value for at_ms, value in self._samples if at_ms <= middle_ms]
        late = [value for at_ms, value in self._samples if at_ms > middle_ms]
        return min(late) > max(early)


class Attention:
    """Remembers what it saw, so that growth and beginnings are known."""

    def __init__(self, *, watched_ms_min: int = WATCHED_MS_MIN) -> None:
        """`watched_ms_min`: lag that was watched for less is not called growing."""
        self._watched_ms_min = watched_ms_min
        self._trends: dict[tuple[str, str], Trend] = {}
        self._since: dict[tuple[str, str, str], int] = {}

    def look(self, facts: Facts, *, now_ms: int) -> list[Finding]:
        """All findings, the worst first."""
        self._sample(facts, now_ms)
        found = [
            *_nodes(facts),
            *_timelines(facts.timelines, now_ms),
            *_pipelines(facts.pipelines),
            *self._dead(facts.dead),
            *self._groups(facts),
        ]

        keys = {(one.rule, one.noun, one.where) for one in found}
        self._since = {
            key: at for key, at in self._since.items() if key in keys or key[1] in facts.unknown
        }
        for key in keys:
            self._since.setdefault(key, now_ms)
        told = [self._told(one) for one in _limited(found)]
        return sorted(told, key=lambda finding: finding.grade)

    def _told(self, one: _Found) -> Finding:
        first_ms = self._since.get((one.rule, one.noun, one.where))
        since_ms = first_ms if one.since_ms is None else one.since_ms
        return Finding(one.grade, one.noun, one.where, one.what, one.todo, since_ms)

    def _sample(self, facts: Facts, now_ms: int) -> None:
        values = {("group", one.group): one.lag for one in facts.groups}
        values |= {(f"dead {one.source}", one.name): one.count for one in facts.dead}
        gone = [
            key
            for key in self._trends
            if key not in values and key[0].partition(" ")[0] not in facts.unknown
        ]
        for key in gone:
            del self._trends[key]
        for key, value in values.items():
            if value is not None:
                self._trends.setdefault(key, Trend()).add(value, now_ms=now_ms)

    def _groups(self, facts: Facts) -> Iterator[_Found]:
        served = tuple(
            f"dovetail.{one.pipeline}." for one in facts.pipelines if one.state != "stopped"
        )
        for one in facts.groups:
            if not one.lag or one.group.startswith((SNAPSHOTS, *served)):
                continue

            if one.members == 0:
                yield _Found(
                    "alone",
                    "warn",
                    "group",
                    one.group,
                    f"has no members and {_many(one.lag, 'record')} to read",
                    "start its consumers; delete the group if nobody needs it any more "
                    f"(dovetail group delete {_pasted(one.group)})",
                )
            trend = self._trends.get(("group", one.group))
            if one.members and trend and trend.grows(watched_ms_min=self._watched_ms_min):
                more = trend.growth
                yield _Found(
                    "lag",
                    "warn",
                    "group",
                    one.group,
                    f"falls behind: {one.lag:,} records to read, {more:,} more than a moment ago",
                    "add members (up to one for each partition), or make the handler faster",
                )

    def _dead(self, sources: Sequence[DeadSource]) -> Iterator[_Found]:
        for one in sources:
            trend = self._trends.get((f"dead {one.source}", one.name))
            if one.count is None:
                what = f"dead letters cannot be read: {one.trouble or 'no answer'}"
                todo = "see whether that service runs; dovetail doctor"
                yield _Found("unread", "bad", "dead", one.name or one.source, what, todo)
            elif one.count and trend is not None and trend.growth > 0:
                what = f"dead letters become more: {one.count:,}, {trend.growth:,} of them new"
                todo = "read the newest reason; stop or mend the handler, then replay them"
                yield _Found("more", "bad", "dead", one.name, what, todo)
            elif one.count:
                what = f"{_many(one.count, 'dead letter')}"
                todo = "read their reasons, then replay or drop them"
                yield _Found("some", "warn", "dead", one.name, what, todo)


def _nodes(facts: Facts) -> Iterator[_Found]:
    for noun, why in facts.unknown.items():
        what = f"cannot be asked about: {why}"
        yield _Found("unknown", "bad", noun, f"{noun}s", what, "see the log of the node")
    for missing in facts.missing:
        yield _Found(
            "missing",
            "bad",
            "node",
            missing.name,
            f"is not there ({', '.join(missing.roles)})",
            "start it again, or read its log; a storage node that is gone for good: "
            "dovetail storage drain",
            missing.since_ms,
        )

    for node in facts.nodes:
        for reason in node.reasons:
            todo = "read the log of that node, and docs/operations.md"
            yield _Found(reason, "bad", "node", node.name, reason, todo)
        if node.copies_lacking:
            yield _Found(
                "copies",
                "warn",
                "node",
                node.name,
                f"{_many(node.copies_lacking, 'ledger')} of its partitions with too few copies",
                "bring missing storage nodes back; otherwise repair replaces the copies by itself",
            )

    if facts.partitions_without_owner:
        yield _Found(
            "owner",
            "bad",
            "topic",
            "partitions",
            f"{_many(facts.partitions_without_owner, 'partition')} without an owner: nobody can "
            "write or read there",
            "wait some seconds for a takeover; then see that enough storage nodes are up",
        )


def _timelines(timelines: Sequence[TimelineSummary], now_ms: int) -> Iterator[_Found]:
    for one in timelines:
        if not one.due or one.oldest_due_ms is None:
            continue
        late_ms = now_ms - one.oldest_due_ms
        name = one.timeline
        if one.paused and late_ms >= OVERDUE_MS:
            what = f"is paused, and {_many(one.due, 'message')} overdue"
            todo = f"dovetail timeline resume {name}"
            yield _Found("paused", "warn", "timeline", name, what, todo, one.oldest_due_ms)
        elif not one.consumers and late_ms >= OVERDUE_MS:
            what = f"{_many(one.due, 'message')} overdue, and no consumer is connected"
            todo = "start its consumers"
            yield _Found("overdue", "bad", "timeline", name, what, todo, one.oldest_due_ms)
        elif late_ms >= OVERDUE_CONSUMED_MS:
            what = (
                f"{_many(one.due, 'message')} overdue: its consumers ({one.consumers}) fall behind"
            )
            todo = "start more consumers, or make the handler faster"
            yield _Found("late", "warn", "timeline", name, what, todo, one.oldest_due_ms)


def _pipelines(pipelines: Sequence[Pipeline]) -> Iterator[_Found]:
    for one in pipelines:
        if one.state in ("silent", "failed"):
            said = "has not reported" if one.state == "silent" else "has failed"
            yield _Found(
                one.state,
                "bad",
                "pipeline",
                one.pipeline,
                f"its driver {one.driver} {said}",
                "see whether its process is alive, and its log; start it again",
                one.reported_ms,
            )

        if one.state in ("silent", "stopped"):
            continue
        for team in one.teams:
            if team.state not in ("failed", "retrying"):
                continue
            what = "has failed" if team.state == "failed" else f"fails ({team.failures} times)"
            yield _Found(
                team.state,
                "bad" if team.state == "failed" else "warn",
                "pipeline",
                one.pipeline,
                f"team {team.team} {what}: {team.last_error or 'see the log of its driver'}",
                "read the error; mend the team's function or what it depends on",
            )


def _pasted(name: str) -> str:
    """A name that clients chose, as an operator may paste it into a shell."""
    quoted = shlex.quote(name)
    return quoted if quoted == name and not name.startswith("-") else f"-- {quoted}"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _limited(found: Sequence[_Found]) -> Iterator[_Found]:
    """Of each kind so many; the rest are counted."""
    by_kind: dict[tuple[str, str], list[_Found]] = {}
    for one in found:
        by_kind.setdefault((one.noun, one.rule), []).append(one)
    for (noun, rule), same in by_kind.items():
        yield from same[:TOLD_MAX]
        more = len(same) - TOLD_MAX
        if more > 0:
            first = same[0]
            what = f"and {more:,} more {noun}s of this kind"
            yield _Found(f"{rule} more", first.grade, noun, f"{more:,} more", what, first.todo)
