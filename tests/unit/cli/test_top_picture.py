"""`dovetail top` without a node: rates, order, keys, and what fits on a screen."""

import json

import pytest
from rich.console import Console

from dovetail.cli.top.picture import (
    Look,
    Part,
    Row,
    Table,
    as_json,
    ordered,
    pictured,
    totals,
    without_internal,
)
from dovetail.cli.top.view import HELP, Choice, pressed, rendered, shares


def topic(name: str, end: int, *, records: int = 0, internal: bool = False) -> Row:
    return {
        "topic": name,
        "partitions": 1,
        "records": records or end,
        "end": end,
        "no leader": 0,
        "internal": internal,
    }


def topics(at_s: float, *rows: Row) -> dict[Part, Look]:
    return {"topics": Look(at_s, rows)}


def column(table: Table, name: str) -> dict[str, object]:
    return {row[table.columns[0]]: row.get(name) for row in table.rows}


def drawn(tables: tuple[Table, ...], choice: Choice, *, height: int | None = 24) -> str:
    console = Console(width=120, height=24, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(rendered(tables, choice, where="h:1", at="now", height=height))
    return captured.get()


def test_a_rate_is_what_came_between_two_answers() -> None:
    """U4: records a second are counted by the looks' own times."""
    (table,) = pictured(topics(10.0, topic("a", 100)), topics(12.0, topic("a", 150)))
    assert column(table, "records/s") == {"a": 25.0}


def test_what_cannot_be_compared_has_no_rate() -> None:
    """U4: a new topic, one that was made anew, and a first look have none: better than a lie."""
    before = topics(10.0, topic("anew", 100))
    now = topics(11.0, topic("anew", 5), topic("new", 7))
    (table,) = pictured(before, now)
    assert column(table, "records/s") == {"anew": None, "new": None}
    (first,) = pictured({}, now)
    assert column(first, "records/s") == {"anew": None, "new": None}


def test_a_lag_that_shrinks_has_a_negative_rate() -> None:
    """U4: a group that catches up is seen to."""
    row = {"group": "g", "state": "stable", "members": 1, "topics": "t"}
    before: dict[Part, Look] = {"groups": Look(0.0, ({**row, "lag": 90},))}
    now: dict[Part, Look] = {"groups": Look(3.0, ({**row, "lag": 60},))}
    (table,) = pictured(before, now)
    assert column(table, "lag/s") == {"g": -10.0}


def test_a_door_that_is_shut_leaves_its_last_answer_and_says_since_when() -> None:
    """U4, U7: a node that restarts does not empty the screen, and nothing old looks like new."""
    now: dict[Part, Look] = {"topics": Look(17.0, trouble="connection refused")}
    (table,) = pictured(topics(10.0, topic("a", 100)), now)
    assert (table.trouble, table.stale_s) == ("connection refused", 7.0)
    assert column(table, "records/s") == {"a": None}
    text = drawn((table,), Choice())
    assert "topics as of 7 s ago: connection refused" in text
    (never,) = pictured({}, now)
    assert never.rows == ()
    assert "topics: connection refused" in drawn((never,), Choice())


def test_internal_topics_are_shown_on_demand() -> None:
    """U4: what the node keeps for itself does not crowd out what people made."""
    now = topics(1.0, topic("a", 1), topic("__dovetail_groups", 9, internal=True))
    (table,) = pictured({}, now)
    assert set(column(table, "records")) == {"a"}
    (everything,) = pictured({}, now, internal=True)
    assert set(column(everything, "records")) == {"a", "__dovetail_groups"}
    assert without_internal(everything) == table


@pytest.mark.parametrize(
    ("choice", "order"),
    [
        (Choice(sort="name", descending=False), "abc"),
        (Choice(sort="name", descending=True), "cba"),
        (Choice(sort="size", descending=True), "bac"),
        (Choice(sort="rate", descending=True), "abc"),
    ],
)
def test_tables_are_sorted(choice: Choice, order: str) -> None:
    """U4: by name, by rate, by size; what is not known goes last, equals go by name."""
    before = topics(0.0, topic("a", 0), topic("b", 50))
    now = topics(1.0, topic("c", 10), topic("b", 60, records=60), topic("a", 20))
    (table,) = pictured(before, now)
    found = ordered(table, choice.sort, descending=choice.descending)
    assert "".join(row["topic"] for row in found.rows) == order


def test_keys_choose() -> None:
    """U4: sort, reverse, pause, internal topics, help and quit; other keys do nothing."""
    choice = Choice()
    assert choice.sort == "rate"
    assert pressed(choice, "s") == Choice(sort="size")
    assert pressed(pressed(choice, "s"), "s") == Choice(sort="name", descending=False)
    assert pressed(choice, "r") == Choice(descending=False)
    assert pressed(choice, "p") == pressed(choice, " ") == Choice(paused=True)
    assert pressed(pressed(choice, "p"), "p") == choice
    assert pressed(choice, "i") == Choice(internal=True)
    assert pressed(choice, "h") == pressed(choice, "?") == Choice(help=True)
    assert pressed(choice, "q").done
    assert pressed(choice, "x") == choice


def test_every_table_gets_a_row_before_one_gets_two() -> None:
    """U4: on a small screen nothing is pushed out by a long list."""
    assert shares([1, 100, 3], 10) == [1, 6, 3]
    assert shares([5, 5], 3) == [2, 1]
    assert shares([1, 1], 100) == [1, 1]
    assert shares([3], -2) == [0]
    assert shares([], 5) == []


def test_a_screen_is_never_overfull() -> None:
    """U4: with a thousand topics and groups the view still fits into 24 lines."""
    many = tuple(topic(f"t{number:04}", number) for number in range(1000))
    row = {"state": "stable", "members": 1, "topics": "t", "lag": 1}
    groups = tuple({"group": f"g{number}", **row} for number in range(1000))
    looks: dict[Part, Look] = {"topics": Look(1.0, many), "groups": Look(1.0, groups)}
    text = drawn(pictured({}, looks), Choice())
    assert len(text.splitlines()) <= 24
    assert "of 1000 topics" in text
    assert "of 1000 groups" in text
    assert HELP in text
    whole = drawn(pictured({}, looks), Choice(), height=None)
    assert "t0999" in whole
    assert "of 1000" not in whole


def test_the_head_says_what_matters() -> None:
    """U4: totals, a pause, and partitions that nobody serves are in the first line."""
    rows = ({**topic("a", 10), "no leader": 2},)
    tables = pictured(topics(0.0, topic("a", 0)), {"topics": Look(1.0, rows)})
    head = drawn(tables, Choice(paused=True)).splitlines()[0]
    for text in ("10.0 records/s", "2 partitions without a leader", "paused", "by rate"):
        assert text in head
    assert "reverse the order" in drawn(tables, Choice(help=True))


def test_programs_get_all_of_it() -> None:
    """U4: names that a program likes, totals, and what did not answer."""
    looks: dict[Part, Look] = {
        "topics": Look(1.0, (topic("a", 10),)),
        "nodes": Look(1.0, trouble="refused"),
    }
    found = as_json(pictured(topics(0.0, topic("a", 4)), looks), at="now")
    assert json.loads(json.dumps(found))["topics"][0]["records_per_s"] == 6.0
    assert found["troubles"] == {"nodes": "refused"}
    assert found["totals"]["records_per_s"] == 6.0
    assert totals(())["lag"] is None
