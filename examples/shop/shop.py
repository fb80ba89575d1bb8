"""The shop: customers place orders and pay them, each in one transaction with its event.

    python -m examples.shop.shop --database shop.db --rate 20 --seconds 60

If a card is declined, the order is rolled back together with its event. What customers do follows
from the seed and the order's number, so a restarted shop continues where it stopped.
"""

import argparse
import heapq
import json
import random
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from examples.shop.database import connect, now_ms, transaction
from examples.shop.stopping import stop_event
from examples.shop.teams import PRICES

from dovetail.outbox import Producer

ORDERS, PAYMENTS = "shop.orders", "shop.payments"
NAMES = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Radia", "Tony")

#: Of a hundred customers: whose card is declined, who orders what there is not, who writes badly.
DECLINED, UNKNOWN, UNREADABLE = 10, 2, 2
#: And who pays soon (before the reminder), who pays only after it; the others never do.
PAYS_SOON, PAYS_LATE = 60, 10

orders = Producer(ORDERS, backend="db")
payments = Producer(PAYMENTS, backend="db")


class CardDeclinedError(Exception):
    """The bank said no, after the order was written."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One customer: what is ordered, and what becomes of the money."""

    order_id: str
    customer: str
    lines: tuple[str, ...]
    declined: bool
    #: Seconds from the order to its payment; None: never.
    pays_after_s: float | None


def visit(seed: int, number: int, remind_after_s: float) -> Visit:
    """The same for the same seed and number."""
    dice = random.Random(f"{seed}/{number}")
    skus = dice.sample(sorted(PRICES), dice.randint(1, 4))
    lines = [f"{sku} x {dice.randint(1, 9)}" for sku in skus]
    odd = dice.randrange(100)
    if odd < UNKNOWN:
        lines.append("Z-0 x 1")
    elif odd < UNKNOWN + UNREADABLE:
        lines.append("one of the blue ones")
    pays, pays_after_s = dice.randrange(100), None
    if pays < PAYS_SOON:
        pays_after_s = dice.uniform(0.1, 0.7) * remind_after_s
    elif pays < PAYS_SOON + PAYS_LATE:
        pays_after_s = dice.uniform(1.2, 1.5) * remind_after_s
    declined = dice.randrange(100) < DECLINED
    return Visit(f"{number:06d}", dice.choice(NAMES), tuple(lines), declined, pays_after_s)


def place_order(db: sqlite3.Connection, given: Visit) -> None:
    """Saves an order and publishes it. Raises `CardDeclinedError`: then neither has happened."""
    placed_ms = now_ms()
    with transaction(db):
        db.execute(
            "INSERT INTO orders (id, customer, lines, placed_ms) VALUES (?, ?, ?, ?)",
            (given.order_id, given.customer, json.dumps(given.lines), placed_ms),
        )
        event = {"customer": given.customer, "lines": given.lines, "placed_ms": placed_ms}
        orders.publish(event, key=given.order_id, on=db)
        if given.declined:
            raise CardDeclinedError(given.order_id)


def pay_order(db: sqlite3.Connection, order_id: str) -> None:
    """Marks an order as paid and says so, once."""
    with transaction(db):
        paid = db.execute(
            "UPDATE orders SET paid_ms = ? WHERE id = ? AND paid_ms IS NULL", (now_ms(), order_id)
        )
        if paid.rowcount:
            payments.publish({"order": order_id}, key=order_id, on=db)


class Shop:
    """Serves one customer after the other, at a rate, and takes payments when they are due."""

    def __init__(self, db: sqlite3.Connection, *, seed: int, remind_after_s: float) -> None:
        self._db, self._seed, self._remind_after_s = db, seed, remind_after_s
        self._to_pay: list[tuple[float, str]] = []
        self._number = 0
        for order_id, placed_ms in db.execute("SELECT id, placed_ms FROM orders"):
            self._expect_payment(self._visit(int(order_id)), placed_ms / 1000)
        [(last,)] = db.execute(
            "SELECT max(id) FROM (SELECT id FROM orders UNION SELECT id FROM declined)"
        )
        self._number = int(last or 0)

    def serve_next(self) -> None:
        """The next customer orders."""
        self._number += 1
        given = self._visit(self._number)
        try:
            place_order(self._db, given)
        except CardDeclinedError:
            self._db.execute("INSERT INTO declined VALUES (?, ?)", (given.order_id, now_ms()))
        else:
            self._expect_payment(given, time.time())

    def take_payments(self) -> None:
        """Those that are due."""
        while self._to_pay and self._to_pay[0][0] <= time.time():
            pay_order(self._db, heapq.heappop(self._to_pay)[1])

    def _visit(self, number: int) -> Visit:
        return visit(self._seed, number, self._remind_after_s)

    def _expect_payment(self, given: Visit, placed_s: float) -> None:
        if given.pays_after_s is not None:
            heapq.heappush(self._to_pay, (placed_s + given.pays_after_s, given.order_id))


def run(given: argparse.Namespace, stopping: threading.Event) -> None:
    """Opens the shop until it closes; later payments are not taken."""
    with closing(connect(given.database)) as db:
        shop = Shop(db, seed=given.seed, remind_after_s=given.remind_after)
        began = next_at = time.monotonic()
        while not stopping.is_set() and next_at < began + given.seconds:
            shop.serve_next()
            shop.take_payments()
            next_at += 1 / given.rate
            stopping.wait(max(0.0, next_at - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path, default=Path("shop.db"))
    parser.add_argument("--rate", type=float, default=20.0, help="orders a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the shop is open")
    parser.add_argument("--remind-after", type=float, default=10.0, help="seconds to pay in")
    parser.add_argument("--seed", type=int, default=1, help="what customers do")
    given = parser.parse_args()
    run(given, stop_event())


if __name__ == "__main__":
    main()
