"""Teams, connectors and the checks of a graph: all before anything runs."""

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest

from dovetail.errors import InvalidInput, InvalidSetting, NotFound
from dovetail.teams.connectors import SPRAY_ITEMS_MAX, Connector, ConnectorKind
from dovetail.teams.envelope import JobId
from dovetail.teams.graph import Pipeline, Topics
from dovetail.teams.team import Team
from dovetail.teams.types import fits


def same(job: Any) -> Any:
    return job


def test_the_pipeline_of_the_readme_is_built() -> None:
    """T1, T7: teams have topics named after them; connectors stand in the order of declaration."""
    parse, price = Team("parse", work=same, workers=4, timeout="10s", attempts=3), Team("p", same)
    ship, refund = Team("ship", same), Team("refund", work=same)
    assert parse >> price is price
    price.route_to(lambda result: result["total"] > 0, ship, refund)
    orders = Pipeline("orders", parse, price, ship, refund)
    assert orders.topics() == Topics(
        "orders.parse.input", "orders.parse.results", "orders.parse.dead"
    )
    assert [(e.source, e.target, e.holds) for e in orders.edges] == [
        ("parse", "p", True),
        ("p", "ship", True),
        ("p", "refund", False),
    ]
    assert orders.ends() == ["ship", "refund"]
    stage = orders.stages()[1]
    assert stage.targets["refund"].input_topic == "orders.refund.input"
    assert stage.group == "dovetail.orders.p"
    assert orders.stages()[0].policy.timeout_ms == 10_000
    with pytest.raises(NotFound, match="it has parse, p, ship, refund"):
        orders.team("shop")


def test_a_condition_sees_the_result_and_the_transform_comes_after() -> None:
    """T7: route_to asks about the result itself; what travels on is transformed."""
    route = Connector(
        ConnectorKind.ROUTE,
        "big",
        "small",
        condition=lambda r: r["n"] > 10,
        transform=lambda r: r["n"],
    )
    [one] = route.forward(JobId("x"), {"n": 11})
    [other] = route.forward(JobId("y"), {"n": 10})
    assert (one.target, one.id, one.payload) == ("big", "x", 11)
    assert (other.target, other.id, other.payload) == ("small", "y", 10)


def test_sprayed_items_have_ids_of_their_own() -> None:
    """T7: parent/0, parent/1, ...; one id for all would leave only the first."""
    spray = Connector(ConnectorKind.SPRAY, "b", transform=lambda n: n * 2)
    assert [(f.id, f.payload) for f in spray.forward(JobId("p"), [1, 2])] == [
        ("p/0", 2),
        ("p/1", 4),
    ]
    assert spray.forward(JobId("p"), []) == []
    for wrong in ("text", {"a": 1}, 7):
        with pytest.raises(InvalidInput, match="spray_to splits a list"):
            spray.forward(JobId("p"), wrong)
    with pytest.raises(InvalidInput, match="Spray in two steps"):
        spray.forward(JobId("p"), range(SPRAY_ITEMS_MAX + 1))


def test_a_round_of_a_cycle_is_a_job_of_its_own() -> None:
    """T7: else the second round would be dropped as a repetition of the first."""
    again = Connector(ConnectorKind.PIPE, "a", cycle="again")
    first = again.forward(JobId("x"), 0)[0].id
    assert (first, again.forward(first, 0)[0].id) == ("x#1", "x#2")
    named = Connector(ConnectorKind.PIPE, "a", id_suffix="copy")
    assert named.forward(JobId("x"), 0)[0].id == "x/copy"


def _pair(first: Any = same, second: Any = same) -> tuple[Team, Team]:
    return Team("a", first), Team("b", second)


def test_cycles_are_refused_unless_they_are_named() -> None:
    """T7: a cycle by accident is an error with its way; a named one is built."""
    a, b = _pair()
    a >> b
    b.pipe_to(a)
    with pytest.raises(InvalidInput, match="a -> b -> a is a cycle"):
        Pipeline("p", a, b)
    a, b = _pair()
    a >> b
    b.pipe_to(a, cycle="again")
    assert Pipeline("p", a, b).ends() == ["b"]


def test_a_team_that_is_not_listed_is_named() -> None:
    """T7: a connector to nowhere is found when the pipeline is built."""
    a, b = _pair()
    a >> b
    with pytest.raises(InvalidInput, match="leads to 'b', which is not listed"):
        Pipeline("p", a)
    with pytest.raises(InvalidInput, match="leads to 'b', which is not listed"):
        Pipeline("p", a, Team("b", same))
    with pytest.raises(InvalidInput, match="two teams named 'a'"):
        Pipeline("p", a, Team("a", same), b)


def test_two_teams_with_one_input_are_refused() -> None:
    """T1: jobs would be done twice."""
    with pytest.raises(InvalidInput, match="'jobs' is the input of team 'a' and the input of"):
        Pipeline("p", Team("a", same, input_topic="jobs"), Team("b", same, input_topic="jobs"))
    with pytest.raises(InvalidInput, match="the results of team 'a'"):
        Pipeline("p", Team("a", same, results_topic="x"), Team("b", same, input_topic="x"))


def test_a_team_that_would_get_an_id_twice_is_refused() -> None:
    """T4, T7: the second way would be dropped as a repetition; `as_` gives it ids of its own."""

    def diamond(**own: Any) -> Pipeline:
        a, b, c, d = (Team(name, same) for name in "abcd")
        a >> b
        a.pipe_to(c, **own)
        b >> d
        c >> d
        return Pipeline("p", a, b, c, d)

    with pytest.raises(InvalidInput, match="team 'd' would get each id of 'a' twice"):
        diamond()
    assert diamond(as_="c").ends() == ["d"]
    a, b, c, d = (Team(name, same) for name in "abcd")
    a.route_to(bool, b, c)
    b >> d
    c >> d
    assert Pipeline("p", a, b, c, d).ends() == ["d"], "the arms of a route exclude each other"


def make_text(job: dict[str, int]) -> str:
    return str(job)


def make_list(job: str) -> list[int]:
    return [len(job)]


def test_results_that_do_not_fit_are_refused() -> None:
    """T7: annotations are compared where both sides have them."""
    a, b = _pair(make_text, make_text)
    a >> b
    with pytest.raises(InvalidInput, match="'a' gives str but 'b' takes dict"):
        Pipeline("p", a, b)
    a, b = _pair(make_text, make_text)
    a.pipe_to(b, transform=lambda text: {"n": len(text)})
    Pipeline("p", a, b)
    a, b = _pair(make_text, same)
    a.spray_to(b)
    with pytest.raises(InvalidInput, match="returns str, which is not a list"):
        Pipeline("p", a, b)
    a, b = _pair(make_list, make_text)
    a.spray_to(b)
    with pytest.raises(InvalidInput, match="'a' gives int but 'b' takes dict"):
        Pipeline("p", a, b)


class Point(TypedDict):
    x: int


@dataclass
class Place:
    x: int


@pytest.mark.parametrize(
    ("given", "wanted", "expected"),
    [
        (int, float, True),
        (str, int, False),
        (dict[str, int], Place, True),
        (Point, dict, True),
        (Place, str, False),
        (list[int], list[str], False),
        (tuple[int, ...], list[int], True),
        (int | None, str, False),
        (int | str, str, True),
        (str, int | None, False),
        (Any, str, True),
        (object, str, True),
    ],
)
def test_only_what_is_surely_wrong_is_refused(given: Any, wanted: Any, expected: bool) -> None:
    """T7: in doubt it fits; the decoder judges the jobs."""
    assert fits(given, wanted) is expected


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"workers": 0}, "workers=0 must be a number"),
        ({"attempts": True}, "attempts=True"),
        ({"kind": "rows"}, "'rows' is not a kind of function"),
        ({"codec": "pickle"}, "'pickle' is not a codec; take arrow, json, msgpack, raw"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"backoff": "9s", "backoff_max": "5s"}, "must not be shorter than the first"),
        ({"backoff": "31d"}, "at most 30 days"),
        ({"kind": "batch", "concurrency": 2}, "concurrency is for functions of one payload"),
        ({"kind": "arrow", "codec": "raw"}, "take json or msgpack"),
        ({"input_topic": "a b"}, "is not a topic name"),
    ],
)
def test_a_team_that_cannot_work_is_refused(more: dict[str, Any], said: str) -> None:
    """T1, T10: with the name, the value and what would do."""
    with pytest.raises(InvalidInput, match=said):
        Team("a", same, **more)
    with pytest.raises(InvalidInput, match="a team's name"):
        Team("a b", same)
    with pytest.raises(InvalidSetting, match="is not a duration"):
        Team("a", same, timeout="soon")
