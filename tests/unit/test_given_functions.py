"""R5, R6: a function that runs nothing when it is called loses nothing: it is refused."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stream.memory_cluster import MemoryCluster

from dovetail.errors import InvalidInput
from dovetail.outbox import Producer
from dovetail.stream import BlockingStream
from dovetail.teams.team import Team
from dovetail.timeline.client.fake import fake_dovetail
from dovetail.timeline.config import config_of


def generator(*_: Any) -> Any:
    yield


async def async_generator(*_: Any) -> Any:
    yield


async def coroutine(*_: Any) -> None:
    return None


def _named(odd: Any) -> str:
    return getattr(odd, "__name__", type(odd).__name__)


class Called:
    def __call__(self, *_: Any) -> Any:
        yield


#: Whatever is refused, and why.
REFUSED = r"is a generator|must be a function"
ODD: list[Any] = [generator, async_generator, partial(generator), Called(), None, "handle"]


@pytest.mark.parametrize("odd", ODD, ids=_named)
async def test_a_handler_that_runs_nothing_is_refused_where_it_is_given(odd: Any) -> None:
    """R6: a message counted as handled when a generator was made, and was lost without a word."""
    async with fake_dovetail(timelines=["t"]) as d:
        with pytest.raises(InvalidInput, match=REFUSED):
            d.consumer("t")(odd)
        with pytest.raises(InvalidInput, match="not the name of a timeline"):
            d.consumer(odd if callable(odd) else coroutine)  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [one for one in ODD if one is not None], ids=_named)
async def test_a_stream_refuses_it_too(odd: Any, tmp_path: Path) -> None:
    """R6: the position moved on behind an event that nothing had handled."""
    async with MemoryCluster(tmp_path) as cluster:
        with pytest.raises(InvalidInput, match=REFUSED):
            await cluster.start_stream("a", odd)
        with pytest.raises(InvalidInput, match=REFUSED):
            BlockingStream(lambda _: cluster.streams["a"], odd)


@pytest.mark.parametrize("odd", [one for one in ODD if one is not None], ids=_named)
def test_a_team_refuses_it_too(odd: Any) -> None:
    """T7: as its function, a condition or a transform; a generator is true, so that a route of one
    would have led to the same team always."""
    team, other, third = Team("a", print), Team("b", print), Team("c", print)
    for give in _places(team, other, third):
        with pytest.raises(InvalidInput, match=REFUSED):
            give(odd)


def test_what_is_not_awaited_must_not_be_async() -> None:
    """T7: a coroutine is true, so that the condition would always hold."""
    team, other, third = Team("a", coroutine), Team("b", print), Team("c", print)
    for give in _places(team, other, third)[1:]:
        with pytest.raises(InvalidInput, match="must be a plain function"):
            give(coroutine)


@pytest.mark.parametrize("odd", [generator, async_generator, coroutine, "report"], ids=_named)
def test_a_producer_refuses_it_too(odd: Any) -> None:
    """O1: nobody awaited an async `on_error`, and nobody heard of what was not delivered."""
    for given in ({"on_error": odd}, {"encode": odd}):
        with pytest.raises(InvalidInput, match="of a producer"):
            Producer("t", backend="test", **given)


def _places(team: Team, other: Team, third: Team) -> list[Callable[[Any], object]]:
    return [
        lambda given: Team("d", given),
        lambda given: team.route_to(given, other, third),
        lambda given: team.pipe_to(other, transform=given),
        lambda given: Team("d", print, setup=given),
        lambda given: Team("d", print, teardown=given),
    ]


@pytest.mark.parametrize(
    "plain", [lambda m: (m, generator())[1], lambda m: (m, async_generator())[1]]
)
async def test_a_handler_that_gives_a_generator_has_failed(plain: Any) -> None:
    """R6: only the call shows it; the message comes again, and is a dead letter that says why."""
    async with fake_dovetail() as d:
        await d.timeline("t").create(config_of({"attempts_max": 2}))
        d.consumer("t")(plain)
        await d.timeline("t").schedule(b"x")
        await d.advance("1m")
        (dead,) = await d.timeline("t").dead()
        assert "generator, which nobody runs" in dead.reason


@pytest.mark.parametrize("plain", [generator, async_generator, coroutine])
async def test_an_event_whose_handler_gives_something_to_run_has_failed(
    plain: Any, tmp_path: Path
) -> None:
    """R6: a plain function that gives a coroutine handled nothing, and nobody heard of it."""
    async with MemoryCluster(tmp_path) as cluster:
        stream = await cluster.start_stream("a", lambda *_: plain())
        await cluster.source.send(b"one")
        await cluster.until(lambda: stream.metrics.failed._value.get() == 1)


@pytest.mark.parametrize("rounds", ["²", "٣", "9" * 5000, "-1", ""])
def test_an_id_that_ends_like_rounds_begins_a_cycle(rounds: str) -> None:
    """R6, T7: digits that are no number of ours failed every job with such an id."""
    team, other = Team("a", print), Team("b", print)
    team.pipe_to(other, cycle="again")
    (forward,) = team.connectors[0].forward(f"order#{rounds}", 1)  # type: ignore[arg-type]
    assert forward.id == f"order#{rounds}#1"
    (forward,) = team.connectors[0].forward("order#7", 1)  # type: ignore[arg-type]
    assert forward.id == "order#8"
