"""One grammar for a position in a partition."""

import pytest

from dovetail.admin.positions import NUMBER_MAX, Position, parse_position
from dovetail.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position("beginning")),
        ("Earliest", Position("beginning")),
        ("end", Position("end")),
        ("latest", Position("end")),
        ("1200", Position("offset", 1200)),
        ("offset:12", Position("offset", 12)),
        (f"offset:{NUMBER_MAX}", Position("offset", NUMBER_MAX)),
        ("time:1700000000000", Position("time", 1_700_000_000_000)),
        ("time:2023-11-14T22:13:20Z", Position("time", 1_700_000_000_000)),
        ("1970-01-01T00:00:01Z", Position("time", 1000)),
        ("1970-01-01T02:00:01.5+02:00", Position("time", 1500)),
    ],
)
def test_positions(text: str, position: Position) -> None:
    """U4, U5: a position is a word, an offset or a time; everywhere the same."""
    assert parse_position(text) == position


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1.5",
        "tomorrow",
        "0001-01-01T00:00+14:00x",
        "offset:",
        "offset:-1",
        "offset:1e9",
        f"offset:{NUMBER_MAX + 1}",
        "time:soon",
        "²",
    ],
)
def test_what_is_not_a_position_is_refused(text: str) -> None:
    """U7: the error shows how to write each kind."""
    with pytest.raises(InvalidInput, match=r"beginning, end, an offset .*offset:1200.* or a time"):
        parse_position(text)
