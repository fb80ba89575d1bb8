"""`dovetail pipeline show`, and what is refused before Spark is started."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.app import app

ORDERS = "examples.orders.shop:orders"


def test_show_draws_the_graph(tmp_path: Path) -> None:
    """T11, U4: as text, as JSON, as a file with SVG."""
    done = CliRunner().invoke(app, ["pipeline", "show", ORDERS])
    assert done.exit_code == 0
    assert "├─ if ─> ship" in done.stdout
    found = json.loads(CliRunner().invoke(app, ["pipeline", "show", ORDERS, "--json"]).stdout)
    assert found["edges"][0] == {"from": "parse", "to": "price", "how": "pipe"}
    assert [team["workers"] for team in found["teams"]] == [2, 1, 1, 1]
    picture = tmp_path / "orders.svg"
    assert (
        CliRunner().invoke(app, ["pipeline", "show", ORDERS, "--svg", str(picture)]).exit_code == 0
    )
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("orders", 2, "write module:name"),
        ("no_such_module:orders", 3, "cannot be imported"),
        ("examples.orders.shop:order", 3, "it has orders"),
        ("examples.bot:orders", 3, "it has no pipeline at all"),
    ],
)
def test_a_pipeline_that_is_not_there_is_an_error(where: str, code: int, said: str) -> None:
    """U7: with what was looked for, and what is there."""
    done = CliRunner().invoke(app, ["pipeline", "show", where])
    assert done.exit_code == code
    assert said in done.stderr


def test_contradicting_options_are_refused() -> None:
    """U4, U7: before anything is started."""
    done = CliRunner().invoke(app, ["pipeline", "run", ORDERS, "--standby", "--once"])
    assert done.exit_code == 2
    assert "give one" in done.stderr
