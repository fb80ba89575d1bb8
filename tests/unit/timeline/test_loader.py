"""The loader, event by event."""

from dovetail.timeline.engine.assignment import Member
from dovetail.timeline.engine.loader import (
    ANYBODY_LOOK_MS,
    LEAD_MS_MAX,
    LEAD_MS_MIN,
    NEVER_MS,
    Lead,
    Loader,
    Plan,
)
from dovetail.timeline.engine.window import Attendee, Windows
from dovetail.timeline.message import Leased, MessageId, Version
from dovetail.timeline.stores.protocol import LeaseResult

T = 1_000_000
LEASE_MS = 30_000


def loader(*, poll_ms: int = 0, credit: int = 10) -> Loader:
    """With one consumer that has credit, and found nothing to lease so far."""
    made = Loader(Windows("ranges", buckets=16, window_ms=1_000), overtake_ms=100, poll_ms=poll_ms)
    made.join(Member("a"), lease_ms=LEASE_MS)
    made.on_window(made.attendees(), now_ms=T)
    if credit:
        made.offer("a", credit)
        answer(made, T)
    return made


def answer(made: Loader, now_ms: int, *, next_ms: int | None = None) -> Plan:
    plan = made.plan(now_ms=now_ms)
    assert plan is not None
    made.on_leased(plan, LeaseResult(((),) * len(plan.asks), 0, next_ms), took_ms=1)
    return plan


def leased(due_ms: int) -> Leased:
    return Leased(MessageId(1), Version(1), due_ms, due_ms + LEASE_MS, 1, 0, 0, b"", b"")


def test_it_wakes_a_lead_before_the_next_message() -> None:
    """B7: in time to have the lease on disk."""
    made = loader()
    assert made.wake_ms(now_ms=T) >= NEVER_MS - LEAD_MS_MAX
    made.on_inserted(T + 500)
    assert made.wake_ms(now_ms=T) == T + 500 - made.lead.ms
    assert made.plan(now_ms=T) is None
    plan = made.plan(now_ms=T + 500 - made.lead.ms)
    assert plan is not None
    assert plan.asks[0].horizon_ms >= T + 500


def test_what_is_stored_while_a_lease_is_under_way_is_not_forgotten() -> None:
    """B12: the answer knows nothing of it, the loader does."""
    made = loader()
    made.on_inserted(T)
    plan = made.plan(now_ms=T)
    assert plan is not None
    assert made.wake_ms(now_ms=T) == NEVER_MS
    made.on_inserted(T + 3)
    made.on_leased(plan, LeaseResult(((),), 0, None), took_ms=1)
    assert made.wake_ms(now_ms=T + 1) <= T + 3


def test_credit_that_comes_back_looks_for_what_lay_there() -> None:
    """B14: what became due while a consumer could take nothing."""
    made = loader(credit=0)
    made.on_inserted(T)
    assert made.wake_ms(now_ms=T) == NEVER_MS
    made.offer("a", 1)
    assert made.wake_ms(now_ms=T + 5) <= T + 5


def test_a_full_answer_is_asked_for_more_at_once() -> None:
    """B12: a backlog is drained as fast as credit allows, and no further."""
    made = loader(credit=2)
    made.on_inserted(T)
    plan = made.plan(now_ms=T)
    assert plan is not None
    pushes = made.on_leased(plan, LeaseResult(((leased(T), leased(T)),), 0, None), took_ms=1)
    assert len(pushes) == 2
    assert made.plan(now_ms=T) is None, "no credit"
    made.offer("a", 1)
    again = made.plan(now_ms=T)
    assert again is not None
    assert again.asks[0].limit == 1


def full(made: Loader, plan: Plan, *, next_ms: int | None = None) -> None:
    """Answers a plan of one ask with as much as it asked for."""
    taken = (leased(T),) * plan.asks[0].limit
    made.on_leased(plan, LeaseResult((taken,), 0, next_ms), took_ms=1)


def empty(made: Loader, plan: Plan, *, next_ms: int | None = None) -> None:
    made.on_leased(plan, LeaseResult(((),), 0, next_ms), took_ms=1)


def ahead() -> tuple[Loader, Plan, Plan]:
    """A loader with a backlog, and two plans under way for 2,500 that its consumer can take."""
    made = loader(credit=1)
    made.on_inserted(T)
    first = made.plan(now_ms=T)
    assert first is not None
    assert made.plan(now_ms=T) is None, "it is not known yet whether there is more"
    full(made, first)
    made.offer("a", 2_500)
    one, two = made.plan(now_ms=T), made.plan(now_ms=T)
    assert one is not None
    assert two is not None
    assert made.plan(now_ms=T) is None
    assert made.wake_ms(now_ms=T) == NEVER_MS
    return made, one, two


def test_a_backlog_is_leased_ahead_within_the_credit() -> None:
    """B12, B14: two plans at once while answers are full, and never more than can be taken."""
    made, one, two = ahead()
    made.offer("a", 2_500)
    full(made, one)
    assert made.plan(now_ms=T) is None, "little is not asked for beside another plan"
    full(made, two)
    three = made.plan(now_ms=T)
    assert three is not None
    assert [plan.asks[0].limit for plan in (one, two, three)] == [1_000, 1_000, 500]
    full(made, three)
    assert made.credit("a") == 0
    assert made.plan(now_ms=T) is None


def test_credit_that_comes_while_a_plan_is_under_way_is_used_at_once() -> None:
    """B12, B14: a backlog does not wait for the answer to what was asked before."""
    made = loader(credit=1)
    made.on_inserted(T)
    first = made.plan(now_ms=T)
    assert first is not None
    full(made, first)
    made.offer("a", 1_000)
    second = made.plan(now_ms=T)
    assert second is not None
    assert made.plan(now_ms=T) is None, "all of its credit is asked for"
    made.offer("a", 1_999)
    assert made.plan(now_ms=T) is None, "who takes little gets one after the other"
    made.offer("a", 2_000)
    third = made.plan(now_ms=T)
    assert third is not None
    assert [plan.asks[0].limit for plan in (second, third)] == [1_000, 1_000]


def test_the_end_of_a_backlog_is_the_end_of_leasing_ahead() -> None:
    """B12: after an answer that was not full, one plan at a time again."""
    made, one, two = ahead()
    empty(made, one)
    assert made.plan(now_ms=T) is None, "the other one is still under way"
    empty(made, two)
    last = made.plan(now_ms=T)
    while last is not None:
        assert made.plan(now_ms=T) is None
        empty(made, last)
        last = made.plan(now_ms=T)
    assert made.wake_ms(now_ms=T) >= NEVER_MS - LEAD_MS_MAX


def test_answers_in_any_order_forget_nothing() -> None:
    """B12: what the one that looked first did not see, and when the leases of the other end."""
    for late in (0, 1):
        made, *plans = ahead()
        made.on_inserted(T + 300)
        full(made, plans[1 - late], next_ms=T + 200)
        empty(made, plans[late], next_ms=T + 900)
        assert made.wake_ms(now_ms=T) == T, "the full answer left something"
        again = made.plan(now_ms=T)
        assert again is not None
        made.on_inserted(T + 100)
        empty(made, again, next_ms=None)
        while made.wake_ms(now_ms=T) == T:
            empty(made, made.plan(now_ms=T) or again)
        assert made.wake_ms(now_ms=T) <= T + 300


def test_a_plan_that_failed_takes_no_credit_with_it() -> None:
    """B16: what it asked for is asked for again."""
    made, one, two = ahead()
    made.on_failed(one, now_ms=T)
    made.on_failed(two, now_ms=T)
    later_ms = made.wake_ms(now_ms=T)
    assert later_ms > T
    limits = []
    plan = made.plan(now_ms=later_ms)
    while plan is not None:
        limits.append(plan.asks[0].limit)
        full(made, plan)
        plan = made.plan(now_ms=later_ms)
    assert sum(limits) == 2_500


def test_a_consumer_that_comes_again_has_its_own_credit() -> None:
    """B13, B14: the answer to what its former self asked for changes nothing about it."""
    made, one, two = ahead()
    made.leave("a")
    made.join(Member("a"), lease_ms=LEASE_MS)
    made.offer("a", 10)
    empty(made, one)
    mine = made.plan(now_ms=T)
    assert mine is not None
    assert mine.asks[0].limit == 10
    empty(made, two)
    assert made.plan(now_ms=T) is None, "its ten are asked for already"


def test_nobody_starves_beside_a_backlog() -> None:
    """B12, B14: whoever has no plan under way is part of the next one."""
    made, one, _ = ahead()
    made.join(Member("b"), lease_ms=LEASE_MS)
    made.offer("b", 5)
    made.on_window(made.attendees(), now_ms=T + 1_000)
    full(made, one)
    plan = made.plan(now_ms=T + 1_000)
    assert plan is not None
    assert [(ask.consumer, ask.limit) for ask in plan.asks] == [("b", 5)]


def test_a_push_leaves_as_much_earlier_as_its_way_takes() -> None:
    """B7: the measured latency of each consumer is used."""
    made = loader()
    made.on_latency("a", 4.5)
    made.on_inserted(T + 10)
    plan = made.plan(now_ms=T + 8)
    assert plan is not None
    (push,) = made.on_leased(plan, LeaseResult(((leased(T + 10),),), 0, None), took_ms=1)
    assert push.at_ms == T + 10 - 4.5


def test_the_lead_follows_the_store() -> None:
    """B7: a slow store is asked earlier, within bounds, by the slowest of its last answers."""
    lead = Lead()
    for _ in range(100):
        lead.on_duration(0.5)
    assert lead.ms == LEAD_MS_MIN
    lead.on_duration(40)
    assert lead.ms == 52
    lead.on_duration(10_000)
    assert lead.ms == LEAD_MS_MAX
    for _ in range(128):
        lead.on_duration(0.5)
    assert lead.ms == LEAD_MS_MIN


def test_stores_that_others_write_to_are_looked_at_now_and_then() -> None:
    """B7: what another broker stored is found within the poll."""
    made = loader(poll_ms=50)
    assert made.wake_ms(now_ms=T + 1) == T + 50
    assert made.plan(now_ms=T + 49) is None
    assert made.plan(now_ms=T + 50) is not None


def test_a_store_that_fails_is_left_in_peace_for_a_moment() -> None:
    """B16: longer each time, and asked again after all."""
    made = loader()
    made.on_inserted(T)
    pauses = []
    now_ms = T
    for _ in range(12):
        plan = made.plan(now_ms=now_ms)
        assert plan is not None
        made.on_failed(plan, now_ms=now_ms)
        wake_ms = made.wake_ms(now_ms=now_ms)
        pauses.append(wake_ms - now_ms)
        now_ms = wake_ms
    assert pauses[0] == 20
    assert pauses[-1] == 2_000
    assert pauses == sorted(pauses)


def test_held_back_means_nothing_is_leased() -> None:
    """B15, B16: no plan while pushing is stopped."""
    made = loader()
    made.on_inserted(T)
    made.held_back = True
    assert made.plan(now_ms=T) is None
    assert made.wake_ms(now_ms=T) == NEVER_MS
    made.held_back = False
    assert made.plan(now_ms=T) is not None


def test_a_request_that_begins_again_asks_the_store_only_if_there_may_be_something() -> None:
    """F63, B7: each idle consumer cost a lease in 20 s; what is there later is asked for in time,
    and so is what may have come free since it got something."""
    made = loader()
    made.listen(True)
    made.begin_look()
    made.on_look(T + 60_000)
    for at_ms in (T + 20_000, T + 40_000):
        made.offer("a", 0)
        made.offer("a", 10, now_ms=at_ms)
        assert made.plan(now_ms=at_ms) is None
        assert made.wake_ms(now_ms=at_ms) == T + 60_000 - made.lead.ms

    # A plan for another consumer knows nothing of this one's buckets.
    made.offer("a", 0)
    made._next_ms = NEVER_MS
    made.offer("a", 10, now_ms=T + 41_000)
    plan = made.plan(now_ms=T + 60_000 - made.lead.ms)
    assert plan is not None
    made.on_leased(plan, LeaseResult(((leased(T + 60_000),),), 0, None), took_ms=1)
    made.on_look(None)
    made.offer("a", 0)
    made.offer("a", 10, now_ms=T + 61_000)
    answer(made, T + 61_000)

    made.listen(False)
    made.offer("a", 0)
    made.offer("a", 10, now_ms=T + 63_000)
    assert made.plan(now_ms=T + 63_000) is not None


def test_who_took_nothing_for_a_window_and_could_take_nothing_is_busy() -> None:
    """B14: as the next assignment sees it."""
    made = loader(credit=0)
    made.attendees()
    (busy,) = made.attendees()
    assert busy.busy
    made.offer("a", 1)
    (able,) = made.attendees()
    assert not able.busy


def test_who_can_only_let_messages_wait_is_not_idle_and_takes_nothing_from_others() -> None:
    """B21, F30: credit may be for messages that wait for a handler; only one whose handlers could
    begin counts as idle, and helps out."""
    loader = Loader(Windows("ranges", buckets=8, window_ms=100), overtake_ms=500, poll_ms=0)
    names = ("busy", "full", "free")
    for name in names:
        loader.join(Member(name), lease_ms=1_000)
        loader.offer(name, 0 if name == "busy" else 2)
    loader.on_window([Attendee(Member(name)) for name in names], now_ms=0)
    loader.on_free("full", 0)
    loader.on_free("free", 1)
    for consumer in loader._consumers.values():
        consumer.more = False
    loader._next_ms = NEVER_MS
    plan = loader.plan(now_ms=ANYBODY_LOOK_MS)
    assert plan is not None
    helping = [ask for ask in plan.asks if (ask.low, ask.high) == (0, 8)]
    assert [ask.consumer for ask in helping] == ["free"]
    loader.attendees()
    assert {each.member.id: each.idle for each in loader.known()} == {
        "busy": False,
        "full": False,
        "free": True,
    }
