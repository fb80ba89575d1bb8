"""Who takes which partition: against a dumb version, and at given times."""

import random
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.coordination.membership import LiveBrokers
from dovetail.log.claims import (
    JITTER_MS,
    MOVES_MAX,
    SETTLE_MS,
    TURN_MS,
    Claims,
    Decision,
    assign,
    moves,
    turn_of,
)
from dovetail.log.owners import NOBODY, Owners, Ownership, Place
from dovetail.storage.selection import Candidate, any_order, least_loaded, round_robin

PLACES = st.builds(Place, st.sampled_from(["a", "b", "c"]), st.integers(0, 30))
HOLDINGS = st.dictionaries(
    PLACES, st.builds(Ownership, st.integers(0, 5), st.integers(-1, 5)), max_size=30
)
TAKERS = st.sets(st.integers(0, 5), min_size=1)


class NoWait(random.Random):
    """A generator whose waits are nothing."""

    def random(self) -> float:
        return 0.0


def brokers(*willing: int, leaving: tuple[int, ...] = ()) -> LiveBrokers:
    return LiveBrokers(frozenset(willing) | frozenset(leaving), frozenset(willing))


def claims(node_id: int) -> Claims:
    return Claims(node_id, select=least_loaded, rng=NoWait(1))


def decide(
    mine: Claims,
    owners: dict[Place, Ownership],
    there: LiveBrokers,
    held: Collection[Place],
    *,
    now_ms: float,
) -> Decision:
    """As at a start, when everything is new."""
    return mine.decide(Owners(owners), there, held, changed=owners, now_ms=now_ms)


def owned(owners: dict[Place, Ownership]) -> "Counter[int]":
    return Counter(ownership.owner for ownership in owners.values())


# Dealing


def dumb_first(owners: dict[Place, Ownership], takers: set[int], place: Place) -> int:
    """The taker with the fewest partitions, then with the fewest of the topic, then by the turn."""
    shuffled = any_order([Candidate(node, 0) for node in takers], turn_of(place))

    def burden(node: int) -> tuple[int, int, int]:
        mine = [p for p, h in owners.items() if h.owner == node]
        return len(mine), sum(p.topic_id == place.topic_id for p in mine), shuffled.index(node)

    return min(takers, key=burden)


@settings(deadline=None)
@given(HOLDINGS, TAKERS)
def test_assigning_is_what_a_dumb_version_does(
    owners: dict[Place, Ownership], takers: set[int]
) -> None:
    """L3, L9, L12: each vacant partition, in order, goes to whoever has least by then."""
    vacant = [place for place, ownership in owners.items() if ownership.owner not in takers]
    assigned = assign(vacant, Owners(owners), takers, least_loaded)
    assert assigned.keys() == set(vacant)
    given_out = dict(owners)
    for place in sorted(vacant):
        assert sorted(assigned[place]) == sorted(takers)
        assert assigned[place][0] == dumb_first(given_out, takers, place)
        given_out[place] = Ownership(given_out[place].term, assigned[place][0])


@settings(deadline=None)
@given(HOLDINGS, TAKERS, st.randoms(use_true_random=False))
def test_every_broker_assigns_alike(
    owners: dict[Place, Ownership], takers: set[int], rng: random.Random
) -> None:
    """L9: the order in which a broker learnt of things does not matter."""
    vacant = [place for place, ownership in owners.items() if ownership.owner not in takers]
    pairs = list(owners.items())
    rng.shuffle(pairs)
    for select in (least_loaded, round_robin, any_order):
        expected = assign(vacant, Owners(owners), takers, select)
        shuffled = rng.sample(vacant, len(vacant))
        others = rng.sample(sorted(takers), len(takers))
        assert assign(shuffled, Owners(dict(pairs)), others, select) == expected


@settings(deadline=None)
@given(st.integers(1, 200), TAKERS)
def test_what_is_assigned_from_nothing_is_even(count: int, takers: set[int]) -> None:
    """L3: within one of each other, in all and topic by topic."""
    places = [Place(f"t{n % 3}", n) for n in range(count)]
    assigned = assign(places, Owners({}), takers, least_loaded)
    firsts = Counter(order[0] for order in assigned.values())
    loads = [firsts[node] for node in takers]
    assert max(loads) - min(loads) <= 1


def test_nobody_to_assign_to() -> None:
    """L9: without brokers nothing is assigned."""
    assert assign([Place("a", 0)], Owners({}), [], least_loaded) == {}


# Balance


def play_moves(owners: dict[Place, Ownership], willing: set[int]) -> int:
    """Every giver moves what it plans, until nobody plans anything; how many moved."""
    moved = 0
    while True:
        plans = {node: moves(Owners(owners), willing, giver=node) for node in willing}
        assert all(len(plan) <= MOVES_MAX for plan in plans.values())
        if not any(plans.values()):
            return moved
        for node, plan in plans.items():
            for place, taker in plan:
                assert owners[place].owner == node
                assert taker in willing
                owners[place] = Ownership(owners[place].term, taker)
                moved += 1


@settings(deadline=None)
@given(HOLDINGS, TAKERS)
def test_moves_end_in_balance_and_are_the_fewest(
    owners: dict[Place, Ownership], willing: set[int]
) -> None:
    """L3, B2: within one of each other, by no more moves than that takes; the rest stays."""
    before = owned(owners)
    loads = sorted((before[node] for node in willing), reverse=True)
    share, rest = divmod(sum(loads), len(willing))
    # The brokers that have most keep one more; whatever anybody has above its share must move.
    fewest = sum(max(0, load - share - (1 if at < rest else 0)) for at, load in enumerate(loads))
    after = dict(owners)
    assert play_moves(after, willing) == fewest
    loads = [owned(after)[node] for node in willing]
    assert max(loads) - min(loads) <= 1
    for place, ownership in owners.items():
        if ownership.owner not in willing:
            assert after[place] == ownership, "what belongs to others is not moved"


def test_a_joining_broker_gets_parts_of_every_topic() -> None:
    """L3: topics are spread, not moved as a whole."""
    owners = {Place(t, n): Ownership(1, 1 + n % 2) for t in "abc" for n in range(8)}
    after = dict(owners)
    play_moves(after, {1, 2, 3})
    mine = Counter(place.topic_id for place, ownership in after.items() if ownership.owner == 3)
    assert mine.total() == 8
    assert set(mine.values()) <= {2, 3}


# Decisions


def test_the_first_claims_at_once_and_the_others_in_turn() -> None:
    """L9: one tries; the next only if the partition is still vacant a turn later."""
    place = Place("a", 0)
    owners = {place: Ownership(4, 9), Place("b", 0): Ownership(1, 2)}
    there = brokers(1, 2, 3)
    order = assign([place], Owners(owners), {1, 2, 3}, least_loaded)[place]
    assert order[2] == 2, "who has something comes last"
    for at, node in enumerate(order):
        mine = claims(node)
        held = {p for p, ownership in owners.items() if ownership.owner == node}
        first = decide(mine, owners, there, held, now_ms=500.0)
        if at == 0:
            assert first.claim == [place]
            continue
        assert first.claim == []
        assert first.again_ms == 500.0 + at * TURN_MS
        early = decide(mine, owners, there, held, now_ms=499.0 + at * TURN_MS)
        assert early.claim == []
        assert decide(mine, owners, there, held, now_ms=500.0 + at * TURN_MS).claim == [place]


def test_a_partition_that_was_owned_between_waits_anew() -> None:
    """L9: the turn counts from when it was last seen vacant."""
    place, there = Place("a", 0), brokers(1, 2)
    vacant, taken = {place: Ownership(1, 9)}, {place: Ownership(2, 2)}
    late = assign([place], Owners(vacant), {1, 2}, least_loaded)[place][1]
    mine = claims(late)
    assert decide(mine, vacant, there, set(), now_ms=0.0).again_ms == TURN_MS
    owner = LiveBrokers(frozenset({1, 2}), frozenset({1, 2}))
    decide(mine, taken, owner, {place} if late == 2 else set(), now_ms=10.0)
    again = decide(mine, {place: Ownership(2, 9)}, there, set(), now_ms=900.0)
    assert again.claim == []
    assert again.again_ms == 900.0 + TURN_MS


def test_waits_are_random_and_short() -> None:
    """L9: brokers that notice at the same time do not all rush at once."""
    place, there = Place("a", 0), brokers(1, 2)
    first = assign([place], Owners({}), {1, 2}, least_loaded)[place][0]
    waits = set()
    for seed in range(50):
        mine = Claims(first, select=least_loaded, rng=random.Random(seed))
        decision = decide(mine, {place: Ownership(1, 9)}, there, set(), now_ms=0.0)
        assert decision.again_ms is not None
        assert 0 <= decision.again_ms <= JITTER_MS
        waits.add(decision.again_ms)
    assert len(waits) > 40
    alone = Claims(1, select=least_loaded, rng=random.Random(1))
    assert decide(alone, {place: Ownership(1, 9)}, brokers(1), set(), now_ms=0.0).claim == [place]


def test_what_the_record_gives_us_is_claimed_at_once() -> None:
    """L3, L9: named by whoever gave it away, or by our former life."""
    place = Place("a", 0)
    decision = decide(claims(2), {place: Ownership(3, 2)}, brokers(1, 2), set(), now_ms=0.0)
    assert decision.claim == [place]
    held = decide(claims(2), {place: Ownership(3, 2)}, brokers(1, 2), {place}, now_ms=0.0)
    assert held.claim == []


def test_a_living_owner_is_left_alone() -> None:
    """L9: also one that is leaving; it gives by itself."""
    place = Place("a", 0)
    for there in (brokers(1, 2), brokers(1, leaving=(2,))):
        assert decide(claims(1), {place: Ownership(3, 2)}, there, set(), now_ms=1e9).claim == []


def test_who_is_leaving_gets_nothing() -> None:
    """L9: not what is vacant, not what balance moves; and it plans no moves itself."""
    vacant = {Place("a", n): Ownership(1, NOBODY) for n in range(4)}
    there = brokers(1, leaving=(2,))
    nothing = decide(claims(2), vacant, there, set(), now_ms=1e9)
    assert (nothing.claim, nothing.give, nothing.again_ms) == ([], [], None)
    assert decide(claims(1), vacant, there, set(), now_ms=0.0).claim == sorted(vacant)
    mine = {Place("a", n): Ownership(1, 1) for n in range(4)}
    for node in (1, 2):
        one = claims(node)
        decide(one, mine, there, set(mine), now_ms=0.0)
        assert decide(one, mine, there, set(mine), now_ms=10 * SETTLE_MS).give == []


def test_balance_waits_until_the_brokers_have_settled() -> None:
    """L3: a restart is no reason to move, and neither is it while something is vacant."""
    mine = {Place("a", n): Ownership(1, 1) for n in range(4)}
    one = claims(1)
    assert decide(one, mine, brokers(1), set(mine), now_ms=0.0).give == []
    joined = decide(one, mine, brokers(1, 2), set(mine), now_ms=1000.0)
    assert joined.give == []
    assert joined.again_ms == 1000.0 + SETTLE_MS
    vacant = mine | {Place("b", 0): Ownership(1, NOBODY)}
    assert decide(one, vacant, brokers(1, 2), set(mine), now_ms=1000.0 + SETTLE_MS).give == []
    settled = decide(one, mine, brokers(1, 2), set(mine), now_ms=1000.0 + SETTLE_MS)
    assert [taker for _, taker in settled.give] == [2, 2]
    half = set(sorted(mine)[:1])
    assert len(decide(one, mine, brokers(1, 2), half, now_ms=1e9).give) <= 1, "given what it has"


def test_who_declines_still_claims_what_has_its_name_on_it() -> None:
    """L9: nobody else may take it, so it would be nobody's."""
    named = {Place("a", 0): Ownership(3, 2)}
    there = brokers(1, leaving=(2,))
    assert decide(claims(2), named, there, set(), now_ms=0.0).claim == [Place("a", 0)]
    assert decide(claims(1), named, there, set(), now_ms=1e9).claim == []


@settings(deadline=None)
@given(st.lists(st.tuples(PLACES, st.none() | st.integers(-1, 5)), max_size=40), st.data())
def test_what_changed_is_enough_to_know(
    changes: list[tuple[Place, int | None]], data: st.DataObject
) -> None:
    """F60, F6b: told what changed, a broker decides as one that looks at everything."""
    owners, held = Owners(), set[Place]()
    known: dict[Place, Ownership] = {}
    mine, there = claims(1), brokers(1, 2)
    for place, owner in changes:
        if owner is None:
            known.pop(place, None)
            owners.drop(place)
        else:
            known[place] = Ownership(1, owner)
            owners.put(place, known[place])
        if place in held and data.draw(st.booleans()):
            held.discard(place)
        assert owners == known
        assert {node: owners.total(node) for node in range(-1, 6)} == {
            node: owned(known)[node] for node in range(-1, 6)
        }
        for node, topic in {(h.owner, p.topic_id) for p, h in known.items()}:
            of_topic = [p for p, h in known.items() if (h.owner, p.topic_id) == (node, topic)]
            assert owners.of_topic(node, topic) == len(of_topic)

        decided = mine.decide(owners, there, held, changed=[place], now_ms=0.0)
        anew = decide(claims(1), known, there, held, now_ms=0.0)
        assert set(decided.claim) == set(anew.claim)
        taken = data.draw(st.sets(st.sampled_from(decided.claim))) if decided.claim else set()
        held |= taken


def test_a_takeover_costs_what_is_vacant_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """F60: claims that follow the plan do not make the others be planned again."""
    planned: list[int] = []

    def counting(vacant: Collection[Place], *given: Any) -> dict[Place, list[int]]:
        planned.append(len(vacant))
        return assign(vacant, *given)

    monkeypatch.setattr("dovetail.log.claims.assign", counting)
    places = [Place(f"t{n % 7}", n) for n in range(300)]
    owners = Owners({place: Ownership(1, 9) for place in places})
    mine, there, held = claims(1), brokers(1, 2, 3), set[Place]()
    order = assign(places, owners, {1, 2, 3}, least_loaded)
    changed: list[Place] = places
    claimed: list[Place] = []
    for place in sorted(places):
        claimed += mine.decide(owners, there, held, changed=changed, now_ms=0.0).claim
        held.update(claimed)
        owners.put(place, Ownership(2, order[place][0]))
        changed = [place]
    assert claimed == [place for place in sorted(places) if order[place][0] == 1]
    assert sum(planned) == len(places)


def test_a_plan_of_moves_costs_what_the_giver_has() -> None:
    """F60: whoever has nothing to give, and the partitions of others, are not walked over."""
    walked: list[int] = []

    class Walked(Owners):
        def places(self, owner: int) -> Collection[Place]:
            walked.append(owner)
            return super().places(owner)

        def __iter__(self) -> Iterator[Place]:
            raise AssertionError("all partitions are walked over")

    owners = Walked({Place(f"t{n % 9}", n): Ownership(1, 1 + n % 3) for n in range(300)})
    assert moves(owners, {1, 2, 3, 4}, giver=4) == []
    assert walked == []
    assert len(moves(owners, {1, 2, 3, 4}, giver=2)) == MOVES_MAX
    assert walked == [2]


def test_what_was_not_alive_to_be_claimed_is_claimed_later() -> None:
    """F60: a broker whose lease has ended keeps in mind what has its name on it."""
    place, mine = Place("a", 0), claims(1)
    owners = Owners({place: Ownership(1, 1)})
    assert mine.decide(owners, brokers(2), set(), changed=[place], now_ms=0.0).claim == []
    assert mine.decide(owners, brokers(1, 2), set(), changed=[], now_ms=1.0).claim == [place]
    assert mine.decide(owners, brokers(1, 2), {place}, changed=[], now_ms=2.0).claim == []
