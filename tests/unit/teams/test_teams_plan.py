"""The plan of a batch: every job ends once, and pays only for itself."""

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dovetail.teams.outcome import Failure, FailureKind
from dovetail.teams.team import Policy
from dovetail.teams.workers.plan import Chunk, GivenUp, JobPlan

POLICY = Policy(
    timeout_ms=1000,
    attempts_max=3,
    backoff_ms=100,
    backoff_ms_max=400,
    concurrency=1,
    batch_max=10,
    result_bytes_max=100,
)
BOOM = Failure(FailureKind.EXCEPTION, "boom")
POISON, SHAKY, REJECTED = 0, 1, 2


def plan_of(count: int) -> JobPlan:
    return planned([0] * count, POLICY)


def planned(attempts: list[int], policy: Policy) -> JobPlan:
    plan = JobPlan(policy, chance=lambda: 0.5)
    for number, before in enumerate(attempts):
        plan.add(number, attempts=before)
    return plan


@given(
    kinds=st.lists(st.sampled_from([POISON, SHAKY, REJECTED, 3, 3, 3]), max_size=30),
    chunk_max=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_each_job_ends_once_and_pays_for_itself(
    kinds: list[int], chunk_max: int, seed: int
) -> None:
    """T6: workers that die with several jobs under way cost no innocent an attempt."""
    rng = random.Random(seed)
    plan, now_ms = plan_of(len(kinds)), 0.0
    done: set[int] = set()
    while not plan.finished:
        chunk = plan.take(chunk_max, now_ms=now_ms)
        if chunk is None:
            assert plan.rest_until_ms is not None
            assert plan.rest_until_ms > now_ms
            now_ms = plan.rest_until_ms
            continue
        poison = [n for n in chunk.numbers if kinds[n] == POISON]
        if poison:
            begun = set(poison) | {n for n in chunk.numbers if rng.random() < 0.5}
            plan.returned(set(chunk.numbers) - begun)
            if len(begun) == 1:
                plan.failed(poison[0], BOOM, now_ms=now_ms)
            else:
                plan.suspected(begun)
            continue
        for number in chunk.numbers:
            if kinds[number] == REJECTED:
                plan.failed(number, Failure(FailureKind.REJECTED, "no"), now_ms=now_ms)
            elif kinds[number] == SHAKY and rng.random() < 0.3:
                plan.failed(number, BOOM, now_ms=now_ms)
            else:
                assert number not in done
                plan.done([number])
                done.add(number)
    assert done.isdisjoint(plan.given_up)
    assert done | set(plan.given_up) == set(range(len(kinds)))
    for number, kind in enumerate(kinds):
        if kind == 3:
            assert number in done
        if kind == POISON:
            assert plan.given_up[number].attempts == 3
        if kind == REJECTED:
            assert plan.given_up[number].attempts == 1


def test_a_failed_job_rests_and_the_others_go_on() -> None:
    """T6: a backoff holds up nobody else."""
    plan = plan_of(3)
    assert plan.take(1, now_ms=0) == Chunk((0,))
    plan.failed(0, BOOM, now_ms=0)
    assert plan.take(5, now_ms=0) == Chunk((1, 2))
    plan.done([1])
    plan.done([2])
    assert plan.take(5, now_ms=74) is None
    assert plan.rest_until_ms == 75
    assert plan.take(5, now_ms=75) == Chunk((0,))
    plan.done([0])
    assert plan.finished


def test_a_long_backoff_does_not_hold_up_the_batch() -> None:
    """T12: a retry that is minutes away leaves the batch, with its attempts counted."""
    patient = replace(POLICY, backoff_ms=600_000, backoff_ms_max=3_600_000)
    assert patient.may_postpone
    assert not POLICY.may_postpone
    plan = planned([0, 1, 2, 0], patient)
    assert plan.take(4, now_ms=0) == Chunk((0, 1, 2, 3))
    for number in (0, 1, 2):
        plan.failed(number, BOOM, now_ms=0)
    plan.done([3])
    assert plan.finished
    assert plan.given_up == {
        0: GivenUp(BOOM, 1, rest_ms=450_000),
        1: GivenUp(BOOM, 2, rest_ms=900_000),
        2: GivenUp(BOOM, 3),
    }


def test_attempts_before_this_batch_count() -> None:
    """T12: a job that comes back from a timeline has fewer attempts left."""
    plan = planned([2], POLICY)
    plan.take(1, now_ms=0)
    plan.failed(0, BOOM, now_ms=0)
    assert plan.given_up[0].attempts == 3
