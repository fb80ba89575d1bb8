"""Does it hold? In = out, nothing lost, nothing doubled, nothing early.

What is expected is computed here from the orders as the customers wrote them, not taken from any
program that is checked. Each check counts what is lost (expected, but not there), foreign (there,
but not expected), doubled, and wrong (there with other values).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise

from examples.shop.evidence import Evidence, OrderRow
from examples.shop.results import DONE
from examples.shop.shop import ORDERS, PAYMENTS
from examples.shop.teams import PRICES, SHELF, shop

#: Names of things that are wrong, in a message; the rest are counted.
SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the proof."""

    name: str
    expected: int
    found: int
    lost: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not (self.lost or self.foreign or self.doubled or self.wrong)

    @property
    def complaint(self) -> str:
        """What does not hold, in words."""
        parts = []
        for word in ("lost", "doubled", "foreign", "wrong"):
            names: tuple[str, ...] = getattr(self, word)
            if names:
                more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
                parts.append(f"{len(names)} {word}: {', '.join(names[:SHOWN_MAX])}{more}")
        return f"{self.name}: {'; '.join(parts)}" if parts else ""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What must become of an order."""

    state: str
    total_cents: int | None
    #: Fate by the id of the item.
    items: dict[str, str]
    #: The team at which it ends, if it is rejected.
    rejected_by: str | None = None


def outlook(order_id: str, order: OrderRow) -> Outlook:
    """Worked out from what the customer wrote."""
    parts = [line.partition(" x ") for line in order.lines]
    if not all(count.isdigit() for _, _, count in parts):
        return Outlook("rejected", None, {}, "parse")
    counts = [(sku, int(count)) for sku, _, count in parts]
    if not all(sku in PRICES for sku, _ in counts):
        return Outlook("rejected", None, {}, "price")
    total = sum(PRICES[sku] * count for sku, count in counts)
    fates = ["shipped" if count <= SHELF[sku] else "ordered again" for sku, count in counts]
    return Outlook("complete", total, {f"{order_id}/{n}": fate for n, fate in enumerate(fates)})


def once(
    name: str, wanted: Set[str], there: Iterable[str], *, allowed: Set[str] = frozenset()
) -> Check:
    """Each of `wanted` is there once, and nothing else is; `allowed` may be there, once."""
    counted = Counter(iter(there))
    return Check(
        name,
        len(wanted | (allowed & counted.keys())),
        counted.total(),
        lost=tuple(sorted(wanted - counted.keys())),
        foreign=tuple(sorted(counted.keys() - wanted - allowed)),
        doubled=tuple(sorted(key for key, count in counted.items() if count > 1)),
    )


def none(name: str, there: Iterable[str]) -> Check:
    """Nothing is there."""
    return once(name, frozenset(), there)


def equal(name: str, wanted: Mapping[str, object], found: Mapping[str, object]) -> Check:
    """The same keys, with the same values."""
    both = wanted.keys() & found.keys()
    return Check(
        name,
        len(wanted),
        len(found),
        lost=tuple(sorted(wanted.keys() - found.keys())),
        foreign=tuple(sorted(found.keys() - wanted.keys())),
        wrong=tuple(sorted(key for key in both if wanted[key] != found[key])),
    )


def verdict(evidence: Evidence, *, remind_after_s: float) -> list[Check]:
    """All checks, in the order in which an order travels."""
    outlooks = {name: outlook(name, order) for name, order in evidence.orders.items()}
    return [
        *_outbox_checks(evidence),
        *_team_checks(evidence, outlooks),
        *_home_checks(evidence, outlooks),
        *_reminder_checks(evidence, round(remind_after_s * 1000)),
        once("mails of the notifier", evidence.orders.keys(), evidence.mails),
    ]


def _outbox_checks(evidence: Evidence) -> list[Check]:
    orders, sent = evidence.orders, evidence.topics[ORDERS]
    paid = {name for name, order in orders.items() if order.paid_ms is not None}
    left = [f"outbox row {n}" for n in range(evidence.outbox_left)]
    dead = [f"dead row {n}" for n in range(evidence.outbox_dead)]
    return [
        once("orders: database to topic", orders.keys(), sent),
        none("orders rolled back, yet on the topic", evidence.declined & set(sent)),
        once("payments: database to topic", paid, evidence.topics[PAYMENTS]),
        none("left in the outbox", [*left, *dead]),
    ]


def _team_checks(evidence: Evidence, outlooks: Mapping[str, Outlook]) -> list[Check]:
    def results(team: str) -> tuple[str, ...]:
        return evidence.topics[shop.topics(team).results]

    readable = {name for name, one in outlooks.items() if one.rejected_by != "parse"}
    rejected = {name for name, one in outlooks.items() if one.state == "rejected"}
    items = {item: fate for one in outlooks.values() for item, fate in one.items.items()}
    shipped = {item for item, fate in items.items() if fate == "shipped"}
    dead = [key for team in shop.teams for key in evidence.topics[shop.topics(team).dead]]
    return [
        once("team parse: outcomes of orders", outlooks.keys(), results("parse")),
        once("team price: outcomes of orders", readable, results("price")),
        once("team stock: outcomes of items", items.keys(), results("stock")),
        once("team ship: items on the shelf", shipped, results("ship")),
        once("team backorder: items that are not", items.keys() - shipped, results("backorder")),
        once("dead letters: impossible orders", rejected, dead),
    ]


def _home_checks(evidence: Evidence, outlooks: Mapping[str, Outlook]) -> list[Check]:
    wanted = {
        name: (one.state, one.total_cents, len(one.items) or None) for name, one in outlooks.items()
    }
    found = {
        name: (order.state, order.total_cents, order.items)
        for name, order in evidence.orders.items()
        if order.state != "placed"
    }
    fates = {item: fate for one in outlooks.values() for item, fate in one.items.items()}
    return [
        equal("orders settled, to the cent", wanted, found),
        equal("items settled", fates, evidence.items),
        once("settled orders: database to topic", outlooks.keys(), evidence.topics[DONE]),
    ]


def _reminder_checks(evidence: Evidence, remind_after_ms: int) -> list[Check]:
    due_ms = {name: one.placed_ms + remind_after_ms for name, one in evidence.orders.items()}
    paid_ms = {name: one.paid_ms for name, one in evidence.orders.items()}
    unpaid = {name for name, at_ms in paid_ms.items() if at_ms is None}
    # Paid after the due time: reminded if the reminder fired before the payment.
    late = {n for n, at_ms in paid_ms.items() if at_ms is not None and at_ms > due_ms[n]}
    sent = {name: one for name, one in evidence.reminders.items() if one.sent}
    early = {name for name, one in evidence.reminders.items() if one.fired_ms < one.due_ms}
    moved = {n for n, one in evidence.reminders.items() if one.due_ms != due_ms.get(n)}
    needless = {n for n, one in sent.items() if (paid_ms.get(n) or one.fired_ms) < one.fired_ms}
    left = [f"message {n}" for n in range(evidence.timeline_left + evidence.timeline_dead)]
    return [
        once("reminders of unpaid orders", unpaid, sent, allowed=late),
        none("reminders early or needless", early | moved | needless),
        none("left on the timeline", left),
    ]


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured, from the same evidence."""

    late_ms: tuple[int, ...]
    settled_ms: tuple[int, ...]
    #: Reminders that never fired, and those that fired and found the order paid.
    cancelled: int
    needless: int
    #: Term, replica and mails of each lead.
    leads: tuple[tuple[int, str, int], ...]

    @property
    def takeovers(self) -> int:
        """How often another replica led on."""
        return sum(1 for before, after in pairwise(self.leads) if before[1] != after[1])


def figures(evidence: Evidence) -> Figures:
    """Lateness of reminders, time from order to outcome, and who led the notifier."""
    settled = [
        order.settled_ms - order.placed_ms
        for order in evidence.orders.values()
        if order.settled_ms is not None
    ]
    mails = Counter((mail.term, mail.replica) for mail in evidence.mails.values())
    return Figures(
        late_ms=tuple(sorted(r.fired_ms - r.due_ms for r in evidence.reminders.values())),
        settled_ms=tuple(sorted(settled)),
        cancelled=len(evidence.orders) - len(evidence.reminders),
        needless=sum(not reminder.sent for reminder in evidence.reminders.values()),
        leads=tuple(sorted((term, replica, count) for (term, replica), count in mails.items())),
    )


def quantile(values: tuple[int, ...], part: float) -> int:
    """The value below which `part` of the sorted values lie; 0 if there are none."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0
