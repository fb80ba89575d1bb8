"""The rule for lag, without a cluster; `console_api/test_console_lag.py` has it from every side."""

import pytest

from dovetail.admin.groups import lag_of, lag_sum


@pytest.mark.parametrize(
    ("committed", "end", "lag"),
    [(3, 10, 7), (10, 10, 0), (12, 10, 0), (None, 10, None), (3, None, None), (0, 0, 0)],
)
def test_the_lag_of_a_partition(committed: int | None, end: int | None, lag: int | None) -> None:
    """F79: log end minus position, never below zero; unknown without a position or an end."""
    assert lag_of(committed=committed, end=end) == lag


@pytest.mark.parametrize(
    ("positions", "lag"),
    [
        ([(3, 7), (5, 5)], 12),
        ([(3, 7), (None, None)], 7),
        ([(3, 7), (5, None)], None),
        ([(None, None)], None),
        ([], None),
    ],
)
def test_the_lag_of_a_group(
    positions: list[tuple[int | None, int | None]], lag: int | None
) -> None:
    """F79: partitions without a position are not in the sum; a silent one makes it unknown."""
    assert lag_sum(positions) == lag
