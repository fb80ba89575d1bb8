"""Ids that were seen before, judged against the plain reading of the definition."""

from hypothesis import given
from hypothesis import strategies as st

from dovetail.teams.tasks.seen import Seen

TTL = 100
#: (identity, time) in the order of the log; times mostly grow, as they do on a broker.
logs = st.lists(st.tuples(st.integers(0, 8), st.integers(-30, 60)), min_size=1, max_size=120).map(
    lambda steps: [
        (b"%d" % who, 1_000 + sum(s[1] for s in steps[: n + 1])) for n, (who, _) in enumerate(steps)
    ]
)


def repeats_by_definition(log: list[tuple[bytes, int]], at: int) -> bool:
    who, at_ms = log[at]
    return any(other == who and ms > at_ms - TTL for other, ms in log[:at])


def rebuilt(log: list[tuple[bytes, int]], at: int, window_ms: int) -> Seen:
    """As the reader of a topic does it: from the first record not older than the window."""
    first = next((n for n, (_, ms) in enumerate(log) if ms >= window_ms), at)
    seen = Seen(remember_ms=TTL, covers_ms=window_ms, forgets=False)
    for who, ms in log[first:at]:
        seen.repeats([who], [ms])
    return seen


@given(logs)
def test_a_cache_and_a_rebuilt_one_agree_with_the_definition(log: list[tuple[bytes, int]]) -> None:
    """T4: seen before is a function of the log, with the cache, without it, or half-way."""
    kept = Seen(remember_ms=TTL, covers_ms=-(10**6))
    for at, (who, at_ms) in enumerate(log):
        expected = repeats_by_definition(log, at)
        fresh = rebuilt(log, at, at_ms - TTL)
        assert not fresh.lacks(at_ms)
        assert fresh.repeats([who], [at_ms])[0] is expected
        if not kept.lacks(at_ms):
            assert kept.repeats([who], [at_ms])[0] is expected
        else:
            kept.repeats([who], [at_ms])


def test_memory_stays_flat_over_many_times_to_live() -> None:
    """T4: ten times the time to live need no more room than two."""
    seen = Seen(remember_ms=1_000, covers_ms=0)
    sizes = []
    for ms in range(0, 10_000, 1):
        for item in range(3):
            assert not seen.repeats([b"%d-%d" % (ms, item)], [ms])[0]
        sizes.append(len(seen))
    assert max(sizes) <= 2 * 3 * 1_001
    assert max(sizes[8_000:]) <= max(sizes[:2_100])


def test_an_id_is_forgotten_after_the_time_to_live() -> None:
    """T4: the memory of an id ends, and begins anew when it is seen."""
    seen = Seen(remember_ms=TTL, covers_ms=0)
    assert not seen.repeats([b"a"], [1_000])[0]
    assert seen.repeats([b"a"], [1_099])[0]
    assert seen.repeats([b"a"], [1_198])[0]
    assert not seen.repeats([b"a"], [1_298])[0]


def test_a_very_late_record_is_not_guessed_at() -> None:
    """T4: where the window was dropped, the log is asked."""
    seen = Seen(remember_ms=TTL, covers_ms=0)
    for ms in (1_000, 1_100, 1_200, 1_300, 1_400):
        seen.repeats([b"%d" % ms], [ms])
    assert not seen.lacks(1_400)
    assert seen.lacks(1_150)
