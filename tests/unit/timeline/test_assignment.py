"""Dealers: every bucket assigned, evenly, the same everywhere, and little moved."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import InvalidInput
from dovetail.timeline.engine.assignment import (
    Assignment,
    BucketSet,
    Member,
    assign,
    bucket_set,
    capacity,
    loads,
    part_of,
    span,
)
from dovetail.timeline.engine.window import Attendee, Windows

members = st.lists(
    st.builds(Member, st.text(min_size=1, max_size=6), st.sampled_from(["", "a", "b", "c"])),
    min_size=1,
    max_size=40,
    unique_by=lambda member: member.id,
)
buckets = st.integers(1, 300)


def owners(assignment: Assignment) -> list[str]:
    return [assignment.primary(bucket).id for bucket in range(assignment.buckets)]


def dumb_ranges(count: int, names: list[str]) -> list[str]:
    """Deals one bucket after another to whoever should have more by now."""
    found = []
    for at, name in enumerate(sorted(names)):
        size = (at + 1) * count // len(names) - len(found)
        found += [name] * size
    return found


@given(members, buckets)
def test_ranges_are_even_and_contiguous(them: list[Member], count: int) -> None:
    """B9: sizes differ by at most one, nobody idle while there are buckets, all assigned."""
    assignment = assign("ranges", them, buckets=count)
    served = {member.id for member in assignment.members}
    sizes = loads(assignment)
    assert sum(sizes.values()) == count
    assert max(sizes.values()) - min(sizes.values()) <= 1
    assert len(served) == min(len(them), count)
    assert all(sizes.values())
    assert owners(assignment) == dumb_ranges(count, sorted(served))


@given(members, buckets, st.sampled_from(["ranges", "racks"]))
def test_a_share_holds_what_the_deal_says(them: list[Member], count: int, dealer: str) -> None:
    """B8, B9: one bucket goes to one consumer; its share has exactly its buckets."""
    assignment = assign(dealer, them, buckets=count)  # type: ignore[arg-type]
    for member in assignment.members:
        share = assignment.share(member.id)
        assert share is not None
        mine = [bucket for bucket in range(count) if bucket in share.primary]
        assert mine == [b for b, name in enumerate(owners(assignment)) if name == member.id]
        assert len(share.primary) == len(mine)
    assert assignment.share("somebody who is not there at all") is None


@given(members, buckets, st.randoms())
def test_a_deal_depends_on_nothing_but_the_set(
    them: list[Member], count: int, rng: random.Random
) -> None:
    """B9: every broker computes the same, in whatever order it learned of the consumers."""
    shuffled = list(them)
    rng.shuffle(shuffled)
    for dealer in ("ranges", "racks"):
        first = assign(dealer, them, buckets=count)  # type: ignore[arg-type]
        assert first == assign(dealer, shuffled, buckets=count)  # type: ignore[arg-type]


@given(members, buckets)
def test_racks_bound_the_load_and_leave_nobody_idle(them: list[Member], count: int) -> None:
    """B10: racks of different sizes work."""
    assignment = assign("racks", them, buckets=count)
    sizes = loads(assignment)
    assert sum(sizes.values()) == count
    assert max(sizes.values()) <= capacity(count, len(assignment.members))
    assert all(sizes.values())


@given(members, buckets)
def test_every_rack_has_a_backup_of_every_bucket(them: list[Member], count: int) -> None:
    """B10: a whole rack can go, and what it was to serve has somebody in each other rack."""
    assignment = assign("racks", them, buckets=count)
    racks = {member.rack for member in assignment.members}
    for bucket in range(count):
        backups = assignment.backups(bucket)
        assert {member.rack for member in backups} == racks
        assert len(backups) == len(racks)
        for member in backups:
            share = assignment.share(member.id)
            assert share is not None
            assert bucket in share.backup


def test_who_comes_or_goes_moves_little_more_than_its_own() -> None:
    """B10: on average at most 1.5 times the buckets that have to move; ranges move far more."""
    total = 1024
    factors: dict[str, list[float]] = {"racks": [], "ranges": []}
    for dealer, found in factors.items():
        before: list[str] = []
        for count in range(2, 60):
            them = [Member(f"consumer-{at}", f"rack-{at % 3}") for at in range(count)]
            after = owners(assign(dealer, them, buckets=total))  # type: ignore[arg-type]
            if before:
                moved = sum(a != b for a, b in zip(before, after, strict=True))
                found.append(moved * count / total)
            before = after
    assert sum(factors["racks"]) / len(factors["racks"]) <= 1.5
    assert sum(factors["ranges"]) / len(factors["ranges"]) > 5


def test_the_examples_of_the_source_corrected() -> None:
    """B9: 2048 buckets are 0 to 2047; of 1024 buckets nobody among 100 or 1000 goes empty."""
    three = assign("ranges", map(Member, "ABC"), buckets=2048)
    shares = [three.share(name) for name in "ABC"]
    assert [share.primary for share in shares if share] == [
        BucketSet(0, 682),
        BucketSet(682, 1365),
        BucketSet(1365, 2048),
    ]
    for count in (100, 1000):
        assignment = assign("ranges", [Member(f"{at:04}") for at in range(count)], buckets=1024)
        assert min(loads(assignment).values()) >= 1
        assert max(loads(assignment).values()) - min(loads(assignment).values()) <= 1


def test_more_consumers_than_buckets() -> None:
    """B8: the number of buckets is the most consumers that can be served."""
    for dealer in ("ranges", "racks"):
        assignment = assign(dealer, [Member(f"{at}") for at in range(5)], buckets=2)  # type: ignore[arg-type]
        assert len(assignment.members) == 2
        assert sorted(loads(assignment).values()) == [1, 1]
    with pytest.raises(InvalidInput, match="1 to 65536 buckets"):
        assign("ranges", [], buckets=65_537)


@given(st.integers(1, 500), st.integers(1, 60), st.data())
def test_span_and_part_are_inverse(total: int, parts: int, data: st.DataObject) -> None:
    """B9: half-open ranges without a gap."""
    parts = min(parts, total)
    bucket = data.draw(st.integers(0, total - 1))
    low, high = span(total, parts, part_of(total, parts, bucket))
    assert low <= bucket < high


@given(st.sets(st.integers(0, 100)))
def test_a_bucket_set_holds_its_buckets(chosen: set[int]) -> None:
    """B8: with a mask where there are gaps, and only there."""
    found = bucket_set(sorted(chosen))
    assert {bucket for bucket in range(101) if bucket in found} == chosen
    assert len(found) == len(chosen)
    contiguous = bool(chosen) and max(chosen) - min(chosen) + 1 == len(chosen)
    assert (found.mask is None) == (contiguous or not chosen)


# Windows

A, B, C = (Attendee(Member(name)) for name in "ABC")


def names(windows: Windows) -> str:
    return "".join(member.id for member in windows.assignment.members)


def test_who_comes_is_served_from_the_next_window_on() -> None:
    """B11: the assignment of a window is made at its beginning, of those who are there then."""
    windows = Windows("ranges", buckets=16, window_ms=1_000)
    assert windows.on_time([A, B], now_ms=10_000)
    assert not windows.on_time([A, B, C], now_ms=10_999)
    assert names(windows) == "AB"
    assert windows.on_time([A, B, C], now_ms=11_000)
    assert names(windows) == "ABC"
    assert not windows.on_time([A, C], now_ms=11_500)
    assert windows.on_time([A, C], now_ms=12_000)
    assert names(windows) == "AC"


def test_the_first_consumer_need_not_wait() -> None:
    """B11: a window in which nobody is served takes whoever comes, at once."""
    windows = Windows("ranges", buckets=16, window_ms=60_000)
    windows.on_time([], now_ms=1)
    assert windows.on_time([A], now_ms=2)
    assert names(windows) == "A"
    assert windows.ends_ms(2) == 60_000


def test_who_is_busy_for_a_window_is_left_out_of_the_next() -> None:
    """B14, B16: its buckets go to those who can take messages; if nobody can, to all."""
    windows = Windows("ranges", buckets=16, window_ms=1_000)
    stuck = Attendee(B.member, busy=True)
    windows.on_time([A, B], now_ms=0)
    windows.on_time([A, stuck], now_ms=1_000)
    assert names(windows) == "A"
    windows.on_time([Attendee(A.member, busy=True), stuck], now_ms=2_000)
    assert names(windows) == "AB"


def test_a_clock_that_goes_back_deals_nothing_anew() -> None:
    """B15: until it has caught up."""
    windows = Windows("ranges", buckets=16, window_ms=1_000)
    windows.on_time([A, B], now_ms=10_000)
    assert not windows.on_time([C], now_ms=5_000)
    assert names(windows) == "AB"
    assert windows.on_time([C], now_ms=11_000)


@pytest.mark.parametrize("racks", ["a", "ab"])
def test_a_backup_is_another_consumer_than_the_primary(racks: str) -> None:
    """B10, B21, F30: also with one rack; shares and `backups` say the same."""
    members = [Member(f"c{n}", racks[n % len(racks)]) for n in range(6)]
    found = assign("racks", members, buckets=256)
    shares = {member.id: found.share(member.id) for member in members}
    for bucket in range(256):
        backups = found.backups(bucket)
        assert len(backups) == len(racks)
        assert found.primary(bucket) not in backups
        standing_by = {name for name, share in shares.items() if share and bucket in share.backup}
        assert standing_by == {backup.id for backup in backups}
