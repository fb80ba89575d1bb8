"""The chain of a team under attempts that overlap, sleep and die (`tests/sim/seeds.py`)."""

from tests.sim.seeds import run_seeds
from tests.sim.teams.chain_world import World

STEPS = 250


def run_seed(seed: int) -> int:
    world = World(seed, expiry=seed % 3 == 0)
    world.run(STEPS)
    assert not world.loud, "nothing was removed, so nothing is missing"
    return len(world.broker.logs)


def test_each_job_has_one_outcome_and_what_follows_from_it() -> None:
    """T5, T2, T17: two to four attempts at once, crashes between any two steps, late, lost and
    doubled writes and snapshots, a topic that grows, jobs that are cancelled, and producers that
    brokers forget."""
    grown = run_seeds(run_seed, least=20)
    assert min(grown) < max(grown), "some worlds have seen a topic grow"
