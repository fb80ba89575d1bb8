"""What needs attention, from facts alone."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from dovetail.admin.attention import (
    OVERDUE_CONSUMED_MS,
    OVERDUE_MS,
    TOLD_MAX,
    TREND_MS,
    Attention,
    Facts,
    Finding,
    Trend,
    health_of,
)
from dovetail.admin.dead.letter import DeadSource
from dovetail.admin.pipelines import Pipeline, TeamReport
from dovetail.admin.timelines import TimelineSummary

NOW_MS = 1_800_000_000_000


@dataclass(frozen=True)
class AGroup:
    group: str
    members: int
    lag: int | None


@dataclass(frozen=True)
class ANode:
    name: str = "one"
    reasons: Sequence[str] = ()
    copies_lacking: int = 0


@dataclass(frozen=True)
class AMissing:
    name: str = "two"
    roles: Sequence[str] = ("broker",)
    since_ms: int | None = None


def a_timeline(*, late_ms: int, **changed: Any) -> TimelineSummary:
    given: dict[str, Any] = {"timeline": "mails", "state": "ready", "due": 3, "consumers": 1}
    return TimelineSummary(**given | changed, oldest_due_ms=NOW_MS - late_ms)


def a_pipeline(state: str, *teams: TeamReport) -> Pipeline:
    return Pipeline(
        pipeline="shop",
        state=state,
        driver="d1",
        teams=list(teams),
        reported_ms=NOW_MS - 5,
        silent_ms=5,
        standbys=[],
    )


def found(now_ms: int = NOW_MS, **facts: Any) -> list[Finding]:
    return Attention().look(Facts(**facts), now_ms=now_ms)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"nodes": [ANode()]},
        {"groups": [AGroup("g", 0, 0), AGroup("unknown", 0, None), AGroup("reads", 2, 900_000)]},
        {"timelines": [a_timeline(late_ms=OVERDUE_MS - 1, consumers=0)]},
        {"timelines": [a_timeline(late_ms=OVERDUE_CONSUMED_MS - 1)]},
        {"timelines": [a_timeline(late_ms=10**9, due=0)]},
        {"timelines": [TimelineSummary("made", "creating")]},
        {"dead": [DeadSource("timeline", "mails", 0)]},
        {"pipelines": [a_pipeline("running", TeamReport("parse", "working", last_error="old"))]},
        {"pipelines": [a_pipeline("stopped", TeamReport("parse", "failed"))]},
        # Nobody joins the groups under which teams show their positions.
        {
            "groups": [AGroup("dovetail.shop.parse", 0, 9), AGroup("dovetail-chain-1-0", 0, 9)],
            "pipelines": [a_pipeline("running")],
        },
    ],
)
def test_what_is_well_is_not_told(facts: dict[str, Any]) -> None:
    """F87: healthy means that there is nothing to do."""
    assert found(**facts) == []
    assert health_of([]) == "healthy"


@pytest.mark.parametrize(
    ("facts", "grade", "about", "what", "todo"),
    [
        ({"groups": [AGroup("g", 0, 195_000)]}, "warn", ("group", "g"), "195,000", "consumers"),
        (
            {"groups": [AGroup("dovetail.shop.a", 0, 9)], "pipelines": [a_pipeline("stopped")]},
            "warn",
            ("group", "dovetail.shop.a"),
            "no members",
            "delete",
        ),
        (
            {"timelines": [a_timeline(late_ms=1_800_000, consumers=0)]},
            "bad",
            ("timeline", "mails"),
            "no consumer",
            "start",
        ),
        (
            {"timelines": [a_timeline(late_ms=OVERDUE_CONSUMED_MS)]},
            "warn",
            ("timeline", "mails"),
            "fall behind",
            "more consumers",
        ),
        (
            {"timelines": [a_timeline(late_ms=OVERDUE_MS, paused=True)]},
            "warn",
            ("timeline", "mails"),
            "paused",
            "timeline resume mails",
        ),
        ({"dead": [DeadSource("topic", "x", 845)]}, "warn", ("dead", "x"), "845", "replay"),
        (
            {"dead": [DeadSource("outbox", "", None, "refused")]},
            "bad",
            ("dead", "outbox"),
            "refused",
            "doctor",
        ),
        ({"missing": [AMissing()]}, "bad", ("node", "two"), "not there (broker)", "start"),
        ({"nodes": [ANode(reasons=["damaged: 7"])]}, "bad", ("node", "one"), "damaged", "log"),
        ({"nodes": [ANode(copies_lacking=4)]}, "warn", ("node", "one"), "4 ledgers", "repair"),
        (
            {"partitions_without_owner": 2},
            "bad",
            ("topic", "partitions"),
            "2 partitions without",
            "takeover",
        ),
        ({"pipelines": [a_pipeline("silent")]}, "bad", ("pipeline", "shop"), "d1 has not", "alive"),
        ({"pipelines": [a_pipeline("failed")]}, "bad", ("pipeline", "shop"), "d1 has fa", "log"),
        (
            {"pipelines": [a_pipeline("running", TeamReport("a", "failed", last_error="boom"))]},
            "bad",
            ("pipeline", "shop"),
            "team a has failed: boom",
            "mend",
        ),
        (
            {"pipelines": [a_pipeline("running", TeamReport("a", "retrying", failures=3))]},
            "warn",
            ("pipeline", "shop"),
            "team a fails (3 times)",
            "mend",
        ),
        ({"unknown": {"group": "no answer"}}, "bad", ("group", "groups"), "no answer", "log"),
    ],
)
def test_each_thing_says_what_and_what_to_do(
    facts: dict[str, Any], grade: str, about: tuple[str, str], what: str, todo: str
) -> None:
    """F87: what, where, and what to do; the health agrees."""
    (one,) = found(**facts)
    assert (one.grade, (one.noun, one.where)) == (grade, about)
    assert what in one.what
    assert todo in one.todo
    assert health_of([one]) == {"bad": "failing", "warn": "warning"}[grade]


def test_the_worst_comes_first_and_many_are_counted() -> None:
    """F87: a list that somebody can read, however much is wrong."""
    groups = [AGroup(f"g{number}", 0, 1) for number in range(TOLD_MAX + 7)]
    rows = found(groups=groups, nodes=[ANode(reasons=["damaged: 7"])])
    assert [row.grade for row in rows] == ["bad", *["warn"] * (TOLD_MAX + 1)]
    assert rows[-1].what == "and 7 more groups of this kind"


def test_a_command_that_is_to_be_pasted_holds_no_other() -> None:
    """R6, U5: a group has any name that its clients give it; and one that is told of twice, once
    without its lag, stops nobody."""
    name = "x'; reboot #"
    (finding,) = found(groups=[AGroup(name, 0, 7)])
    (command,) = re.findall(r"\((dovetail .*)\)$", finding.todo)
    assert shlex.split(command) == ["dovetail", "group", "delete", "--", name]
    assert found(groups=[AGroup("twice", 2, 7), AGroup("twice", 2, None)]) == []


def test_lag_that_grows_is_told_and_lag_that_comes_and_goes_is_not() -> None:
    """F87: the later half of a minute above all of the earlier one."""

    def watched(lags: list[int]) -> list[Finding]:
        watching, last = Attention(), []
        for at, lag in enumerate(lags):
            facts = Facts(groups=[AGroup("g", 2, lag)])
            last = watching.look(facts, now_ms=NOW_MS + at * 5_000)
        return last

    assert not watched([100, 900])
    assert not watched([10, 500, 20, 400, 15, 600, 10, 500, 30, 700])
    assert not watched([900, 800, 700, 600, 500, 400, 300, 200])
    (one,) = watched([100, 120, 110, 130, 160, 170, 165, 190])
    assert "190 records to read, 90 more" in one.what


def test_dead_letters_that_become_more_are_worse() -> None:
    """F87: and are as before when a minute has passed without another."""
    watching = Attention()

    def grade(count: int, at_s: int) -> list[str]:
        facts = Facts(dead=[DeadSource("timeline", "mails", count)])
        return [one.grade for one in watching.look(facts, now_ms=NOW_MS + at_s * 1000)]

    assert grade(5, 0) == ["warn"]
    assert grade(6, 10) == ["bad"]
    assert grade(6, 60) == ["bad"]
    assert grade(6, 75) == ["warn"]
    assert grade(0, 90) == []


def test_since_when() -> None:
    """F87: when it began if that is known, otherwise when it was first seen, also over a gap."""
    watching = Attention()
    alone = Facts(groups=[AGroup("g", 0, 7)])
    late = a_timeline(late_ms=60_000, consumers=0)
    (first,) = watching.look(alone, now_ms=NOW_MS)
    assert first.since_ms == NOW_MS
    silent = Facts(unknown={"group": "no answer"})
    assert [one.since_ms for one in watching.look(silent, now_ms=NOW_MS + 1)] == [NOW_MS + 1]
    rows = watching.look(Facts(groups=alone.groups, timelines=[late]), now_ms=NOW_MS + 2)
    assert [one.since_ms for one in rows] == [NOW_MS - 60_000, NOW_MS]
    assert watching.look(Facts(), now_ms=NOW_MS + 3) == []
    (again,) = watching.look(alone, now_ms=NOW_MS + 4)
    assert again.since_ms == NOW_MS + 4


def test_a_trend_has_a_limit_and_survives_a_clock_that_goes_back() -> None:
    """F87: looked at a thousand times a minute it keeps a few samples; time may jump."""
    trend = Trend()
    for at in range(2_000):
        trend.add(at, now_ms=NOW_MS + at * 60)
    assert len(trend._samples) < 50
    assert trend._samples[-1][1] == 1_999
    assert trend.growth <= TREND_MS / 60
    trend.add(3, now_ms=NOW_MS - 10**9)
    assert (trend.growth, trend.grows(watched_ms_min=0)) == (0, False)
