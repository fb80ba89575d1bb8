"""The planning of repair against a dumb version that counts copies one by one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.storage import Placement, Quorum
from dovetail.storage.held import Span, joined, of_place, without
from dovetail.storage.placement import Fragment
from dovetail.storage.quorum.arithmetic import places_of
from dovetail.storage.repair import plan
from dovetail.storage.repair.plan import Attendance, Presence, Progress

NODES = 8


def spans_of(entries: set[int]) -> list[Span]:
    return list(joined(Span(entry, entry) for entry in sorted(entries)))


def entries_of(spans: list[Span]) -> set[int]:
    return {entry for span in spans for entry in range(span.first, span.last + 1)}


@st.composite
def placements(draw: st.DrawFn) -> tuple[Placement, int]:
    """A closed ledger: its placement and its last entry."""
    ensemble = draw(st.integers(1, 5))
    write = draw(st.integers(1, ensemble))
    quorum = Quorum(ensemble, write, draw(st.integers(1, write)))
    entry_last = draw(st.integers(0, 40))
    # A writer that failed may leave a fragment that begins behind the last entry.
    borders = sorted({0, *draw(st.lists(st.integers(1, entry_last + 1), max_size=4))})
    fragments = tuple(
        Fragment(first, tuple(draw(st.permutations(range(NODES)))[:ensemble])) for first in borders
    )
    return Placement(1, quorum, fragments), entry_last


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_spans_are_sets(wanted: set[int], held: set[int]) -> None:
    """L10: what is missing is the difference, in spans that do not touch."""
    missing = without(spans_of(wanted), spans_of(held))
    assert entries_of(missing) == wanted - held
    assert missing == spans_of(wanted - held)


@given(st.integers(1, 7), st.integers(0, 60), st.integers(0, 60), st.data())
def test_what_a_place_gets(ensemble: int, first: int, last: int, data: st.DataObject) -> None:
    """L2: the entries whose write set has the place, by asking each of them."""
    write = data.draw(st.integers(1, ensemble))
    place = data.draw(st.integers(0, ensemble - 1))
    quorum = Quorum(ensemble, write, 1)
    found = list(of_place(quorum, place, first, last))
    assert entries_of(found) == {e for e in range(first, last + 1) if place in places_of(quorum, e)}
    assert list(found) == sorted(found)


@given(placements(), st.integers(0, NODES - 1), st.integers(0, 45))
def test_what_a_node_is_to_hold(made: tuple[Placement, int], node: int, first: int) -> None:
    """L2: the entries whose nodes include it, by asking each of them."""
    placement, entry_last = made
    found = list(placement.expected_on(node, first=first, last=entry_last))
    assert entries_of(found) == {
        entry for entry in range(first, entry_last + 1) if node in placement.nodes_for(entry)
    }


@given(placements(), st.randoms(use_true_random=False))
def test_a_repair_against_a_dumb_version(made: tuple[Placement, int], rng: random.Random) -> None:
    """L10: every copy that can be made is made; no step takes a copy that the chain names.

    The dumb version is a table of who holds what, and copies entry by entry.
    """
    placement, entry_last = made
    entries = range(entry_last + 1)
    presence = {node: rng.choice(list(Presence)) for node in range(NODES)}
    answers = {n for n, s in presence.items() if s in (Presence.HERE, Presence.LEAVING)}
    held = {node: {e for e in entries if rng.random() < 0.7} for node in range(NODES)}
    # Nodes that hold another fragment of the ledger can take a place too.
    spare = [n for n in range(NODES) if presence[n] is Presence.HERE]
    rng.shuffle(spare)

    wanted = plan.aim(placement, presence, spare)
    progress = Progress()
    stored = {node: set(have) for node, have in held.items()}
    for node in wanted.nodes:
        if presence[node] is not Presence.HERE:
            continue
        progress.asked.add(node)
        for copy in plan.copies(wanted, node, Span(0, entry_last), spans_of(held[node])):
            for entry in range(copy.span.first, copy.span.last + 1):
                assert entry not in held[node]
                named = plan.sources(placement, entry, presence, target=node)
                assert set(named) == set(placement.nodes_for(entry)) - {node}
                if any(entry in held[source] for source in named if source in answers):
                    stored[node].add(entry)
                else:
                    progress.note_lacking(node, Span(entry, entry))
    settled = plan.settle(placement, wanted, progress, entry_last=entry_last)

    for fragment in settled.fragments:
        assert len(set(fragment.nodes)) == placement.quorum.ensemble
    for entry in entries:
        before, after = placement.nodes_for(entry), settled.nodes_for(entry)
        copies_before = {n for n in before if entry in held[n]}
        for left, came in zip(before, after, strict=True):
            if left != came:
                assert presence[left] in (Presence.LEAVING, Presence.GONE)
                assert presence[came] is Presence.HERE
                assert entry in stored[came], "a place was given to a node without the entry"
        assert len({n for n in after if entry in stored[n]}) >= len(copies_before)
        readable = any(entry in held[n] for n in before if n in answers)
        for node in after:
            if readable and presence[node] is Presence.HERE:
                assert entry in stored[node], "a copy that could be made was not"
    spare_is_enough = len(spare) >= placement.quorum.ensemble
    everything_readable = all(
        any(entry in held[n] for n in placement.nodes_for(entry) if n in answers)
        for entry in entries
    )
    if spare_is_enough and everything_readable:
        assert not plan.must_leave(settled, presence), "a node that leaves is still named"


def test_a_node_that_was_not_asked_gets_no_place() -> None:
    """L10: settling without having filled changes nothing."""
    placement = Placement(1, Quorum(2, 2, 1), (Fragment(0, (1, 2)),))
    presence = {1: Presence.GONE, 2: Presence.HERE, 3: Presence.AWAY}
    wanted = plan.aim(placement, presence, [3])
    assert wanted.nodes == {2, 3}
    assert plan.settle(placement, wanted, Progress(), entry_last=9) == placement


def test_fragments_that_end_up_on_the_same_nodes_are_one() -> None:
    """L10: the chain does not grow by repairs, and what was never written is left out."""
    placement = Placement(
        1, Quorum(2, 2, 1), (Fragment(0, (1, 2)), Fragment(5, (3, 2)), Fragment(10, (1, 4)))
    )
    presence = {1: Presence.GONE, 2: Presence.HERE, 3: Presence.HERE, 4: Presence.HERE}
    wanted = plan.aim(placement, presence, [3])
    settled = plan.settle(placement, wanted, Progress(asked={2, 3, 4}), entry_last=9)
    assert settled.fragments == (Fragment(0, (3, 2)),)


def test_a_long_ledger_is_looked_at_in_windows() -> None:
    """L10: every entry is in exactly one window."""
    last = 2 * plan.WINDOW_ENTRIES + 10
    found = list(plan.windows(last))
    assert list(joined(found)) == [Span(0, last)]
    assert sum(span.last - span.first + 1 for span in found) == last + 1
    assert list(plan.windows(-1)) == []


@pytest.mark.parametrize("away_ms", [0, 999, 1000, 5000])
def test_a_node_is_waited_for_and_then_given_up(away_ms: int) -> None:
    """L10: away for less than the grace time is no reason to copy all that it holds."""
    attendance = Attendance(grace_ms=1000)
    attendance.note({1: "a", 2: "b"}, now_ms=0)
    attendance.note({2: "b"}, now_ms=10)

    def presence(node: int, given_up: set[int], now_ms: float) -> Presence:
        return attendance.presence(node, given_up=given_up, now_ms=now_ms)

    assert presence(1, set(), 10 + away_ms) is (Presence.GONE if away_ms >= 1000 else Presence.AWAY)
    assert presence(1, {1}, 11) is Presence.GONE
    assert presence(2, {2}, 11) is Presence.LEAVING
    assert presence(9, set(), 500) is Presence.AWAY, "never seen: waited for from now on"
    assert presence(9, set(), 1500) is Presence.GONE
    assert (attendance.departures(1), attendance.departures(2)) == (1, 0)
    attendance.note({1: "c", 2: "b"}, now_ms=20)
    assert presence(1, set(), 99_999) is Presence.HERE


def test_a_node_that_is_back_before_anybody_looked_was_away() -> None:
    """L10: what is known of its disk is of another life; it is asked anew."""
    attendance = Attendance(grace_ms=1000)
    attendance.note({1: "a", 2: "b"}, now_ms=0)
    before = attendance.lives()
    attendance.note({1: "c", 2: "b"}, now_ms=10)
    assert (attendance.departures(1), attendance.departures(2)) == (1, 0)
    assert attendance.lives() != before
    assert attendance.presence(1, given_up=(), now_ms=99_999) is Presence.HERE
    attendance.note({1: "c", 2: "b"}, now_ms=20)
    assert attendance.departures(1) == 1, "once"
