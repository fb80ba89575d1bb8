"""Whether a submitted job repeats an earlier one: the same answer as a team's own."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as some

from dovetail.teams.front.repetition import first_accepted
from dovetail.teams.tasks.seen import Seen

REMEMBER_MS = 10


@given(times=some.lists(some.integers(0, 60), min_size=1, max_size=40), late=some.booleans())
def test_the_front_end_and_the_team_agree(times: list[int], late: bool) -> None:
    """T4, T8: for every record of one id, in the order of time and out of it."""
    if not late:
        times = sorted(times)
    seen = Seen(remember_ms=REMEMBER_MS, covers_ms=-REMEMBER_MS, forgets=False)
    repeated = seen.repeats([b"id"] * len(times), times)

    for offset in range(len(times)):
        found = accepted(times, offset)
        assert (found is not None) == repeated[offset]
        # Whatever it repeats was accepted before it, and its outcome is not older than that.
        if found is not None and not late:
            firsts = [at for at, again in zip(times[:offset], repeated, strict=False) if not again]
            assert found == max(firsts)


def accepted(times: list[int], offset: int) -> int | None:
    def look(since_ms: int, below: int) -> Iterator[tuple[int, int]]:
        yield from ((n, at) for n, at in enumerate(times[:below]) if at >= since_ms)

    return first_accepted(look, offset=offset, at_ms=times[offset], remember_ms=REMEMBER_MS)
