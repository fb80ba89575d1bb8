"""Node selection by a named strategy, or by a user's own."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import InvalidSetting, Unavailable
from dovetail.storage.selection import Candidate, Selection, selection_named

CANDIDATES = st.lists(
    st.builds(Candidate, st.integers(0, 50), st.integers(0, 3)),
    max_size=8,
    unique_by=lambda candidate: candidate.node_id,
)
NAMES = ["least-loaded", "round-robin", "random"]


def of(*loads: int) -> list[Candidate]:
    return [Candidate(node, load) for node, load in enumerate(loads, start=1)]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(candidates=CANDIDATES, turn=st.integers(0, 1 << 32), rng=st.randoms())
def test_a_strategy_orders_its_candidates_the_same_everywhere(
    name: str,
    candidates: list[Candidate],
    turn: int,
    rng: "st.randoms",  # type: ignore[valid-type]
) -> None:
    """L12: all of them, each once; by the turn, and not by the order in which they are known."""
    select = selection_named(name)
    order = list(select(candidates, turn))
    assert sorted(order) == sorted(candidate.node_id for candidate in candidates)
    shuffled = rng.sample(candidates, len(candidates))  # type: ignore[attr-defined]
    assert list(select(shuffled, turn)) == order


@settings(deadline=None)
@given(CANDIDATES, st.integers(0, 1 << 32))
def test_least_loaded_puts_the_least_first(candidates: list[Candidate], turn: int) -> None:
    """L12: `least-loaded`, the default."""
    load = {candidate.node_id: candidate.load for candidate in candidates}
    order = selection_named("least-loaded")(candidates, turn)
    assert [load[node] for node in order] == sorted(load.values())


def test_equals_take_turns() -> None:
    """L12: of nodes with one load, each is first about as often."""
    select = selection_named("least-loaded")
    firsts = Counter(select(of(7, 7, 7, 9), turn)[0] for turn in range(3000))
    assert set(firsts) == {1, 2, 3}
    assert min(firsts.values()) > 800


def test_round_robin_goes_round() -> None:
    """L12: `round-robin`, whatever the loads."""
    select = selection_named("round-robin")
    assert [select(of(9, 0, 5), turn)[0] for turn in range(6)] == [1, 2, 3, 1, 2, 3]
    assert select([], 5) == []


def test_random_does_not_look_at_loads() -> None:
    """L12: `random`."""
    select = selection_named("random")
    firsts = Counter(select(of(0, 1_000_000), turn)[0] for turn in range(1000))
    assert min(firsts[1], firsts[2]) > 400


@pytest.fixture
def module() -> Iterator[ModuleType]:
    """A module of a user's, as if it lay on the path."""
    made = sys.modules["users_own_strategies"] = ModuleType("users_own_strategies")
    yield made
    del sys.modules["users_own_strategies"]


def test_a_users_own_strategy_is_asked(module: ModuleType) -> None:
    """L12: `module:callable`, with the candidates, their loads and the turn."""
    asked: list[tuple[list[Candidate], int]] = []

    def heaviest(candidates: Sequence[Candidate], turn: int) -> tuple[int, ...]:
        asked.append((list(candidates), turn))
        return tuple(c.node_id for c in sorted(candidates, key=lambda c: -c.load))

    module.heaviest = heaviest  # type: ignore[attr-defined]
    select = selection_named("users_own_strategies:heaviest")
    assert list(select(of(1, 3, 2), 8)) == [2, 3, 1]
    assert asked == [(of(1, 3, 2), 8)]


def _too_few(candidates: Sequence[Candidate], turn: int) -> list[int]:
    return [c.node_id for c in candidates][1:]


def _twice(candidates: Sequence[Candidate], turn: int) -> list[int]:
    return [candidates[0].node_id for _ in candidates]


def _strangers(candidates: Sequence[Candidate], turn: int) -> list[int]:
    return [99 for _ in candidates]


def _none(candidates: Sequence[Candidate], turn: int) -> None:
    return None


def _raises(candidates: Sequence[Candidate], turn: int) -> list[int]:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize("bad", [_too_few, _twice, _strangers, _none, _raises])
def test_an_answer_that_is_no_order_is_refused(bad: Selection, module: ModuleType) -> None:
    """L12: a user's mistake is an error that names the strategy, and may pass."""
    module.bad = bad  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="users_own_strategies:bad") as caught:
        selection_named("users_own_strategies:bad")(of(1, 2, 3), 0)
    assert caught.value.retriable


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "least-loaded, round-robin, random"),
        ("fastest", "least-loaded, round-robin, random"),
        ("Least-Loaded", "least-loaded, round-robin, random"),
        (":select", "module:callable"),
        ("json:", "module:callable"),
        ("no_such_module_here:select", "no_such_module_here"),
        ("json:no_such_name", "no_such_name"),
        ("json:__doc__", "is not callable"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, says: str) -> None:
    """L12: at the start, with what is known."""
    with pytest.raises(InvalidSetting, match=says):
        selection_named(name)
