"""Changes by filter, by seed: what is changed is what a plain reading of the filter means, also if
the store fails between two pages and the caller goes on from the last answer.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.sim.seeds import run_seeds

from dovetail.errors import Unavailable
from dovetail.timeline import Draft, Message, Reject, Where
from dovetail.timeline.client.fake import FakeDovetail, fake_dovetail
from dovetail.timeline.client.timeline import Timeline
from dovetail.timeline.engine.where import SelectAction
from dovetail.timeline.operating import Operating
from dovetail.timeline.stores.memory import MemoryStore

ACTIONS: tuple[SelectAction, ...] = ("cancel", "move", "replay", "drop")
HOUR_MS = 3_600_000


class Plain:
    """A message or dead letter as the test made it."""

    def __init__(self, rng: random.Random) -> None:
        self.key = rng.choice(["ada/", "bob/"]) + f"{rng.random()}"
        self.headers = rng.choice([{}, {"h": b"1"}, {"h": b"2"}, {"g": b"1"}])
        self.reason = rng.choice(["timeout", "no such customer"])
        self.old = rng.random() < 0.5

    def fits(self, where: Where, *, dead: bool) -> bool:
        value = self.headers.get(where.header)
        return (
            self.key.startswith(where.key_prefix)
            and (not where.header or value is not None)
            and (where.header_value is None or value == where.header_value)
            and (not dead or where.reason in self.reason)
            and (not where.older_ms or self.old)
        )


def _filter(rng: random.Random, *, dead: bool) -> Where:
    header = rng.choice(["", "h", "g"])
    return Where(
        key_prefix=rng.choice(["", "ada/", "b"]),
        header=header,
        header_value=rng.choice([None, b"1"]) if header else None,
        reason=rng.choice(["", "customer"]) if dead else "",
        older_ms=rng.choice([0, HOUR_MS]),
    )


async def _fill(d: FakeDovetail, made: list[Plain], *, dead: bool) -> None:
    """Old ones were due, or died, more than an hour ago."""
    by_key = {each.key: each for each in made}

    @d.consumer("t")
    async def handle(message: Message) -> None:
        raise Reject(by_key[message.key or ""].reason)

    if not dead:
        await d.timeline("t").pause()
    for old in (True, False):
        drafts = [Draft(b"", key=p.key, headers=p.headers) for p in made if p.old is old]
        await d.timeline("t").schedule_many(drafts)
        await d.advance("2h" if old else 1)
    await d.timeline("t").pause()


async def _select(timeline: Timeline, action: SelectAction, where: Where, due_ms: int) -> int:
    """Goes on behind the last answer when the store failed; how many were changed."""
    done = after = 0
    while True:
        try:
            async for page in timeline.select(action, where, due_ms=due_ms, after=after):
                done, after = done + page.done, page.after
            return done
        except Unavailable:
            continue


def _failing(rng: random.Random, change: Callable[..., Any]) -> Any:
    async def fail(self: Operating, *given: Any) -> int:
        if rng.random() < 0.3:
            raise Unavailable("the store is away")
        found: int = await change(self, *given)
        return found

    return fail


async def _run(seed: int, patch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    action = rng.choice(ACTIONS)
    dead = action in ("replay", "drop")
    made, where = [Plain(rng) for _ in range(12)], _filter(rng, dead=dead)
    if where.is_empty:
        where = Where(key_prefix="ada/")
    meant = {each.key for each in made if each.fits(where, dead=dead)}

    async with fake_dovetail(timelines=["t"]) as d:
        await _fill(d, made, dead=dead)
        due_ms = d.now_ms + 5 * HOUR_MS
        patch.setattr("dovetail.timeline.operating.SELECT_MAX", 3)
        patch.setattr(Operating, "_change", _failing(rng, Operating._change))
        timeline = d.timeline("t")
        assert await _select(timeline, action, where, due_ms if action == "move" else 0) == len(
            meant
        ), f"{action} by {where}: other messages than {meant}"
        waiting = {each.key or "": each.due_ms for each in await timeline.peek(100)}
        letters = {each.key or "" for each in await timeline.dead()}

    everything = {each.key for each in made}
    if action == "move":
        assert {key for key, at_ms in waiting.items() if at_ms == due_ms} == meant, "other messages"
        return
    left, changed = (letters, set(waiting)) if dead else (set(waiting), letters)
    assert left == everything - meant, "other messages"
    assert changed == (meant if action == "replay" else set()), "other messages"


def run(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(_run(seed, patch))


def test_what_a_filter_means_is_changed_and_nothing_else() -> None:
    """B23: in pages, each done once though the store fails between them."""
    run_seeds(run, least=8)


def _blind_to(field: str) -> Callable[..., bool]:
    plain, unset = Where.fits, getattr(Where(), field)

    def fits(self: Where, shown: Any, *, now_ms: int) -> bool:
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return plain(Where(**{**said, field: unset}), shown, now_ms=now_ms)

    return fits


@pytest.mark.parametrize("field", ["key_prefix", "header_value", "reason", "older_ms"])
def test_a_filter_that_ignores_what_was_said_is_found(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1, B23: a planted fault for each part of a filter."""
    monkeypatch.setattr(Where, "fits", _blind_to(field))
    with pytest.raises(AssertionError, match="other messages"):
        for seed in range(60):
            run(seed)


async def _one_too_far(self: MemoryStore, *, after: Any, **more: Any) -> Any:
    return await _WALK(self, after=after + 1 if after else after, **more)


_WALK = MemoryStore.walk


def test_a_message_that_is_skipped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, B23: the next page begins one too far; a store that fails counts as done."""
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "walk", _one_too_far)
        with pytest.raises(AssertionError, match="other messages"):
            for seed in range(60):
                run(seed)

    failing = _failing
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "_failing", lambda rng, change: _swallow(failing(rng, change)))
        with pytest.raises(AssertionError, match="other messages"):
            for seed in range(60):
                run(seed)


def _swallow(change: Callable[..., Any]) -> Any:
    """A failure counts as nothing to change."""

    async def swallow(self: Operating, *given: Any) -> int:
        try:
            found: int = await change(self, *given)
        except Unavailable:
            return 0
        return found

    return swallow
