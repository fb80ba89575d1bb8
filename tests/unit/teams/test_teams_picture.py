"""Pipelines as pictures."""

from xml.etree import ElementTree

from dovetail.teams.graph import Pipeline
from dovetail.teams.picture import as_svg, as_text, columns_of
from dovetail.teams.team import Team


def orders() -> Pipeline:
    parse, price = Team("parse", dict, workers=4), Team("price", dict)
    ship, refund = Team("ship", dict), Team("refund", dict)
    parse.spray_to(price)
    price.route_to(bool, ship, refund, after="15m")
    refund.pipe_to(price, cycle="again")
    return Pipeline("orders", parse, price, ship, refund)


def test_the_graph_as_text() -> None:
    """T11: every team and every edge, with what it does."""
    assert as_text(orders()) == (
        "orders\n"
        "  parse  (4 workers, orders.parse.input -> orders.parse.results)\n"
        "    └─ spray ─> price\n"
        "  price  (1 worker, orders.price.input -> orders.price.results)\n"
        "    ├─ if, after 15m ─> ship\n"
        "    └─ else, after 15m ─> refund\n"
        "  ship  (1 worker, orders.ship.input -> orders.ship.results)\n"
        "  refund  (1 worker, orders.refund.input -> orders.refund.results)\n"
        "    └─ pipe, cycle again ─> price\n"
    )


def test_the_graph_as_svg() -> None:
    """T11: well-formed, a box for each team, a path for each edge, columns from left to right."""
    assert columns_of(orders()) == [["parse"], ["price"], ["ship", "refund"]]
    root = ElementTree.fromstring(as_svg(orders()))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}rect")) == 4
    assert len(root.findall(f"{space}path")) == 4
    assert "else, after 15m" in {text.text for text in root.findall(f"{space}text")}
