"""Limits of a team: what may begin, who serves it, and what is refused."""

import uuid
from typing import Any

import pytest

from dovetail.errors import InvalidInput
from dovetail.teams import Pipeline, Team
from dovetail.teams.picture import as_svg, as_text
from dovetail.teams.tasks.attempt import Share
from dovetail.teams.tasks.dealing import dealt, units_of
from dovetail.teams.team import AFTER_MS_MAX
from dovetail.teams.workers.allowance import Allowance
from dovetail.timeline import TimelineConfig


def test_a_rate_holds_over_any_second() -> None:
    """T19: 100 a second, whatever is wanted and whenever it is asked for."""
    allowance, begun = Allowance(per_s=100.0, running_max=None, now_s=0.0), []
    for step in range(3_000):
        now_s = step / 1000
        room = allowance.room(now_s)
        allowance.begin(room, now_s)
        begun += [now_s] * room
    for start_s in (0.0, 0.5, 1.7):
        within = [at for at in begun if start_s <= at < start_s + 1]
        assert 95 <= len(within) <= 111
    assert allowance.room(2.999) == 0
    assert 2.999 < (allowance.due_s(2.999) or 0) <= 3.009


def test_what_was_not_used_is_not_saved_up() -> None:
    """T19: after an hour of silence there is no burst of an hour."""
    allowance = Allowance(per_s=2.0, running_max=None, now_s=0.0)
    assert allowance.room(3600.0) == 1


def test_partitions_share_what_may_run_at_once() -> None:
    """T19: two partitions, three jobs at once."""
    allowance = Allowance(per_s=None, running_max=3, now_s=0.0)
    counts = [2, 0]
    allowance.running += [lambda: counts[0], lambda: counts[1]]
    assert allowance.room(0.0) == 1
    counts[1] = 2
    assert allowance.room(0.0) == 0
    assert allowance.due_s(0.0) is None


def shares(pipeline: Pipeline) -> list[Share]:
    return [
        Share(stage, uuid.uuid4().hex, 1, number, size=1, copy=None, delays=False, term=0)
        for stage in pipeline.stages()
        for number in range(stage.workers)
    ]


def test_a_team_with_a_limit_is_served_by_one_task() -> None:
    """T19: all of its partitions, and the others are dealt evenly."""
    pipeline = Pipeline("p", Team("a", int, workers=5), Team("b", int, workers=3, rate="1/s"))
    tasks = dealt(units_of(shares(pipeline)), 3)
    assert sorted(len(one) for one in tasks.values()) == [2, 3, 3]
    [limited] = [one for one in tasks.values() if any(s.stage.team == "b" for s in one)]
    assert sum(share.stage.team == "b" for share in limited) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"rate": "0/s"},
        {"rate": "-1/s"},
        {"rate": "100"},
        {"rate": "1/d"},
        {"rate": "9" * 9 + "/s"},
        {"rate": 5},
        {"rate": "\ud800/s"},
        {"running_max": 0},
        {"running_max": True},
        {"running_max": 10_001},
        {"setup": 7},
    ],
)
def test_a_limit_that_is_none_is_refused(given: dict[str, Any]) -> None:
    """T19, T16: with the name of the team."""
    with pytest.raises(InvalidInput, match="team 'a'"):
        Team("a", int, **given)


@pytest.mark.parametrize("after", [-1, "3651d", 2**62])
def test_a_delay_that_no_timeline_takes_is_refused(after: str | int) -> None:
    """R8, T12: a job with one was acknowledged, and dropped when it was to wait."""
    one, other = Team("a", int), Team("b", int)
    with pytest.raises(InvalidInput, match="from 0 to ten years"):
        one.pipe_to(other, after=after)
    one.pipe_to(other, after="3650d")
    assert TimelineConfig().ahead_ms_max > AFTER_MS_MAX


def test_an_edge_may_lead_to_a_team_of_another_pipeline() -> None:
    """T19, F71: its topics are those of its own pipeline; without `others` it is refused."""
    bill = Team("bill", int, codec="msgpack")
    billing = Pipeline("billing", bill)
    order = Team("order", int)
    order >> bill
    with pytest.raises(InvalidInput, match="others="):
        Pipeline("shop", order)
    shop = Pipeline("shop", order, others=[billing])
    [stage] = shop.stages()
    target = stage.targets["bill"]
    assert (target.input_topic, target.codec.name) == ("billing.bill.input", "msgpack")
    assert [one.topics.input for one in shop.foreign_stages()] == ["billing.bill.input"]
    assert shop.ends() == ["order"]
    assert "bill" in as_text(shop)
    assert "bill" in as_svg(shop)
    with pytest.raises(InvalidInput, match="rename"):
        Pipeline("shop", order, Team("bill", int), others=[billing])


def test_what_cannot_be_gathered_is_refused() -> None:
    """T18: no spray before it, a second one, results that are not data, an id that comes twice."""
    a, b, c = Team("a", lambda job: [job]), Team("b", int), Team("c", list)
    b.gather_to(c)
    with pytest.raises(InvalidInput, match="no team sprays"):
        Pipeline("p", b, c)
    with pytest.raises(InvalidInput, match="already"):
        b.gather_to(c)
    a.spray_to(b)
    assert Pipeline("p", a, b, c).ends() == ["c"]
    a.pipe_to(c)
    with pytest.raises(InvalidInput, match="twice"):
        Pipeline("p", a, b, c)
    for within in ("0s", "31d"):
        with pytest.raises(InvalidInput):
            Team("d", int).gather_to(c, within=within)
    raw, wrong = Team("raw", int, codec="raw"), Team("wrong", len)
    other = Team("other", lambda job: [job])
    other.spray_to(raw)
    raw.gather_to(wrong)
    with pytest.raises(InvalidInput, match="json or msgpack"):
        Pipeline("p", other, raw, wrong)
