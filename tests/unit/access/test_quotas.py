"""Quotas: which one holds, what a client has to wait, and that they are followed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.access.quotas import (
    BUSY,
    CLIENT,
    FETCHED,
    PRODUCED,
    USER,
    WAIT_MS_MAX,
    Entity,
    Meter,
    Quotas,
)
from dovetail.clock import SystemClock
from dovetail.coordination import EmbeddedCoordinator
from dovetail.errors import InvalidInput


def of(**named: str | None) -> Entity:
    return frozenset((kind.replace("_", "-"), name) for kind, name in named.items())


#: From the one that is asked first to the one that is asked last, as Kafka's documents have it.
ORDER = [
    of(user="ann", client_id="c"),
    of(user="ann", client_id=None),
    of(user="ann"),
    of(user=None, client_id="c"),
    of(user=None, client_id=None),
    of(user=None),
    of(client_id="c"),
    of(client_id=None),
]


async def quotas_at(folder: Path, now: list[float]) -> tuple[EmbeddedCoordinator, Quotas]:
    service = await EmbeddedCoordinator.open(folder / "c.db", clock=SystemClock())
    quotas = Quotas(service, lambda: now[0])
    await quotas.start()
    return service, quotas


async def test_the_most_particular_quota_holds(tmp_path: Path) -> None:
    """K13: user and client, then user, then client; each before the default of its kind."""
    now = [0.0]
    service, quotas = await quotas_at(tmp_path, now)
    async with service:
        assert not quotas.active
        for rate, entity in enumerate(reversed(ORDER), start=1):
            await quotas.change(entity, {PRODUCED: float(rate)})
            found = quotas._find(PRODUCED, "ann", "c")
            assert found is not None and found[1] == rate
        for entity in ORDER:
            await quotas.change(entity, {PRODUCED: None})
        assert quotas._find(PRODUCED, "ann", "c") is None
        assert not quotas.active
        await quotas.stop()


async def test_who_shares_a_quota(tmp_path: Path) -> None:
    """K13: all clients of a user share the user's; every client id has the default for itself."""
    now = [0.0]
    service, quotas = await quotas_at(tmp_path, now)
    async with service:
        await quotas.change(of(user="ann"), {PRODUCED: 100.0})
        await quotas.change(of(client_id=None), {FETCHED: 100.0})
        quotas.note(PRODUCED, "ann", "one", 300)
        assert quotas.wait_ms("ann", "two") == 2000
        quotas.note(FETCHED, "bob", "one", 300)
        assert quotas.wait_ms("bob", "one") == 2000
        assert quotas.wait_ms("bob", "two") == 0
        now[0] = 2000
        assert quotas.wait_ms("ann", "two") == 0
        await quotas.stop()


async def test_quotas_survive_and_a_percentage_is_of_one_processor(tmp_path: Path) -> None:
    """K13: 10 percent are 100 ms of every second; a restart keeps the quotas."""
    now = [0.0]
    service, quotas = await quotas_at(tmp_path, now)
    async with service:
        await quotas.change(of(user=None, client_id="ü\0"), {BUSY: 10.0})
        await quotas.stop()
    service, quotas = await quotas_at(tmp_path, now)
    async with service:
        assert quotas.active
        quotas.note(BUSY, "any", "ü\0", 150.0)
        assert quotas.wait_ms("any", "ü\0") == 500
        await quotas.stop()


@pytest.mark.parametrize(
    ("entity", "changes"),
    [
        (frozenset(), {PRODUCED: 1.0}),
        (of(user=""), {PRODUCED: 1.0}),
        (of(user="x" * 1001), {PRODUCED: 1.0}),
        (of(ip="127.0.0.1"), {PRODUCED: 1.0}),
        (of(user="a"), {"connection_creation_rate": 1.0}),
        (of(user="a"), {PRODUCED: 0.0}),
        (of(user="a"), {PRODUCED: -1.0}),
        (of(user="a"), {PRODUCED: 1.5}),
        (of(user="a"), {BUSY: float("nan")}),
        (of(user="a"), {BUSY: float("inf")}),
    ],
)
async def test_what_is_no_quota_is_refused(
    tmp_path: Path, entity: Entity, changes: dict[str, float]
) -> None:
    """K13: with nothing changed, also when one of two is wrong."""
    service, quotas = await quotas_at(tmp_path, [0.0])
    async with service:
        with pytest.raises(InvalidInput):
            await quotas.change(entity, {FETCHED: 7.0, **changes})
        assert not quotas.all()
        await quotas.stop()


@given(
    st.floats(1, 1e6),
    st.lists(
        st.tuples(st.floats(0, WAIT_MS_MAX / 1000), st.floats(0, 5000)), min_size=1, max_size=30
    ),
)
def test_who_waits_as_told_stays_within_its_quota(
    rate: float, steps: list[tuple[float, float]]
) -> None:
    """K13: over any time a client gets its rate, a burst of a second, and its last request. It is
    held once for each request, as a connection is; a request costs at most ten seconds' worth."""
    meter, now_ms, used = Meter(), 0.0, 0.0
    for seconds, pause_ms in steps:
        allowed = rate * (now_ms / 1000 + 1)
        assert used <= allowed * (1 + 1e-9) + 1e-3
        meter.note(seconds * rate, rate, now_ms)
        used += seconds * rate
        now_ms += meter.wait_ms(rate, now_ms) + pause_ms


@given(st.floats(1, 1e6), st.lists(st.floats(12, 1e6), min_size=1, max_size=30))
def test_who_asks_for_more_than_the_longest_wait_waits_that_long(
    rate: float, requests: list[float]
) -> None:
    """K13, R8: one such request in ten seconds is begun, though it costs more; no client would wait
    for the answer to a request that is held for longer."""
    meter, now_ms = Meter(), 0.0
    for seconds in requests:
        meter.note(seconds * rate, rate, now_ms)
        assert meter.wait_ms(rate, now_ms) == WAIT_MS_MAX
        now_ms += WAIT_MS_MAX


async def test_meters_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3: a client id is free text; strangers cannot fill the memory with them."""
    monkeypatch.setattr("dovetail.access.quotas._METERS_MAX", 5)
    service, quotas = await quotas_at(tmp_path, [0.0])
    async with service:
        await quotas.change(of(client_id=None), {PRODUCED: 1.0})
        for number in range(20):
            quotas.note(PRODUCED, USER, f"{CLIENT}-{number}", 10)
        assert len(quotas._meters) == 5
        await quotas.stop()


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-9, 1e300, 1.7e308])
def test_every_rate_that_is_taken_gives_a_time(rate: float) -> None:
    """K13: the smallest makes a client wait as long as any other; it takes nobody's answer away."""
    meter = Meter()
    meter.note(1.0, rate, now_ms=0.0)
    assert 0 <= meter.wait_ms(rate, now_ms=1.0) <= WAIT_MS_MAX
