"""The relay under kills, pauses, take-overs, lost answers and refusals (`tests/sim/seeds.py`)."""

import pytest
from tests.sim.outbox.drain_world import REFUSED, UNREADABLE, World
from tests.sim.seeds import run_seeds

STEPS = 150


def _check_order(world: World) -> None:
    """Per key, first occurrences come in the order of the commits."""
    place = {row.message_id: row.id for row in world.published}
    seen: set[str] = set()
    for log in world.broker.logs:
        last: dict[bytes, int] = {}
        for record in log:
            if record.message_id in seen or record.key is None:
                continue
            seen.add(record.message_id)
            assert last.get(record.key, 0) < place[record.message_id], record
            last[record.key] = place[record.message_id]


def _check_exactly_once(world: World) -> None:
    stored = world.broker.stored()
    assert len(stored) == len(set(stored)), "stored twice"
    bad = {row.id for row in world.published if row.payload == REFUSED or row.headers == UNREADABLE}
    dead = world.database.dead
    assert len(dead) == len(set(dead))
    if world.compaction:
        assert set(dead) <= bad
        _check_last_of_each_key(world, set(stored), set(dead))
        return
    assert set(dead) == bad
    assert set(stored) == {row.message_id for row in world.published if row.id not in bad}


def _check_last_of_each_key(world: World, stored: set[str], dead: set[int]) -> None:
    last = {row.key: row for row in world.published if row.key is not None}
    for row in [*last.values(), *(row for row in world.published if row.key is None)]:
        assert row.message_id in stored or row.id in dead, row


def test_every_message_is_stored_once_in_order() -> None:
    """O4, O5, O6, O7: killed, paused and woken relays lose, double and reorder nothing."""

    def run(seed: int) -> None:
        world = World(seed)
        world.run(STEPS)
        _check_exactly_once(world)
        _check_order(world)

    run_seeds(run, least=100)


def test_a_database_that_forgets_its_last_transactions_loses_no_others() -> None:
    """O7: after a failover to a lagging replica new messages are never taken for duplicates."""

    def run(seed: int) -> None:
        world = World(seed, failover=True)
        world.compaction = False
        world.run(STEPS)
        arrived = set(world.broker.stored()) | world.lost_by_failover
        bad = {f"m{row_id}" for row_id in world.database.dead}
        for row in world.published:
            refused = row.payload == REFUSED or row.headers == UNREADABLE
            assert row.message_id in arrived | bad or refused, row

    run_seeds(run, least=100)


@pytest.mark.parametrize("plant", ["term not checked", "sent behind a failure"])
def test_a_planted_bug_is_found(plant: str) -> None:
    """R1: the simulation can fail."""
    for seed in range(500):
        world = World(seed, plant=plant)
        try:
            world.run(STEPS)
            _check_exactly_once(world)
            _check_order(world)
        except (AssertionError, KeyError, IndexError):
            return
    raise AssertionError(f"{plant} was not noticed in 500 seeds")


def test_a_producer_that_outlives_a_failover_is_found() -> None:
    """R1: without a new producer, new messages get numbers that the broker knows."""
    for seed in range(500):
        world = World(seed, failover=True, plant="identity kept after failover")
        world.compaction = False
        try:
            world.run(STEPS)
        except AssertionError:
            return
        arrived = set(world.broker.stored()) | world.lost_by_failover
        dead = {f"m{row_id}" for row_id in world.database.dead}
        for row in world.published:
            refused = row.payload == REFUSED or row.headers == UNREADABLE
            if not refused and row.message_id not in arrived | dead:
                return
    raise AssertionError("it was not noticed in 500 seeds")
