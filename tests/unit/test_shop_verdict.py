"""The proof at the end of the demo can fail: each planted fault is found, and named."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from examples.shop import chaos
from examples.shop.evidence import TOPICS, Evidence, MailRow, OrderRow, ReminderRow
from examples.shop.results import DONE
from examples.shop.shop import ORDERS, PAYMENTS, visit
from examples.shop.teams import shop
from examples.shop.verdict import Check, figures, quantile, verdict

REMIND_AFTER_S = 10.0
PARSED, PRICED = shop.topics("parse").results, shop.topics("price").results
STOCKED, SHIPPED = shop.topics("stock").results, shop.topics("ship").results
AGAIN = shop.topics("backorder").results
DEAD = shop.topics("parse").dead


def order(lines: tuple[str, ...], **given: object) -> OrderRow:
    row = OrderRow(lines, 1_000, None, "complete", None, None, 5_000)
    return replace(row, **given)  # type: ignore[arg-type]


def whole() -> Evidence:
    """Three orders: one paid in time, one never paid, one that nobody can read."""
    topics = dict.fromkeys(TOPICS, ()) | {
        ORDERS: ("1", "2", "3"),
        PAYMENTS: ("1",),
        DONE: ("3", "1", "2"),
        PARSED: ("1", "2", "3"),
        PRICED: ("1", "2"),
        STOCKED: ("1/0", "1/1", "2/0"),
        SHIPPED: ("1/0", "2/0"),
        AGAIN: ("1/1",),
        DEAD: ("3",),
    }
    return Evidence(
        orders={
            "1": order(("A-7 x 2", "C-9 x 3"), paid_ms=4_000, items=2, total_cents=29_200),
            "2": order(("F-3 x 1",), items=1, total_cents=15),
            "3": order(("one of the blue ones",), state="rejected"),
        },
        declined=frozenset({"4"}),
        items={"1/0": "shipped", "1/1": "ordered again", "2/0": "shipped"},
        reminders={"2": ReminderRow(11_000, 11_004, True), "3": ReminderRow(11_000, 11_030, True)},
        mails={
            "1": MailRow(5_100, "a", 1),
            "2": MailRow(5_200, "b", 2),
            "3": MailRow(5_300, "b", 2),
        },
        outbox_left=0,
        outbox_dead=0,
        topics=topics,
        timeline_left=0,
        timeline_dead=0,
    )


def failing(evidence: Evidence) -> list[Check]:
    return [check for check in verdict(evidence, remind_after_s=REMIND_AFTER_S) if not check.holds]


def without(topic: str, key: str) -> Callable[[Evidence], Evidence]:
    def plant(one: Evidence) -> Evidence:
        keys = tuple(there for there in one.topics[topic] if there != key)
        return replace(one, topics={**one.topics, topic: keys})

    return plant


def with_more(topic: str, key: str) -> Callable[[Evidence], Evidence]:
    def plant(one: Evidence) -> Evidence:
        return replace(one, topics={**one.topics, topic: (*one.topics[topic], key)})

    return plant


def changed(name: str, **given: object) -> Callable[[Evidence], Evidence]:
    def plant(one: Evidence) -> Evidence:
        row = replace(one.orders[name], **given)  # type: ignore[arg-type]
        return replace(one, orders={**one.orders, name: row})

    return plant


def reminded(name: str, row: ReminderRow | None) -> Callable[[Evidence], Evidence]:
    def plant(one: Evidence) -> Evidence:
        kept = {key: value for key, value in one.reminders.items() if key != name}
        return replace(one, reminders=kept if row is None else {**kept, name: row})

    return plant


def test_what_is_whole_holds() -> None:
    """U1: every check holds where nothing is lost, doubled or wrong."""
    assert failing(whole()) == []


PLANTED: list[tuple[str, Callable[[Evidence], Evidence], str, str]] = [
    ("a record of an order is gone", without(ORDERS, "2"), "database to topic", "1 lost: 2"),
    ("an order is sent twice", with_more(ORDERS, "2"), "database to topic", "1 doubled: 2"),
    ("one that was rolled back is sent", with_more(ORDERS, "4"), "rolled back", "1 foreign: 4"),
    ("a payment is gone", without(PAYMENTS, "1"), "payments", "1 lost: 1"),
    ("an outcome is gone", without(PARSED, "3"), "team parse", "1 lost: 3"),
    ("an outcome is doubled", with_more(PRICED, "1"), "team price", "1 doubled: 1"),
    ("an item is gone", without(STOCKED, "1/1"), "team stock", "1 lost: 1/1"),
    ("an item goes both ways", with_more(SHIPPED, "1/1"), "team ship", "1 foreign: 1/1"),
    ("an item goes no way", without(AGAIN, "1/1"), "team backorder", "1 lost: 1/1"),
    ("a dead letter is gone", without(DEAD, "3"), "dead letters", "1 lost: 3"),
    ("a total is wrong", changed("1", total_cents=29_199), "to the cent", "1 wrong: 1"),
    ("an order is not settled", changed("2", state="placed"), "to the cent", "1 lost: 2"),
    ("a settled order is not told", without(DONE, "2"), "settled orders", "1 lost: 2"),
    (
        "a row of a result is deleted",
        lambda one: replace(one, items={"1/0": "shipped", "1/1": "ordered again"}),
        "items settled",
        "1 lost: 2/0",
    ),
    ("a reminder never came", reminded("2", None), "unpaid orders", "1 lost: 2"),
    (
        "a paid order is reminded",
        reminded("1", ReminderRow(11_000, 11_001, True)),
        "unpaid orders",
        "1 foreign: 1",
    ),
    (
        "a reminder is early",
        reminded("2", ReminderRow(11_000, 10_999, True)),
        "early",
        "1 foreign: 2",
    ),
    (
        "a reminder was due at another time",
        reminded("2", ReminderRow(10_900, 10_999, True)),
        "early",
        "1 foreign: 2",
    ),
    ("something is left in the outbox", lambda one: replace(one, outbox_left=1), "outbox", "1 for"),
    ("a message is set aside", lambda one: replace(one, outbox_dead=1), "outbox", "1 foreign"),
    ("something waits", lambda one: replace(one, timeline_left=1), "timeline", "1 foreign"),
    ("a dead letter of time", lambda one: replace(one, timeline_dead=1), "timeline", "1 foreign"),
    (
        "a mail was never written",
        lambda one: replace(one, mails={k: v for k, v in one.mails.items() if k != "3"}),
        "mails",
        "1 lost: 3",
    ),
]


@pytest.mark.parametrize(
    ("plant", "check", "complaint"),
    [pytest.param(*rest, id=name) for name, *rest in PLANTED],
)
def test_what_is_planted_is_found(
    plant: Callable[[Evidence], Evidence], check: str, complaint: str
) -> None:
    """U1: the proof does not hold if a row or a record is missing, twice there, or wrong."""
    found = failing(plant(whole()))
    assert any(check in one.name and complaint in one.complaint for one in found), found


def test_a_late_payment_may_be_reminded_or_not() -> None:
    """U1: paid after the due time: right either way, as long as the payment came after it fired."""
    late = changed("2", paid_ms=12_000)(with_more(PAYMENTS, "2")(whole()))
    assert failing(late) == []
    assert failing(reminded("2", None)(late)) == []
    after = reminded("2", ReminderRow(11_000, 12_001, True))(late)
    assert [one.complaint for one in failing(after)] == [
        "reminders early or needless: 1 foreign: 2"
    ]


def test_figures_come_from_the_same_evidence() -> None:
    """U1: lateness, cancelled reminders and takeovers are read from the database."""
    measured = figures(whole())
    assert measured.late_ms == (4, 30)
    assert (measured.cancelled, measured.needless, measured.takeovers) == (1, 0, 1)
    assert measured.leads == ((1, "a", 1), (2, "b", 2))
    assert [quantile((1, 2, 3, 4), part) for part in (0.0, 0.5, 0.99, 1.0)] == [1, 3, 4, 4]


@pytest.mark.parametrize("seconds", [6.0, 30.0, 60.0, 600.0])
def test_chaos_follows_from_its_seed(seconds: float) -> None:
    """U1: the same faults for the same seed, inside the run, no target twice before all came."""
    targets = tuple(chaos.FAULTS)
    faults = chaos.plan(7, seconds, targets)
    assert faults == chaos.plan(7, seconds, targets)
    assert faults
    assert [one.at_s for one in faults] == sorted(one.at_s for one in faults)
    assert all(0 < one.at_s < seconds for one in faults)
    rounds = [faults[n : n + len(targets)] for n in range(0, len(faults), len(targets))]
    for one in rounds:
        assert len({fault.target for fault in one}) == len(one)
    assert chaos.plan(7, seconds, ()) == ()


def test_customers_follow_from_seed_and_number() -> None:
    """U1: a restarted shop knows what its customers were about to do."""
    visits = [visit(3, number, 10.0) for number in range(500)]
    assert visits == [visit(3, number, 10.0) for number in range(500)]
    assert visits != [visit(4, number, 10.0) for number in range(500)]
    assert 20 < sum(one.declined for one in visits) < 90
    assert any(one.pays_after_s is None for one in visits)
    assert any(one.pays_after_s is not None and one.pays_after_s > 10.0 for one in visits)
